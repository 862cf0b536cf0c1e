"""Certificates: what they say follows from the ledger, and what was tampered with is named."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from uedp.accounting import certificate as certificates
from uedp.accounting import chain as chains
from uedp.accounting.certificate import (
    CERTIFICATE,
    NOT_PROTECTED,
    Certificate,
    Setup,
    Shape,
    issue,
    load,
    rounded,
    schema,
    verify,
)
from uedp.accounting.chain import Chain
from uedp.accounting.ledger import RUN_LEDGER, RunLedger
from uedp.accounting.missed import MISSED_CASES
from uedp.accounting.proven import Alg, Missed, Profile, Rotation, UserLevel, epsilon
from uedp.errors import UserError

PROFILE = Rotation(20.0, 0.5, 0.33)
SHAPE = Shape(digest="d" * 64, users=946, sentences=14_040, entities=5000)
SETUP = Setup(chosen_by="the curators, on public data", sentences_per_user=2)
SCHEMA = Path(__file__).parents[2] / "docs" / "certificate.schema.json"


def make_run(folder: Path, profile: Profile = PROFILE, rounds: int = 20, spent: int = 5) -> Path:
    folder.mkdir()
    with RunLedger.open(folder, "run-1", SHAPE.digest, profile, rounds) as ledger:
        for _ in range(spent):
            ledger.spend()
    return folder


@pytest.fixture(scope="module", autouse=True)
def short_table() -> Iterator[None]:
    """Two rows of missed mentions instead of three: they take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "MISSED_CASES", ((1, 1), (1, None)))
        yield


