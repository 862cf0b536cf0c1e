import json
from pathlib import Path

import pytest

from uedp.accounting.certificate import (
    CERTIFICATE,
    MISSED_HOLDERS,
    Certificate,
    Setup,
    Shape,
    issue,
    load,
    schema,
    verify,
)
from uedp.accounting.ledger import RunLedger
from uedp.accounting.proven import Alg, Rotation, UserLevel, epsilon
from uedp.errors import UserError

SHAPE = Shape(digest="d" * 64, users=300, sentences=4000, entities=2500)
PROFILE = Rotation(1.5, 0.1, 0.3)


@pytest.fixture
def run_folder(tmp_path) -> Path:
    with RunLedger.open(tmp_path, "run-1", SHAPE.digest, PROFILE, rounds=50) as ledger:
        ledger.spend(20)
        ledger.spend(10)
    issue(tmp_path, 1e-5, SHAPE, Setup(chosen_by="the operator, on public data"))
    return tmp_path


def test_what_it_says(run_folder):
    found = verify(run_folder)
    assert found.private
    assert found.epsilon == epsilon(PROFILE, 50, 1e-5)  # the plan, not the 30 rounds run
    assert found.epsilon_user_alone == epsilon(UserLevel(1.5, 0.1), 50, 1e-5)
    assert (found.rounds_planned, found.rounds_spent) == (50, 30)
    assert [missed.users for missed in found.missed_mentions] == list(MISSED_HOLDERS)
    values = [found.epsilon_user_alone, found.epsilon, *(m.epsilon for m in found.missed_mentions)]
    assert values == sorted(values)
    assert "that a user took part" in found.not_protected
    assert found.caveats == ()
    assert "published" not in (run_folder / CERTIFICATE).read_text()


CHANGES = {
    "epsilon": 0.1,
    "epsilon_user_alone": 0.01,
    "delta": 1e-6,
    "rounds_planned": 10,
    "rounds_spent": 1,
    "private": False,
    "statement": "perfectly safe",
    "unit": "everything",
    "adjacency": "any two worlds",
    "not_protected": [],
    "caveats": ["none really"],
    "method": "user-level",
    "parameters": {"noise": 9.0},
    "missed_mentions": [],
    "ledger_seal": "0" * 64,
    "run": "another",
}


@pytest.mark.parametrize("field", CHANGES)
def test_tampering_is_found_and_named(field, run_folder):
    path = run_folder / CERTIFICATE
    content = json.loads(path.read_text())
    content[field] = CHANGES[field]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"certificate\.json") as refusal:
        verify(run_folder)
    # another delta makes every epsilon wrong; the first that differs is named
    named = {"delta": "statement", "parameters": "parameters"}.get(field, field)
    assert named in str(refusal.value)


def test_one_missed_mention_lowered_is_found(run_folder):
    path = run_folder / CERTIFICATE
    content = json.loads(path.read_text())
    content["missed_mentions"][2]["epsilon"] *= 0.9
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="missed_mentions"):
        verify(run_folder)


def test_another_incidence_is_found(run_folder):
    path = run_folder / CERTIFICATE
    content = json.loads(path.read_text())
    content["incidence"]["digest"] = "e" * 64
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"incidence\.digest"):
        verify(run_folder)


def test_lines_cut_off_the_ledger_are_found(run_folder):
    ledger = run_folder / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match=r"rounds_spent|ledger_seal"):
        verify(run_folder)


def test_a_changed_ledger_is_found(run_folder):
    ledger = run_folder / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"count": 10', b'"count": 11'))
    with pytest.raises(UserError, match="changed here"):
        verify(run_folder)


def test_an_unknown_field_or_none_is_refused(run_folder):
    path = run_folder / CERTIFICATE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "published_epsilon": 0.5}))
    with pytest.raises(UserError, match="published_epsilon"):
        load(run_folder)
    path.unlink()
    with pytest.raises(UserError, match="no certificate"):
        load(run_folder)


def test_a_fixed_seed_is_not_private(run_folder):
    found = issue(run_folder, 1e-5, SHAPE, Setup(noise_source="fixed seed"))
    assert not found.private
    assert found.statement == "This run has no privacy guarantee."
    assert len(found.caveats) == 2  # the seed, and that nobody said who chose the clips
    verify(run_folder)


def test_no_noise_has_no_epsilon(tmp_path):
    with RunLedger.open(tmp_path, "r", SHAPE.digest, UserLevel(0.0, 0.1), rounds=5):
        pass
    found = issue(tmp_path, 1e-5, SHAPE)
    assert found.epsilon is None
    assert not found.private
    assert json.loads((tmp_path / CERTIFICATE).read_text())["epsilon"] is None
    verify(tmp_path)


def test_the_papers_mechanism_has_a_certificate_too(tmp_path):
    profile = Alg(2.0, 0.05, 946, 12)
    with RunLedger.open(tmp_path, "r", SHAPE.digest, profile, rounds=50):
        pass
    found = issue(tmp_path, 1e-5, SHAPE)
    assert found.epsilon == epsilon(profile, 50, 1e-5)
    assert found.missed_mentions == ()
    verify(tmp_path)


def test_published_schema_is_the_code_s():
    written = Path(__file__).parents[2] / "docs" / "certificate.schema.json"
    assert json.loads(written.read_text()) == schema()
    assert set(schema()["required"]) >= {"epsilon", "delta", "unit", "adjacency", "not_protected"}
    assert set(schema()["properties"]) == set(Certificate.model_fields)
