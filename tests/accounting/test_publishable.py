"""What may be published of a certificate."""

import math
from typing import get_args

import pytest

from tests.accounting.runs import ENTITIES, FILES, PROFILE, PUBLIC, SETUP, SHAPE, TOTAL, make_run
from uedp.accounting.card import hub_metadata, markdown
from uedp.accounting.certificate import Certificate, issue
from uedp.accounting.decisions import BY_PLANNER, OTHERS_BY, Coverage, EntityList, StrictModel
from uedp.accounting.growth import PastRun
from uedp.accounting.proven import FairSharesProfile, UedpAlgProfile
from uedp.accounting.publishable import (
    CHOSEN,
    PUBLISHED,
    SEVERAL_RUNS,
    WITHHELD,
    PublicFacts,
    public_facts,
    publishable,
    success_bound,
)
from uedp.methods.base import PLANNED


@pytest.fixture(scope="module", autouse=True)
def short_table():
    """One row of missed mentions: they take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uedp.accounting.statement.MISSED_CASES", ((1, 1),))
        yield


def certificate_of(folder, **options) -> Certificate:
    return issue(make_run(folder, rounds=2, spent=2, **{**SETUP, **options}))


@pytest.fixture(scope="module")
def certificate(short_table, tmp_path_factory) -> Certificate:
    return certificate_of(tmp_path_factory.mktemp("run") / "run")


def _fields(model: type[StrictModel], prefix: str = ""):
    for name, info in model.model_fields.items():
        nested = [
            part
            for part in (info.annotation, *get_args(info.annotation))
            if isinstance(part, type) and issubclass(part, StrictModel)
        ]
        if nested:
            yield prefix + name, [*_fields(nested[0], f"{prefix}{name}.")]
        else:
            yield prefix + name, []


def _undecided(fields) -> list[str]:
    decided = {**PUBLISHED, **WITHHELD}
    left = []
    for name, parts in fields:
        if name not in decided:
            left += _undecided(parts) if parts else [name]
    return left


def test_every_field_of_a_certificate_is_decided_on_once():
    assert _undecided(_fields(Certificate)) == []
    assert not PUBLISHED.keys() & WITHHELD.keys()


def test_a_new_field_of_a_certificate_is_not_published_unnoticed():
    class Longer(Certificate):
        losses: tuple[float, ...]

    assert _undecided(_fields(Longer)) == ["losses"]


def test_nothing_counted_measured_or_typed_is_published(tmp_path):
    entities = ENTITIES.model_copy(
        update={
            "detectors": {
                "transformers:/home/acme/secret-ner": "transformers 5.1, files 0123456789ab",
                "/home/acme/own.py:falcon": "falcon 77",
                "spacy:/home/acme/pipe": "spacy 3.8.2, de_acme 1.0",
                "stanza:en": "stanza 1.9, language en",
            },
            "categories": ("person", "projectfalcon"),
            "lists": {"sensitive": EntityList(entries=31337, digest="5ec2e7" * 10)},
            "coverage": Coverage(
                marks=4242, sentences_found=0.8181, sentences_complete=0.7171, precision=0.6161
            ),
        }
    )
    public = PUBLIC.model_copy(update={"name": "acme-mails.txt", "declared_by": "Jane Roe"})
    shape = SHAPE.model_copy(update={"users": 90210, "sentences": 868686, "entities": 515151})
    certificate = certificate_of(
        tmp_path / "run",
        chosen_by="Jane Roe, by trial on /home/acme/mails",
        entities=entities,
        public=public,
        texts="ca5e" * 16,
        rounding_margin=0.0950,
    ).model_copy(update={"incidence": shape})
    planted = (
        *("acme", "falcon", "Jane Roe", "/home", "31337", "5ec2e7", "4242", "81.8", "0.8181"),
        *("71.7", "61.6", "90210", "868686", "515151", "ca5e", "0.095"),
        certificate.incidence.digest,
        certificate.run,
    )
    stated, published = certificate.model_dump_json(), publishable(certificate).model_dump_json()
    for secret in planted:
        assert secret in stated
        assert secret not in published
    facts = publishable(certificate)
    assert facts.entities is not None
    assert [one.kind for one in facts.entities.detectors] == [
        *("a detector of the curator's own", "spacy", "stanza", "transformers")
    ]
    assert facts.entities.detectors[1].packages == ("spacy 3.8.2",)
    assert facts.entities.detectors[2].packages == ("stanza 1.9", "language en")
    assert facts.entities.categories == ("person",)
    assert facts.entities.lists == ("deny-list",)
    assert facts.entities.coverage_measured


def test_the_margin_for_rounding_would_tell_the_number_of_users(tmp_path):
    """Why `rounding_margin` is left out: it is a known multiple of a root."""
    from uedp.training.plan import rounding_margin

    margin = rounding_margin("float32", 946 * 0.5)
    certificate = certificate_of(tmp_path / "run", rounding_margin=margin)
    rate = certificate.parameters["user_rate"]
    assert round((certificate.setup.rounding_margin / 1e-3) ** 2 / rate) == SHAPE.users
    assert "margin" not in publishable(certificate).model_dump_json()


def test_settings_that_the_planner_chose_are_left_out_and_named(tmp_path, certificate):
    assert publishable(certificate).settings == {
        "noise": 20.0,
        "user_rate": 0.5,
        "entity_share": 0.33,
        "entity_rate": 1.0,
        "extended_rate": 1.0,
        "rounds": 2,
        "sentences_per_user": 2,
    }
    assert publishable(certificate).method == "rotation"
    chosen = f"{BY_PLANNER}: user_rate, rounds, method{OTHERS_BY}Jane Roe"
    facts = publishable(certificate_of(tmp_path / "run", chosen_by=chosen))
    assert facts.settings is None
    assert facts.method is None
    assert facts.withheld == "some were chosen by counts of the corpus"
    assert facts.chosen_by_counts == ("user_rate", "rounds", "method")
    assert any("user_rate, rounds, method" in caveat for caveat in facts.caveats)


def test_words_in_place_of_planned_settings_are_not_published(tmp_path):
    chosen = f"{BY_PLANNER}: whatever Jane Roe told me"
    facts = publishable(certificate_of(tmp_path / "run", chosen_by=chosen))
    assert facts.settings is None
    assert "Jane" not in facts.model_dump_json()


def test_the_settings_of_one_of_several_runs_are_not_given_for_all(tmp_path):
    """Who computed an epsilon from them would find less than what is charged."""
    before = PastRun("before", PROFILE, 2, SHAPE.digest, SETUP["texts"])
    certificate = certificate_of(tmp_path / "run", earlier=(before,))
    facts = publishable(certificate)
    assert facts.settings is None
    assert facts.withheld == SEVERAL_RUNS
    assert "settings of its own" in markdown(facts, hub_metadata())
    assert "chosen by counts" not in markdown(facts, hub_metadata())


def test_a_total_of_several_runs_says_what_it_assumes(tmp_path, certificate):
    for runs, said in ((1, False), (2, True)):
        total = TOTAL.model_copy(update={"runs": runs})
        facts = publishable(certificate.model_copy(update={"corpus_total": total}))
        assert ("by what an earlier model shows" in markdown(facts, hub_metadata())) == said


def test_a_margin_in_the_epsilon_counts_users(tmp_path):
    """Of fair shares: with rates and noise, epsilon would tell it."""
    for margin, settings in ((0.0, True), (0.01, False)):
        profile = FairSharesProfile(4.0, 0.1, 0.3, margin=margin)
        facts = publishable(certificate_of(tmp_path / f"run-{margin}", profile=profile))
        assert (facts.settings is not None) == settings
        assert ("depend on counts" in markdown(facts, hub_metadata())) != settings


def test_counts_among_the_parameters_of_a_method_are_left_out(tmp_path):
    profile = UedpAlgProfile(4.0, 0.1, 946, 77)
    facts = publishable(certificate_of(tmp_path / "run", profile=profile))
    assert facts.settings is None
    assert facts.withheld == "this method computes its epsilon from counts of the corpus"
    assert "946" not in facts.model_dump_json()
    assert "77" not in facts.model_dump_json(exclude={"ledger_seal", "files"})


def test_the_names_of_settings_are_those_that_the_planner_chooses():
    assert (*PLANNED, "update_clip") == CHOSEN


def test_epsilons_are_rounded_up(certificate):
    facts = publishable(certificate)
    pairs = [
        (facts.epsilon, certificate.epsilon),
        (facts.epsilon_user_alone, certificate.epsilon_user_alone),
        *zip(
            (row.epsilon for row in facts.missed_mentions),
            (row.epsilon for row in certificate.missed_mentions),
            strict=True,
        ),
    ]
    assert all(true <= shown <= 1.1 * true for shown, true in pairs)
    assert facts.epsilon < 1.01 * certificate.epsilon
    assert facts.guarantee.startswith(f"The model is ({facts.epsilon:g}, 1e-05)-differentially")


def test_a_run_without_guarantee_publishes_no_epsilon(tmp_path):
    facts = publishable(certificate_of(tmp_path / "run", noise_source="fixed seed"))
    assert not facts.private
    assert facts.why_not == "the noise came from a fixed seed"
    assert (facts.epsilon, facts.delta, facts.missed_mentions) == (None, None, ())
    assert facts.guarantee == "This model has no privacy guarantee."


def test_a_run_without_noise_has_no_certificate(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "metrics.jsonl").write_text('{"loss": 3}\n')
    facts = public_facts(tmp_path)
    assert facts.guarantee == "This model has no privacy guarantee."
    assert facts.why_not == "it was trained without noise"
    assert set(facts.files) == set(FILES)


def test_a_signature_is_published_as_it_is_and_nothing_else_in_its_place(certificate):
    assert publishable(certificate, "b4gd" * 22 + "\n").signature == "b4gd" * 22
    assert publishable(certificate, "signed by Jane Roe").signature is None
    assert publishable(certificate).signature is None


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-5), (3.0, 0.1), (800, 1e-5)])
def test_no_attacker_is_right_more_often_than_the_bound_and_one_is_as_often(epsilon, delta):
    """Randomised response that shows the truth with probability delta is the worst mechanism."""
    honest = 1 / (1 + math.exp(-epsilon))
    assert success_bound(epsilon, delta) == pytest.approx(delta + (1 - delta) * honest)


def test_facts_are_frozen(certificate):
    with pytest.raises(ValueError, match="frozen"):
        publishable(certificate).epsilon = 1.0
    assert PublicFacts.model_validate_json(publishable(certificate).model_dump_json())