@pytest.fixture(scope="module")
def issued(short_table: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_run(tmp_path_factory.mktemp("issued") / "run")
    issue(made, 1e-5, SHAPE, SETUP)
    return made


@pytest.fixture
def folder(issued: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(issued, tmp_path / "run"))


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / CERTIFICATE
    values = json.loads(path.read_text())
    before = copy.deepcopy(values)
    edit(values)
    assert values != before
    path.write_text(json.dumps(values))


# --- what it says ---------------------------------------------------------------------------------


def test_issued_loaded_verified(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "MISSED_CASES", MISSED_CASES)
    folder = make_run(tmp_path / "run")
    issue(folder, 1e-5, SHAPE, SETUP)
    shown = load(folder)
    assert verify(folder) == shown
    assert shown.private
    assert shown.epsilon == epsilon(PROFILE, 20, 1e-5)  # of the plan, not of the rounds so far
    assert shown.epsilon_user_alone == epsilon(UserLevel(20.0, 0.5), 20, 1e-5)
    assert (shown.rounds_planned, shown.rounds_spent) == (20, 5)
    assert shown.parameters["noise"] == 20.0
    assert shown.not_protected == NOT_PROTECTED
    assert shown.caveats == ()
    one, five, whole = shown.missed_mentions
    # of a missed user a round uses two sentences at most: SETUP says so
    for row, users, sentences in ((one, 1, 1), (five, 5, 1), (whole, 1, 2)):
        assert row.users == users
        assert row.epsilon == epsilon(Missed(PROFILE, users, sentences, 0.33), 20, 1e-5)
    assert (one.sentences_per_user, whole.sentences_per_user) == (1, None)
    ladder = [shown.epsilon_user_alone, shown.epsilon, one.epsilon]
    assert ladder == sorted(ladder)
    assert one.epsilon < min(five.epsilon, whole.epsilon)


def test_missed_sentences_stand_in_plain_words(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "MISSED_CASES", MISSED_CASES)
    shown = issue(make_run(tmp_path / "run"), 1e-5, SHAPE, SETUP)
    one, five, whole = (rounded(row.epsilon) for row in shown.missed_mentions)
    assert shown.missed_line == (
        f"If the detector missed the entity in one sentence: epsilon {one}; in five sentences of "
        f"five users: epsilon {five}; in all sentences of one user: epsilon {whole}."
    )
    seeded = shown.model_copy(update={"private": False})
    assert seeded.missed_line == ""  # where nothing is promised, this is not promised either


def test_a_missed_sentence_moves_as_far_as_one_without_an_entity(tmp_path, monkeypatch):
    """The missed sentence may be clipped to the larger of the two shares."""
    monkeypatch.setattr(certificates, "MISSED_CASES", ((1, 1),))
    profile = Rotation(20.0, 0.5, 0.1, extended_share=0.5)
    shown = issue(make_run(tmp_path / "run", profile), 1e-5, SHAPE)
    assert shown.missed_mentions[0].epsilon == epsilon(Missed(profile, 1, 1, 0.5), 20, 1e-5)


def test_only_proven_numbers(folder):
    assert "published" not in (folder / CERTIFICATE).read_text()
    assert "published" not in json.dumps(schema())


def test_certified_is_what_was_planned_even_after_stopping_early(tmp_path):
    none, some = (make_run(tmp_path / str(n), spent=n) for n in (0, 19))
    assert issue(none, 1e-5, SHAPE).epsilon == issue(some, 1e-5, SHAPE).epsilon


def test_a_fixed_seed_is_not_private(tmp_path):
    folder = make_run(tmp_path / "run")
    shown = issue(folder, 1e-5, SHAPE, Setup(noise_source="fixed seed"))
    assert not shown.private
    assert shown.statement == "This run has no privacy guarantee."
    assert any("fixed seed" in caveat for caveat in shown.caveats)
    assert verify(folder) == shown


def test_what_is_not_covered_is_a_caveat(tmp_path):
    folder = make_run(tmp_path / "run")
    shown = issue(folder, 1e-5, SHAPE, Setup(vocabulary="from the corpus, not covered"))
    assert len(shown.caveats) == 2
    assert "vocabulary" in shown.caveats[0]
    assert "not stated" in shown.caveats[1]


def test_sentences_without_a_stated_bound_count_as_unbounded(tmp_path):
    """Saying nothing must not make the table of missed mentions look better."""
    folder = make_run(tmp_path / "run")
    silent = issue(folder, 1e-5, SHAPE)
    for bound in (1, 1000):
        said = issue(folder, 1e-5, SHAPE, Setup(sentences_per_user=bound))
        for quiet, loud in zip(silent.missed_mentions, said.missed_mentions, strict=True):
            assert loud.epsilon is not None
            assert quiet.epsilon is None or quiet.epsilon >= loud.epsilon * 0.999


def test_no_noise_is_no_guarantee(tmp_path):
    folder = make_run(tmp_path / "run", UserLevel(0.0, 0.1))
    shown = issue(folder, 1e-5, SHAPE)
    assert shown.epsilon is None
    assert not shown.private
    assert verify(folder) == shown


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (UserLevel(1.0, 0.05), "Entities that several users mention are not protected"),
        (Alg(2.0, 0.05, 946, 12), "at most the stated number"),
    ],
)
def test_other_methods(tmp_path, profile, words):
    folder = make_run(tmp_path / "run", profile)
    shown = issue(folder, 1e-5, SHAPE)
    assert words in shown.statement
    assert shown.missed_mentions == ()
    assert verify(folder) == shown


def test_words_never_promise_more_than_the_number():
    assert rounded(7.9991) == "8"
    assert rounded(7.99949) == "8"
    assert rounded(1.0002) == "1.001"
    assert rounded(0.3) == "0.3"
    assert rounded(1.1, 6) == "1.1"
    assert rounded(0.33, 6, down=True) == "0.33"
    assert rounded(0.3299999, 6, down=True) == "0.329999"
    assert rounded(123456.7) == "1.235e+05"
    assert rounded(0.0) == "0"
    for value in (0.1234567, 1.00001, 99.995, 3e-9, 499.99):
        assert value <= float(rounded(value)) <= value * 1.001
        assert value * 0.999 <= float(rounded(value, down=True)) <= value


# --- tampering ------------------------------------------------------------------------------------


