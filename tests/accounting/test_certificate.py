"""Certificates: what they say follows from the ledger, and what was tampered with is named."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.accounting.plans import planned
from tests.accounting.runs import PROFILE, PUBLIC, SETUP, make_run, plan_of
from uedp.accounting import chain as chains
from uedp.accounting.certificate import (
    CERTIFICATE,
    Certificate,
    issue,
    load_certificate,
    not_checked,
    schema,
    verify,
)
from uedp.accounting.chain import Chain
from uedp.accounting.ledger import RUN_LEDGER, CorpusLedger, RunLedger
from uedp.accounting.missed import MISSED_CASES
from uedp.accounting.proven import MissedProfile, UedpAlgProfile, UserLevelProfile, epsilon
from uedp.accounting.statement import NOT_PROTECTED, rounded
from uedp.errors import UserError

SCHEMA = Path(__file__).parents[2] / "docs" / "certificate.schema.json"


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / CERTIFICATE
    values = json.loads(path.read_text())
    before = copy.deepcopy(values)
    edit(values)
    assert values != before
    path.write_text(json.dumps(values))


# --- what it says ---------------------------------------------------------------------------------


def test_issued_loaded_verified(tmp_path, monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", MISSED_CASES)
    folder = make_run(tmp_path / "run", **SETUP)
    issue(folder)
    shown = load_certificate(folder)
    assert verify(folder) == shown
    assert shown.private
    assert shown.epsilon == epsilon(PROFILE, 20, 1e-5)  # of the plan, not of the rounds so far
    assert shown.epsilon_user_alone == epsilon(UserLevelProfile(20.0, 0.5), 20, 1e-5)
    assert (shown.rounds_planned, shown.rounds_spent) == (20, 5)
    assert shown.parameters["noise"] == 20.0
    assert shown.not_protected == NOT_PROTECTED
    assert shown.caveats == ()
    one, five, whole = shown.missed_mentions
    # of a missed user a round uses two sentences at most: SETUP says so
    for row, users, sentences in ((one, 1, 1), (five, 5, 1), (whole, 1, 2)):
        assert row.users == users
        assert row.epsilon == epsilon(MissedProfile(PROFILE, users, sentences, 0.33), 20, 1e-5)
    assert (one.sentences_per_user, whole.sentences_per_user) == (1, None)
    ladder = [shown.epsilon_user_alone, shown.epsilon, one.epsilon]
    assert ladder == sorted(ladder)
    assert one.epsilon < min(five.epsilon, whole.epsilon)


def test_public_text_is_on_the_certificate(tmp_path):
    folder = make_run(tmp_path / "run", **SETUP, public=PUBLIC)
    shown = issue(folder)
    assert verify(folder) == shown
    assert shown.setup.public == PUBLIC
    assert shown.private
    assert shown.epsilon == epsilon(PROFILE, 20, 1e-5)
    assert set(shown.not_protected) - set(NOT_PROTECTED) == {
        "text that was declared public (see `setup.public`)"
    }
    change(folder, lambda values: values["setup"]["public"].update(declared_by="the officer"))
    with pytest.raises(UserError, match=r"setup\.public\.declared_by is the officer"):
        verify(folder)


@pytest.mark.parametrize(
    ("stated", "recorded"),
    [
        (PUBLIC, ["rounds", "public"]),  # so rounds were not computed from it
        (PUBLIC, ["rounds"]),
        (None, ["public", "rounds"]),
        (PUBLIC.model_copy(update={"steps": 9}), ["public", "rounds"]),
    ],
)
def test_public_text_that_did_not_come_first_is_no_certificate(tmp_path, stated, recorded):
    with RunLedger.open(tmp_path, plan_of(**SETUP, public=stated)) as ledger:
        for kind in recorded:
            ledger.spend() if kind == "rounds" else ledger.record_public(PUBLIC.steps)
    with pytest.raises(UserError, match=r"setup\.public does not agree with the records"):
        issue(tmp_path)


def test_a_run_of_an_earlier_release_is_resumed_and_verified(tmp_path):
    """Its ledger and certificate hold two fields that are gone: null in every run there was."""
    folder = tmp_path / "run"
    folder.mkdir()
    plan = plan_of(**SETUP).record()
    old = {
        **plan,
        "profile": {**plan["profile"], "extended_share": None},
        "setup": {**plan["setup"], "sentence_share": None},
    }
    with Chain(folder / RUN_LEDGER) as chain:
        chain.append(old)
        chain.append({"kind": "rounds", "first": 0, "count": 5})
        chain.append({"kind": "resume", "spent": 5, "setup": old["setup"]})
    with RunLedger.open(folder, plan_of(**SETUP)) as ledger:
        ledger.spend(3)
    assert issue(folder).rounds_spent == 8
    change(folder, set_to("setup", "sentence_share", value=None))
    assert verify(folder).parameters["extended_share"] is None


def test_only_proven_numbers(folder):
    assert "published" not in (folder / CERTIFICATE).read_text()
    assert "published" not in json.dumps(schema())


def test_certified_is_what_was_planned_even_after_stopping_early(tmp_path):
    none, some = (make_run(tmp_path / str(n), spent=n) for n in (0, 19))
    assert issue(none).epsilon == issue(some).epsilon


def test_a_fixed_seed_is_not_private(tmp_path):
    folder = make_run(tmp_path / "run", noise_source="fixed seed")
    shown = issue(folder)
    assert not shown.private
    assert shown.statement.splitlines()[0] == "This run has no privacy guarantee."
    assert any("fixed seed" in caveat for caveat in shown.caveats)
    assert verify(folder) == shown


def test_words_from_the_corpus_are_not_private(tmp_path):
    folder = make_run(tmp_path / "run", vocabulary_origin="from the corpus, not covered")
    shown = issue(folder)
    assert not shown.private
    assert shown.statement.startswith("This run has no privacy guarantee.")
    assert "made from this corpus" in shown.caveats[0]
    assert verify(folder) == shown


def test_the_margin_for_rounding_is_a_parameter(tmp_path):
    assert issue(make_run(tmp_path / "a")).parameters["rounding_margin"] == 0
    shown = issue(make_run(tmp_path / "b", rounding_margin=0.03))
    assert shown.parameters["rounding_margin"] == 0.03


def test_no_noise_is_no_guarantee(tmp_path):
    folder = make_run(tmp_path / "run", UserLevelProfile(0.0, 0.1))
    shown = issue(folder)
    assert shown.epsilon is None
    assert not shown.private
    assert "no finite epsilon" in shown.statement
    assert verify(folder) == shown


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (UserLevelProfile(1.0, 0.05), "Entities that several users mention are not protected"),
        (UedpAlgProfile(2.0, 0.05, 946, 12), "at most the stated number"),
    ],
)
def test_other_methods(tmp_path, profile, words):
    folder = make_run(tmp_path / "run", profile)
    shown = issue(folder)
    assert words in shown.statement
    assert shown.missed_mentions == ()
    assert verify(folder) == shown


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
    ("rounds_spent", set_to("rounds_spent", value=19)),
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
    ("incidence.users", set_to("incidence", "users", value=9)),
    ("incidence.sentences", set_to("incidence", "sentences", value=9)),
    ("incidence.entities", set_to("incidence", "entities", value=9)),
    ("setup.sentences_per_user", set_to("setup", "sentences_per_user", value=1)),
    ("sentence_share", set_to("setup", "sentence_share", value=0.01)),
    ("setup.noise_source", set_to("setup", "noise_source", value="fixed seed")),
    ("setup.vocabulary", set_to("setup", "vocabulary", value="from the corpus, not covered")),
    ("setup.vocabulary", set_to("setup", "vocabulary", value="whatever")),
    ("setup.labels", set_to("setup", "labels", value="from the corpus, not covered")),
    ("setup.precision", set_to("setup", "precision", value="bfloat16")),
    ("setup.rounding_margin", set_to("setup", "rounding_margin", value=0.5)),
    ("setup.texts", set_to("setup", "texts", value="u" * 64)),
    ("setup.entities", set_to("setup", "entities", value=None)),
    ("setup.entities", set_to("setup", "entities", "propagated", value=False)),
    ("setup.entities", set_to("setup", "entities", "detectors", "patterns", value="uedp 2")),
    ("setup.users", set_to("setup", "users", value="assigned at random")),
    ("setup.holders", set_to("setup", "holders", value="clients")),
    ("setup.earlier_runs", set_to("setup", "earlier_runs", value="on other corpora")),
    ("setup.chosen_by", set_to("setup", "chosen_by", value="no one")),
    ("files", set_to("files", value={})),
    ("files", set_to("files", "model.safetensors", value="0" * 64)),
    ("files", lambda v: v["files"].pop("config.json")),
    ("corpus_total", set_to("corpus_total", value=None)),
    ("corpus_total.epsilon", set_to("corpus_total", "epsilon", value=0.1)),
    (
        "growth",
        set_to(
            "growth", value={"epoch": 2, "runs": [], "by_joining_epoch": [], "late_mentions": []}
        ),
    ),
    (
        "corpus_total.by_epoch",
        set_to(
            "corpus_total", "by_epoch", value=[{"epoch": 1, "epsilon": 0.1, "runs": 1, "rounds": 1}]
        ),
    ),
    ("corpus_total.runs", set_to("corpus_total", "runs", value=1)),
    ("kind", set_to("kind", value="diploma")),
    ("format", set_to("format", value=1)),
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
    stated = {"versions", "created"}
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
    records, _ = chains.read_chain(path)
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
    whole, first = path.read_bytes(), load_certificate(folder)
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
        chain.append({"kind": "rounds", "first": 20, "count": 1})
    with pytest.raises(UserError, match="21 rounds spent, 20 planned"):
        verify(folder)


def test_rounds_after_the_certificate_need_a_new_one(tmp_path):
    folder = make_run(tmp_path / "run", **SETUP)
    issue(folder)
    with RunLedger.open(folder, plan_of(**SETUP)) as ledger:
        ledger.spend()
    with pytest.raises(UserError, match="rounds_spent is 5, not 6"):
        verify(folder)
    issue(folder)
    verify(folder)


def test_a_torn_last_line_of_the_ledger_changes_nothing(folder):
    with (folder / RUN_LEDGER).open("ab") as file:
        file.write(b'{"record": {"count"')
    verify(folder)


WHOLE = plan_of().record()


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "plan"},
        {**WHOLE, "profile": {"method": "magic"}},
        {**WHOLE, "profile": {"method": "rotation"}},
        {**WHOLE, "profile": 3},
        {**WHOLE, "profile": None},
        {**WHOLE, "rounds": "many"},
        {**WHOLE, "setup": {}, "shape": 3},
        {**WHOLE, "setup": {"noise_source": "dice"}},
        {**WHOLE, "lineage": 3},
        {"kind": "reserved"},
    ],
)
def test_a_sound_chain_that_is_no_runs_ledger(folder, record):
    (folder / RUN_LEDGER).unlink()
    with Chain(folder / RUN_LEDGER) as chain:
        chain.append(record)
    with pytest.raises(UserError, match=RUN_LEDGER):
        verify(folder)


def test_a_stretch_of_rounds_with_another_setup_is_found(tmp_path):
    """Half precision that was resumed in full precision has another margin."""
    folder = make_run(tmp_path / "run", **SETUP)
    other = plan_of(**{**SETUP, "precision": "bfloat16"}).record()["setup"]
    with Chain(folder / RUN_LEDGER) as chain:
        chain.append({"kind": "resume", "spent": 5, "setup": other})
    with pytest.raises(UserError, match=r"another setup than planned: setup\.precision is"):
        issue(folder)


# --- the corpus -----------------------------------------------------------------------------------


def corpus_run(tmp_path: Path) -> tuple[Path, Path]:
    """A finished run, and the corpus that has it and another in its ledger."""
    corpus, folder = tmp_path / "corpus", tmp_path / "run"
    corpus.mkdir()
    folder.mkdir()
    plan, entered = plan_of(rounds=2, **SETUP), CorpusLedger(corpus)
    entered.reserve(planned("earlier", "d", PROFILE, 3))
    entered.reserve(plan)
    with RunLedger.open(folder, plan, corpus) as ledger:
        ledger.spend(2)
        entered.close("run-1", 2)
        ledger.record_corpus(entered.total(1e-5))
    issue(folder)
    return folder, corpus


def test_the_corpus_total_is_that_of_its_ledger_at_the_time(tmp_path):
    folder, corpus = corpus_run(tmp_path)
    total = verify(folder, corpus=corpus).corpus_total
    assert total is not None
    assert total.runs == 2
    assert total.epsilon == pytest.approx(epsilon(PROFILE, 5, 1e-5), rel=1e-6)
    CorpusLedger(corpus).reserve(planned("later", "d", PROFILE, 9))
    verify(folder, corpus=corpus)


def test_with_the_corpus_a_ledger_that_was_cut_is_found(tmp_path):
    """Rounds made once more after the ledger was cut: without the mark, all agrees."""
    folder, corpus = corpus_run(tmp_path)
    (folder / RUN_LEDGER).unlink()
    with RunLedger.open(folder, plan_of(rounds=2, **SETUP)) as ledger:
        ledger.spend(2)
    issue(folder)
    verify(folder)
    with pytest.raises(UserError, match="it was cut or replaced"):
        verify(folder, corpus=corpus)


def test_another_corpus_is_refused(tmp_path):
    folder, corpus = corpus_run(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="no such ledger"):
        verify(folder, corpus=tmp_path / "other")
    CorpusLedger(tmp_path / "other").reserve(planned("else", "d", PROFILE, 3))
    with pytest.raises(UserError, match="has no run run-1"):
        verify(folder, corpus=tmp_path / "other")
    path = corpus / RUN_LEDGER
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="is not the ledger that corpus_total"):
        verify(folder, corpus=corpus)


def test_what_was_not_checked_is_said(folder):
    shown = verify(folder)
    plain = not_checked(shown, signed=False, corpus=False)
    assert "anybody can write anew" in plain[0]
    assert "`corpus=...`" in plain[1]
    assert len(not_checked(shown, signed=True, corpus=True)) == len(plain) - 2
    assert any("code which ran" in text for text in plain)


# --- files ----------------------------------------------------------------------------------------


def test_a_damaged_certificate_is_issued_again(folder):
    (folder / CERTIFICATE).write_text("{")
    assert issue(folder) == verify(folder)


def test_no_certificate(tmp_path):
    with pytest.raises(UserError, match="no certificate"):
        load_certificate(tmp_path)
    with pytest.raises(UserError, match="no such ledger"):
        issue(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_not_a_certificate(folder, content):
    (folder / CERTIFICATE).write_bytes(content)
    with pytest.raises(UserError, match=CERTIFICATE):
        load_certificate(folder)


def test_the_published_schema_is_the_codes():
    assert json.loads(SCHEMA.read_text()) == schema()


def test_a_certificate_fits_the_schema(folder):
    values = json.loads((folder / CERTIFICATE).read_text())
    fits(values, schema(), schema()["$defs"])
    assert Certificate.model_validate(values) == load_certificate(folder)


def fits(value: Any, rule: dict[str, Any], definitions: dict[str, Any]) -> None:
    """As much of JSON schema as the schema uses."""
    if "$ref" in rule:
        rule = definitions[rule["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in rule:
        options = [
            definitions[option["$ref"].rsplit("/", 1)[1]] if "$ref" in option else option
            for option in rule["anyOf"]
        ]
        rule = next(option for option in options if option["type"] == kind_of(value))
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
