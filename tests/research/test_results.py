import json
from pathlib import Path

import pytest

from research.base import (
    Experiment,
    Options,
    Result,
    code_of,
    digest,
    kept,
    run_experiment,
)
from research.catalogue import EXPERIMENTS
from research.results import NOT_RUN, TEMPLATE, render_page, write_page
from uedp.errors import UserError


def _draw(result: Result, path: Path) -> None:
    path.write_text(path.suffix)


def _plain(name: str = "breakdown") -> Experiment:
    return Experiment(
        name,
        "what it is",
        lambda options: {"quick": options.quick, "curve": [1, 2.5], "at": {"a b": 0.123456}},
        _draw,
        lambda result: f"curve of {len(result['curve'])}",
    )


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the result of one experiment."""
    experiments = {"breakdown": _plain()}
    monkeypatch.setattr("research.results.EXPERIMENTS", experiments)
    run_experiment(experiments["breakdown"], _options(tmp_path), tmp_path / "results")
    return tmp_path / "results"


def _options(folder: Path, quick: bool = False) -> Options:
    return Options(folder, folder / "results" / ".work" / "breakdown", quick)


def test_carrying_out_writes_three_files(results: Path) -> None:
    assert sorted(path.name for path in results.iterdir()) == [
        ".work",
        "breakdown.json",
        "breakdown.png",
        "breakdown.svg",
    ]
    assert json.loads((results / "breakdown.json").read_text())["curve"] == [1, 2.5]
    assert '"curve": [ 1, 2.5 ]' in (results / "breakdown.json").read_text()
    assert (results / ".work" / ".gitignore").read_text() == "*\n"


def test_json_keeps_strings_that_look_like_lists(tmp_path: Path) -> None:
    said = {"text": "[ 1,\n   2 ]", "nested": [[1, 2], ["a  b"]]}
    experiment = Experiment("x", "", lambda _: said, _draw, lambda _: "")
    run_experiment(experiment, _options(tmp_path), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "x.json").read_text()) == said


def test_a_section_has_the_table_and_the_plot(results: Path) -> None:
    page, missing = render_page("# T\n\n{{ breakdown }}\n\nend\n", results, results.parent / "docs")
    assert page == "# T\n\ncurve of 2\n\n![breakdown](../results/breakdown.png)\n\nend\n"
    assert missing == []


def test_what_was_not_run_says_so(results: Path) -> None:
    page, missing = render_page("{{ budget }}\n{{ local-dp.x.y:.2f }}", results, results)
    assert page == f"*{NOT_RUN}: `python -m research budget --data DIR --out results`*\n{NOT_RUN}"
    assert missing == ["budget", "local-dp"]


def test_values_in_a_line(results: Path) -> None:
    page, _ = render_page(
        "a {{ breakdown.at.a b:.1%}} and {{breakdown.curve.1}}", results, results.parent
    )
    assert page == "a 12.3% and 2.5"


def test_a_quick_result_is_marked(results: Path, tmp_path: Path) -> None:
    run_experiment(_plain(), _options(tmp_path, quick=True), results)
    page, _ = render_page("{{ breakdown }}", results, results)
    assert page.startswith("*Measured with `--quick`")


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        ("{{ breakdown.at.c }}", None, "has no 'at.c'"),
        ("{{ breakdown.curve.7 }}", None, "has no 'curve.7'"),
        ("{{ breakdown }}", "{", "not JSON"),
        ("{{ breakdown }}", "[]", "not the result"),
        ("{{ breakdown }}", "{}", "not as this version writes it"),
        ("{{ other }}", None, "no such experiment"),
    ],
)
def test_mistakes_are_named(
    template: str, content: str | None, expected: str, results: Path
) -> None:
    (results / "other.json").write_text("{}")
    if content is not None:
        (results / "breakdown.json").write_text(content)
    with pytest.raises(UserError, match=expected):
        render_page(template, results, results)


def test_the_page_is_written_whole_or_not_at_all(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "docs" / "results.md"
    missing = write_page(results, out)
    assert "curve of 2" in out.read_text()
    assert set(missing) >= {"budget", "integrity"}
    before = out.read_text()
    (results / "breakdown.json").write_text("{")
    with pytest.raises(UserError):
        write_page(results, out)
    assert out.read_text() == before
    with pytest.raises(UserError, match="no such folder"):
        write_page(tmp_path / "nowhere", out)


def test_the_template_has_a_place_for_every_experiment() -> None:
    template = TEMPLATE.read_text()
    for name in EXPERIMENTS:
        assert f"\n{{{{ {name} }}}}\n" in template


# --- what lets an experiment go on ---------------------------------------------------------------


def test_a_step_is_kept_and_known_by_all_that_made_it(tmp_path: Path) -> None:
    done = []

    def compute() -> Result:
        done.append(1)
        return {"value": len(done)}

    assert kept(tmp_path / "w", {"a": 1}, compute) == {"value": 1}
    assert kept(tmp_path / "w", {"a": 1}, compute) == {"value": 1}
    assert kept(tmp_path / "w", {"a": 2}, compute) == {"value": 2}


def test_an_interrupted_step_is_computed_again(tmp_path: Path) -> None:
    def interrupted() -> Result:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, {"a": 1}, interrupted)
    assert list(tmp_path.iterdir()) == []
    assert kept(tmp_path, {"a": 1}, lambda: {"b": 2}) == {"b": 2}


def test_code_is_known_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uedp.__file__", str(tmp_path / "__init__.py"))
    for part in ("one", "two"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.py").write_text("x = 1")
    before = code_of("one")
    (tmp_path / "two" / "a.py").write_text("x = 2")
    assert code_of("one") == before
    (tmp_path / "one" / "a.py").write_text("x = 2")
    assert code_of("one") != before


def test_another_version_does_not_take_what_an_older_one_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = digest({"a": 1})
    monkeypatch.setattr("uedp.__version__", "9.9")
    assert digest({"a": 1}) != before
