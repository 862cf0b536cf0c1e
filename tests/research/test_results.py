from pathlib import Path

import pytest

from research.base import Options, run_experiment
from research.catalogue import EXPERIMENTS
from research.results import NOT_RUN, TEMPLATE, render_page, write_page
from tests.research.test_base import plain
from uedp.errors import UserError


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the result of one experiment."""
    monkeypatch.setattr("research.results.EXPERIMENTS", {"breakdown": plain()})
    run_experiment(plain(), _options(tmp_path), tmp_path / "results")
    return tmp_path / "results"


def _options(folder: Path, quick: bool = False) -> Options:
    return Options(folder, folder / "results" / ".work" / "breakdown", quick)


def test_a_section_has_the_table_and_the_plot(results: Path) -> None:
    page, missing = render_page("# T\n\n{{ breakdown }}\n\nend\n", results, results.parent / "docs")
    assert page == "# T\n\ncurve of 2\n\n![breakdown](../results/breakdown.png)\n\nend\n"
    assert missing == []


def test_experiments_not_run_are_named(results: Path) -> None:
    page, missing = render_page("{{ budget }}\n{{ local-dp.x.y:.2f }}", results, results)
    assert page == f"*{NOT_RUN}: `python -m research budget --data DIR --out results`*\n{NOT_RUN}"
    assert missing == ["budget", "local-dp"]


def test_values_in_a_line(results: Path) -> None:
    page, _ = render_page(
        "a {{ breakdown.at.a b:.1%}} and {{breakdown.curve.1}}", results, results.parent
    )
    assert page == "a 12.3% and 2.5"


def test_a_quick_result_is_marked(results: Path, tmp_path: Path) -> None:
    run_experiment(plain(), _options(tmp_path, quick=True), results)
    page, _ = render_page("{{ breakdown }}", results, results)
    assert page.startswith("*Measured with `--quick`")


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        ("{{ breakdown.at.c }}", None, "has no 'at.c'"),
        ("{{ breakdown.curve.7 }}", None, "has no 'curve.7'"),
        ("{{ breakdown }}", "{", "not JSON"),
        ("{{ breakdown }}", "[]", "not the result"),
        ("{{ breakdown }}", "{}", "not in the current format"),
        ("{{ other }}", None, "no such experiment"),
    ],
)
def test_errors_name_the_file_or_placeholder(
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
