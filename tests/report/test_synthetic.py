"""The page on synthetic text: escaped, readable in a browser, with the rows of the terminal."""

import json
from pathlib import Path

import pytest

import uedp
from tests.browser import DESKTOP, PHONE
from uedp.audit.synthetic import SyntheticAudit, audit_texts
from uedp.report.synthetic import findings, quality_rows, synthetic_page
from uedp.sample.generate import sample_sentences

HOSTILE = '<img src=x onerror="alert(1)">.jsonl'


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> SyntheticAudit:
    folder = tmp_path_factory.mktemp("audit")
    sentences = list(sample_sentences(3, 60))
    users = sorted({sentence.user for sentence in sentences})
    for name, own in (("train", users[:40]), ("others", users[40:])):
        part = [sentence for sentence in sentences if sentence.user in own]
        uedp.detect(part, folder / name, uedp.Detection(("labels",)))
    rows = [json.dumps({"text": s.text}) for s in sentences if s.user in users[:40]]
    (folder / "t.jsonl").write_text("\n".join(rows))
    return audit_texts(folder / "t.jsonl", folder / "train", folder / "others")


def test_rows_mark_alarms_and_what_too_few_people_cannot_tell(audit: SyntheticAudit) -> None:
    rows = {row.what: row for row in findings(audit)}
    copies = rows["people with a text, 8 words or more of their own"]
    assert (copies.trained, copies.held_out, copies.remark) == ("40 of 40", "0 of 20", "ALARM")
    assert copies.excess.startswith("(from ")
    assert {row.remark for row in rows.values()} <= {"ALARM", "", "too few to tell"}
    kinds, measures = quality_rows(audit.quality)
    assert kinds == ["synthetic", "training", "held out"]
    assert all(len(values) == 3 for _, values in measures)


def test_the_page_shows_hostile_names_as_text(audit: SyntheticAudit) -> None:
    page = synthetic_page(audit, HOSTILE)
    assert HOSTILE not in page
    assert "&lt;img src=x" in page
    assert "<script" not in page
    assert "http" not in page.replace('http-equiv="', "")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_page_is_readable_and_accessible(
    audit: SyntheticAudit, browser, tmp_path: Path, size: tuple[int, int]
) -> None:
    (tmp_path / "page.html").write_text(synthetic_page(audit, HOSTILE))
    with browser.page(size) as shown:
        shown.page.goto((tmp_path / "page.html").as_uri())
        assert HOSTILE in shown.page.inner_text("h1")
        assert "ALARM" in shown.page.inner_text("[role=alert]")
        assert not shown.overflows()
        assert shown.accessibility_violations() == []
