"""Reading a run folder, in whatever state it is."""

import json
import os

import numpy as np
import pytest

from tests.report.runs import finished_run
from uedp.accounting.certificate import load_certificate
from uedp.errors import UserError
from uedp.report.page import report
from uedp.report.run_record import RunRecord, audit_kind, read_metrics
from uedp.report.verification import verify_run


@pytest.fixture
def folder(tmp_path):
    return finished_run(tmp_path / "run")


def test_a_finished_run(folder):
    record = RunRecord.read(folder)
    assert record.problems == ()
    assert record.finished
    assert record.state == "finished"
    assert (record.method, record.task, record.name) == ("rotation", "next-word", "run")
    assert record.rounds_done == record.rounds_planned == record.spent == 40
    assert record.certificate.run == record.run == record.planned.run
    rounds, values = record.series("perplexity on names")
    assert rounds.tolist() == [0, 10, 20, 30, 40]
    assert values[0] == record.before["perplexity on names"]
    assert values[-1] == record.after["perplexity on names"]
    assert record.measures[:2] == ("perplexity", "perplexity on names")


@pytest.mark.parametrize(
    "missing",
    ["certificate.json", "config.yaml", "ledger.jsonl", "metrics.jsonl", "result.json", "run.json"],
)
def test_a_part_that_is_not_there_yet_is_none(folder, missing):
    (folder / missing).unlink()
    record = RunRecord.read(folder)
    assert record.problems == ()
    record.state, record.measures, record.series("users"), record.model, record.task
    assert record.finished == (missing != "result.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b"null", b"0"])
def test_a_damaged_part_is_none_too(folder, content):
    names = (
        "certificate.json config.yaml ledger.jsonl metrics.jsonl result.json run.json lineage.json"
    )
    for name in names.split():
        (folder / name).write_bytes(content + b"\n")
    record = RunRecord.read(folder)
    assert record.certificate is None
    assert record.planned is None
    assert not record.finished
    assert all("\n" not in problem for problem in record.problems)
    record.state, record.measures, record.series("users")


def test_a_run_in_progress(folder):
    (folder / "result.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 41, "users": 3')  # a line that is being written
    record = RunRecord.read(folder)
    assert record.state == "not finished, 40 of 40 rounds done"
    assert len(record.series("users")[0]) == 40


def test_metrics_are_columns(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1, "users": 3}\n{"round": 2, "users": null, "new": 0.5}\n')
    columns = read_metrics(path)
    assert np.array_equal(columns["users"], [3, np.nan], equal_nan=True)
    assert np.array_equal(columns["new"], [np.nan, 0.5], equal_nan=True)


def test_audits_in_the_folder_and_named_ones_are_found(folder, tmp_path):
    mechanism = {"alarm": False, "verdict": ["fine"], "audits": [], "measured": []}
    training = {"findings": [], "proven": 8.0}
    (folder / "audits").mkdir()
    (folder / "audits" / "mechanism.json").write_text(json.dumps(mechanism))
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "audit.json").write_text(json.dumps(training))
    (tmp_path / "else.json").write_text("{}")
    record = RunRecord.read(folder, [other, tmp_path / "else.json"])
    assert [one.kind for one in record.audits] == ["mechanism", "training"]
    assert record.problems == (f"{tmp_path / 'else.json'}: not the result of an audit",)


def test_kinds_of_audits():
    assert audit_kind({"runs": [{"summary": {}, "kind": "secrets"}]}) == "extraction"
    assert [audit_kind(other) for other in ({}, [], None, {"runs": []}, {"runs": [1]})] == [
        None
    ] * 5


def test_a_folder_without_a_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="name the folder of a run"):
            RunRecord.read(folder)


def test_a_stopped_run_says_how_far_it_is(tmp_path):

    finished_run(tmp_path / "ended", rounds_spent=7)
    record = RunRecord.read(tmp_path / "ended")
    assert record.state == "not finished, 7 of 40 rounds done"


# --- folders from strangers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "run.json",
        "ledger.jsonl",
        "certificate.json",
        "certificate.sig",
        "metrics.jsonl",
        "result.json",
        "lineage.json",
        "model.safetensors",
        "report.html",
        "audits",
        "audits/mine.json",
        "more/weights.bin",
        "notes.md",
    ],
)
def test_links_in_a_folder_are_refused_before_anything_is_read(tmp_path, name):
    """A report of a folder from a stranger reads, and writes, no file outside of it."""
    folder = finished_run(tmp_path / "run")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.json").write_text("a secret")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside if name == "audits" else outside / "secret.json")
    for kind in ("internal", "public"):
        with pytest.raises(UserError, match="is a link") as refused:
            report([folder], kind)
        assert str(folder / name) in str(refused.value)
        assert "\n" not in str(refused.value)
    assert (outside / "secret.json").read_text() == "a secret"


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path):
    folder = finished_run(tmp_path / "run")
    os.mkfifo(folder / "audits.json")
    with pytest.raises(UserError, match="neither a file nor a folder"):
        RunRecord.read(folder)


def test_logs_that_nothing_here_reads_may_hold_links(tmp_path):
    """Weights & Biases links to its latest run."""
    folder = finished_run(tmp_path / "run")
    (folder / "wandb" / "run-1").mkdir(parents=True)
    (folder / "wandb" / "latest-run").symlink_to("run-1")
    assert RunRecord.read(folder).finished
    (folder / "mlflow").symlink_to(tmp_path)
    with pytest.raises(UserError, match="is a link"):
        RunRecord.read(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "a\0b", ""])
def test_a_certificate_names_files_in_its_folder_only(tmp_path, name):
    folder = finished_run(tmp_path / "run")
    (tmp_path / "secret").write_text("a secret")
    certificate = json.loads((folder / "certificate.json").read_text())
    certificate["files"][name] = "0" * 64
    (folder / "certificate.json").write_text(json.dumps(certificate))
    with pytest.raises(UserError, match="files"):
        load_certificate(folder)
    record = RunRecord.read(folder)
    assert record.certificate is None
    assert verify_run(record).status == "failed"
