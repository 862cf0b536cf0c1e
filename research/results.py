"""The results page: prose from a template, all our numbers from the JSON files of experiments.

In the template, a line `{{ NAME }}` is replaced by the tables and the plot of an experiment, and
`{{ NAME.key.key:format }}` within a line by a value of its result.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.base import Result
from research.catalogue import EXPERIMENTS
from uedp.errors import UserError

TEMPLATE = Path(__file__).with_name("results_template.md")
NOT_RUN = "not run"
_SECTION = re.compile(r"^\{\{ *([a-z0-9-]+) *\}\}$", re.MULTILINE)
_VALUE = re.compile(r"\{\{ *([a-z0-9-]+)\.([^:{}]+?)(?::([^{}]*?))? *\}\}")


def write_page(results: Path, out: Path) -> list[str]:
    """Write the page. Returns the names of the experiments that were not run.

    Guarantees:
      - writes a complete page, or raises a UserError that names the faulty file or placeholder
      - results of `--quick` are marked as such
    """
    if not results.is_dir():
        raise UserError(f"--results {results}: no such folder")
    page, missing = render_page(TEMPLATE.read_text(encoding="utf-8"), results, out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return missing


def render_page(template: str, results: Path, beside: Path) -> tuple[str, list[str]]:
    """Render a template; links are relative to the folder `beside`."""
    loaded: dict[str, Result | None] = {}

    def load(name: str) -> Result | None:
        if name not in loaded:
            loaded[name] = _load(results / f"{name}.json")
        return loaded[name]

    def section(match: re.Match[str]) -> str:
        name = match[1]
        if (result := load(name)) is None:
            return f"*{NOT_RUN}: `python -m research {name} --data DIR --out {results.name}`*"
        if name not in EXPERIMENTS:
            raise UserError(f"{results / name}.json: no such experiment; rename or remove it")
        link = Path(os.path.relpath(results, beside), f"{name}.png").as_posix()
        quick = "*Measured with `--quick`: on a small part of the data.*\n\n"
        try:
            tables = EXPERIMENTS[name].table(result)
        except (KeyError, IndexError, TypeError, ValueError):
            raise UserError(
                f"{results / name}.json: not in the current format; run the experiment again"
            ) from None
        return f"{quick if result.get('quick') else ''}{tables}\n\n![{name}]({link})"

    def value(match: re.Match[str]) -> str:
        if (result := load(match[1])) is None:
            return NOT_RUN
        return format(_value_at(result, match[1], match[2].strip()), match[3] or "")

    page = _VALUE.sub(value, _SECTION.sub(section, template))
    return page, [name for name, result in loaded.items() if result is None]


def _load(path: Path) -> Result | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path}: not JSON; run the experiment again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not the result of an experiment; run it again")
    return content


def _value_at(result: Result, name: str, keys: str) -> Any:
    value: Any = result
    for key in keys.split("."):
        try:
            value = value[key] if isinstance(value, Mapping) else value[int(key)]
        except (KeyError, IndexError, TypeError, ValueError):
            raise UserError(f"results template: {name}.json has no {keys!r}") from None
    return value
