"""The results page: prose from a template, every number of ours from the JSON of an experiment.

In the template, `{{ NAME }}` on a line of its own becomes the tables and the plot of an experiment,
and `{{ NAME.key.key:format }}` within a line a value of its result.
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
    """Write the page; the names of experiments in it that have not been run.

    Guarantees:
      - a page, or a UserError that says which file or place is wrong: never a page in part
      - what was measured with `--quick` is marked as such
    """
    if not results.is_dir():
        raise UserError(f"--results {results}: no such folder")
    page, missing = render_page(TEMPLATE.read_text(encoding="utf-8"), results, out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return missing


def render_page(template: str, results: Path, beside: Path) -> tuple[str, list[str]]:
    """The page that a template makes, with links that hold in the folder `beside`."""
    found: dict[str, Result | None] = {}

    def result(name: str) -> Result | None:
        if name not in found:
            found[name] = _load(results / f"{name}.json")
        return found[name]

    def section(match: re.Match[str]) -> str:
        name = match[1]
        if (measured := result(name)) is None:
            return f"*{NOT_RUN}: `python -m research {name} --data DIR --out {results.name}`*"
        if name not in EXPERIMENTS:
            raise UserError(f"{results / name}.json: no such experiment; rename or remove it")
        link = Path(os.path.relpath(results, beside), f"{name}.png").as_posix()
        quick = "*Measured with `--quick`: on a small part of the data.*\n\n"
        try:
            told = EXPERIMENTS[name].table(measured)
        except (KeyError, IndexError, TypeError, ValueError):
            raise UserError(
                f"{results / name}.json: not as this version writes it; run the experiment again"
            ) from None
        return f"{quick if measured.get('quick') else ''}{told}\n\n![{name}]({link})"

    def value(match: re.Match[str]) -> str:
        if (measured := result(match[1])) is None:
            return NOT_RUN
        return format(_at(measured, match[1], match[2].strip()), match[3] or "")

    page = _VALUE.sub(value, _SECTION.sub(section, template))
    return page, [name for name, measured in found.items() if measured is None]


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


def _at(result: Result, name: str, keys: str) -> Any:
    place: Any = result
    for key in keys.split("."):
        try:
            place = place[key] if isinstance(place, Mapping) else place[int(key)]
        except (KeyError, IndexError, TypeError, ValueError):
            raise UserError(f"results template: {name}.json has no {keys!r}") from None
    return place