def set_to(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(values: Any) -> None:
        for step in path[:-1]:
            values = values[step]
        values[path[-1]] = value

    return edit


TAMPERED: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("epsilon", set_to("epsilon", value=0.1)),
    ("epsilon", lambda v: v.update(epsilon=v["epsilon"] * (1 - 1e-4))),
    ("epsilon", set_to("epsilon", value=None)),
    ("epsilon_user_alone", set_to("epsilon_user_alone", value=0.01)),
    ("delta", set_to("delta", value=1e-9)),
    ("delta", set_to("delta", value=2.0)),
    ("rounds_planned", set_to("rounds_planned", value=10)),
    ("rounds_spent", set_to("rounds_spent", value=4)),
    ("parameters", set_to("parameters", "noise", value=40.0)),
    ("parameters", set_to("parameters", "entity_share", value=0.1)),
    ("parameters", set_to("parameters", "user_rate", value=0.01)),
    ("parameters", lambda v: v["parameters"].pop("entity_rate")),
    ("parameters", set_to("parameters", "more", value=1)),
    ("private", set_to("private", value=False)),
    ("statement", set_to("statement", value="All is well.")),
    ("unit", set_to("unit", value="everything")),
    ("adjacency", set_to("adjacency", value="any")),
    ("not_protected", lambda v: v["not_protected"].pop()),
    ("not_protected", set_to("not_protected", value=[])),
    ("missed_mentions", lambda v: v["missed_mentions"].pop(0)),
    ("missed_mentions", set_to("missed_mentions", 1, "epsilon", value=0.1)),
    ("missed_mentions", set_to("missed_mentions", 0, "users", value=10)),
    ("missed_mentions", set_to("missed_mentions", 1, "sentences_per_user", value=3)),
    ("missed_mentions", set_to("missed_mentions", 0, "words", value="no sentence")),
    ("caveats", set_to("caveats", value=["none"])),
    ("method", set_to("method", value="user-level")),
    ("run", set_to("run", value="run-2")),
    ("ledger_seal", set_to("ledger_seal", value="0" * 64)),
    ("incidence.digest", set_to("incidence", "digest", value="e" * 64)),
    ("missed_mentions", set_to("setup", "sentences_per_user", value=1)),
    ("missed_mentions", set_to("setup", "sentence_share", value=0.01)),
    ("private", set_to("setup", "noise_source", value="fixed seed")),
    ("caveats", set_to("setup", "vocabulary", value="from the corpus, not covered")),
    ("setup.vocabulary", set_to("setup", "vocabulary", value="whatever")),
    ("caveats", set_to("setup", "labels", value="from the corpus, not covered")),
    ("caveats", set_to("setup", "precision", value="bfloat16")),
    ("kind", set_to("kind", value="diploma")),
    ("format", set_to("format", value=2)),
    ("statement", lambda v: v.pop("statement")),
    ("more", set_to("more", value=1)),
]


@pytest.mark.parametrize(
    ("field", "edit"), TAMPERED, ids=[f"{n} {field}" for n, (field, _) in enumerate(TAMPERED)]
)
def test_tampering_is_found_and_named(folder, field, edit):
    change(folder, edit)
    with pytest.raises(UserError) as found:
        verify(folder)
    assert field in str(found.value)
    assert str(found.value).startswith(str(folder / CERTIFICATE))
    assert "\n" not in str(found.value)


def test_every_field_that_follows_is_tried():
    """A field added to the certificate is either tampered with above or known to be stated."""
    stated = {"setup", "incidence", "versions", "created"}
    tried = {field.split(".")[0] for field, _ in TAMPERED}
    assert set(Certificate.model_fields) <= tried | stated


def test_consistent_words_and_number_are_found_too(folder):
    def lower(values: dict[str, Any]) -> None:
        values["statement"] = values["statement"].replace(rounded(values["epsilon"]), "0.1")
        values["epsilon"] = 0.1

    change(folder, lower)
    with pytest.raises(UserError, match=r"statement is .*; epsilon is 0\.1, not"):
        verify(folder)


def test_what_is_stated_is_taken_as_stated(folder):
    """As the docstring says: nothing in the run's files could contradict these."""

    def restate(values: dict[str, Any]) -> None:
        values["created"] = "1970-01-01"
        values["versions"] = {"uedp": "99"}
        values["setup"]["chosen_by"] = "no one"
        values["incidence"]["users"] = 1

    change(folder, restate)
    verify(folder)


def test_a_ledger_cut_by_whole_lines_is_found_by_its_seal(folder):
    path = folder / RUN_LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in (0, 1, len(lines) - 1):
        path.write_bytes(b"".join(lines[:kept]))
        with pytest.raises(UserError, match=r"ledger_seal is|holds no plan"):
            verify(folder)


def test_a_ledger_sealed_anew_is_found_by_its_seal(folder):
    """Whoever writes the whole chain again gets other seals."""
    path = folder / RUN_LEDGER
    records, _ = chains.read(path)
    path.unlink()
    with Chain(path) as chain:
        for record in records[:-1]:
            chain.append(record)
        chain.append({**records[-1], "note": "harmless"})
    with pytest.raises(UserError, match="ledger_seal is"):
        verify(folder)


