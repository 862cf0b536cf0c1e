"""The checks behind a report: passed, failed, and not made."""

import json
import shutil

import pytest

from tests.report.runs import finished_run
from uedp.accounting.signature import generate_key, sign_certificate
from uedp.report.run_record import RunRecord
from uedp.report.verification import (
    CERTIFICATE_CHECK,
    LEDGER_CHECK,
    MODEL_CHECK,
    SIGNATURE_CHECK,
    verify_run,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def checked(folder, **options):
    return verify_run(RunRecord.read(folder), **options)


def failed(verification):
    return [check.name for check in verification.failures]


def test_a_sound_run_is_proven(folder):
    verification = checked(folder)
    assert verification.status == "proven"
    assert verification.failures == ()
    assert verification.certificate is not None
    assert not verification.signed
    assert any("who issued this" in line for line in verification.left_open)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda run: (run / "model.safetensors").write_bytes(b"others"), [MODEL_CHECK]),
        (lambda run: (run / "pytorch_model.bin").write_bytes(b"other"), [MODEL_CHECK]),
        (lambda run: (run / "config.json").unlink(), [MODEL_CHECK]),
        (lambda run: flip(run / "ledger.jsonl"), [LEDGER_CHECK, CERTIFICATE_CHECK]),
        (lambda run: (run / "ledger.jsonl").unlink(), [LEDGER_CHECK, CERTIFICATE_CHECK]),
        (lambda run: (run / "certificate.json").unlink(), [CERTIFICATE_CHECK]),
        (lambda run: (run / "certificate.json").write_text("{}"), [CERTIFICATE_CHECK]),
    ],
)
def test_a_change_fails_its_check(folder, change, names):
    change(folder)
    verification = checked(folder)
    assert verification.status == "failed"
    assert failed(verification) == names
    assert verification.certificate is None
    assert all(check.detail for check in verification.failures)
    # what may be published names no file of the curator
    assert all(str(folder) not in check.words for check in verification.checks)


def test_a_lowered_epsilon_fails_the_certificate(folder):
    path = folder / "certificate.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"epsilon": values["epsilon"] / 2}))
    assert failed(checked(folder)) == [CERTIFICATE_CHECK]


def test_signatures(folder, tmp_path):
    public = generate_key(tmp_path / "key")
    assert failed(checked(folder, public_key=public)) == [SIGNATURE_CHECK]
    sign_certificate(folder / "certificate.json", tmp_path / "key")
    assert checked(folder, public_key=public).signed
    assert checked(folder).status == "proven"
    assert not checked(folder).signed
    other = generate_key(tmp_path / "other")
    assert failed(checked(folder, public_key=other)) == [SIGNATURE_CHECK]


def test_a_corpus_that_does_not_know_the_run_fails(folder, tmp_path):
    (tmp_path / "corpus").mkdir()
    verification = checked(folder, corpus=tmp_path / "corpus")
    assert verification.status == "failed"
    assert failed(verification) == ["Record of the corpus"]


def test_a_run_in_progress_is_not_judged(tmp_path):
    folder = finished_run(tmp_path / "run", rounds_spent=7)
    assert checked(folder).status == "unfinished"
    # its certificate is of an earlier moment
    with (folder / "certificate.json").open("a") as file:
        file.write(" ")
    assert checked(folder).status == "unfinished"
    flip(folder / "ledger.jsonl")
    assert checked(folder).status == "failed"


def test_a_model_that_was_handed_on_is_judged(folder):
    """A recipient gets the model, its certificate and its ledger."""
    for name in ("metrics.jsonl", "result.json", "run.json", "config.yaml"):
        (folder / name).unlink()
    assert checked(folder).status == "proven"


def test_runs_without_a_guarantee(tmp_path):
    plain = finished_run(tmp_path / "plain", None)
    assert checked(plain).status == "none"
    seeded = finished_run(tmp_path / "seeded", noise_source="fixed seed")
    assert checked(seeded).status == "none"


def test_a_private_run_without_ledger_and_certificate_is_not_called_noiseless(folder):
    for name in ("ledger.jsonl", "certificate.json"):
        (folder / name).unlink()
    assert checked(folder).status == "failed"