def test_a_flipped_byte_of_the_ledger_is_found(folder):
    path = folder / RUN_LEDGER
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x04]) + whole[place + 1 :])
        with pytest.raises(UserError, match="ledger was changed"):
            verify(folder)


def test_a_flipped_byte_of_the_certificate_is_found_or_means_nothing(folder):
    """A byte in four hundred: found, or it says the same, or it was only stated."""
    path = folder / CERTIFICATE
    whole, first = path.read_bytes(), load(folder)
    for place in range(0, len(whole), 401):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        try:
            passed = verify(folder)
        except UserError:
            continue
        # the last digits of an epsilon are rounding
        assert passed.epsilon == pytest.approx(first.epsilon, rel=1e-6)
        assert passed.statement == first.statement


def test_more_rounds_than_planned_are_found(folder):
    with Chain(folder / RUN_LEDGER) as chain:
        chain.append({"kind": "rounds", "first": 5, "count": 16})
    with pytest.raises(UserError, match="21 rounds spent, 20 planned"):
        verify(folder)


def test_rounds_after_the_certificate_need_a_new_one(folder):
    with RunLedger.open(folder, "run-1", SHAPE.digest, PROFILE, 20) as ledger:
        ledger.spend()
    with pytest.raises(UserError, match="rounds_spent is 5, not 6"):
        verify(folder)
    issue(folder, 1e-5, SHAPE, SETUP)
    verify(folder)


def test_a_torn_last_line_of_the_ledger_changes_nothing(folder):
    with (folder / RUN_LEDGER).open("ab") as file:
        file.write(b'{"record": {"count"')
    verify(folder)


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "plan"},
        {"kind": "plan", "incidence": SHAPE.digest, "profile": {"method": "magic"}, "rounds": 1},
        {"kind": "plan", "incidence": SHAPE.digest, "profile": {"method": "rotation"}, "rounds": 1},
        {"kind": "plan", "incidence": SHAPE.digest, "profile": 3, "rounds": 1},
        {"kind": "reserved"},
    ],
)
def test_a_sound_chain_that_is_no_runs_ledger(folder, record):
    (folder / RUN_LEDGER).unlink()
    with Chain(folder / RUN_LEDGER) as chain:
        chain.append(record)
    with pytest.raises(UserError, match=RUN_LEDGER):
        verify(folder)


# --- files ----------------------------------------------------------------------------------------


def test_no_certificate(tmp_path):
    with pytest.raises(UserError, match="no certificate"):
        load(tmp_path)
    with pytest.raises(UserError, match="no such ledger"):
        issue(tmp_path, 1e-5, SHAPE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_not_a_certificate(folder, content):
    (folder / CERTIFICATE).write_bytes(content)
    with pytest.raises(UserError, match=CERTIFICATE):
        load(folder)


def test_the_published_schema_is_the_codes():
    assert json.loads(SCHEMA.read_text()) == schema()


def test_a_certificate_fits_the_schema(folder):
    values = json.loads((folder / CERTIFICATE).read_text())
    fits(values, schema(), schema()["$defs"])
    assert Certificate.model_validate(values) == load(folder)


def fits(value: Any, rule: dict[str, Any], definitions: dict[str, Any]) -> None:
    """As much of JSON schema as the schema uses."""
    if "$ref" in rule:
        rule = definitions[rule["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in rule:
        rule = next(option for option in rule["anyOf"] if option["type"] == kind_of(value))
    if "const" in rule:
        assert value == rule["const"]
    if "enum" in rule:
        assert value in rule["enum"]
    assert kind_of(value) == rule["type"] or (kind_of(value), rule["type"]) == ("integer", "number")
    if isinstance(value, dict):
        assert set(rule.get("required", [])) <= set(value)
        for key, inner in value.items():
            if rule.get("additionalProperties") is False:
                assert key in rule["properties"]
            extra = rule.get("additionalProperties")
            fits(inner, rule.get("properties", {}).get(key, extra), definitions)
    if isinstance(value, list):
        for inner in value:
            fits(inner, rule["items"], definitions)
    if isinstance(value, int | float):
        assert rule.get("minimum", value) <= value <= rule.get("maximum", value)


def kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {**kinds, dict: "object", list: "array", type(None): "null"}[type(value)]
