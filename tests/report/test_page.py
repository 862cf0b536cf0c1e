"""Reports: what they say of every kind of run, and what the public one leaves out."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from tests.accounting.runs import ENTITIES, PUBLIC
from tests.report.runs import ERRORS, MEASURES, PROFILE, finished_run
from tests.report.test_attacks import mechanism, training
from uedp.accounting.attacker import strength_of
from uedp.accounting.decisions import Coverage
from uedp.accounting.proven import (
    FairSharesProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    epsilon,
)
from uedp.accounting.statement import NOT_PROTECTED, PLAIN_WORDS, PUBLIC_NOT_PROTECTED, rounded
from uedp.audit.bounds import GuessCounts
from uedp.errors import UserError
from uedp.report import wording
from uedp.report.page import report
from uedp.report.run_record import RunRecord
from uedp.report.wording import lower_text

HOSTILE = '<script>alert(1)</script> "it\'s" שלום‮ 🙂 ' + "w" * 10_000


class _Text(HTMLParser):
    """The words that a person sees, with a space between elements."""

    def __init__(self):
        super().__init__()
        self.words, self.tags, self._hidden = [], [], 0

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._hidden += tag in ("style", "script")

    def handle_endtag(self, tag):
        self._hidden -= tag in ("style", "script")

    def handle_data(self, data):
        if not self._hidden:
            self.words.append(data)


def text_of(html):
    parser = _Text()
    parser.feed(html)
    return " ".join(" ".join(parser.words).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("runs") / "mails")


@pytest.fixture(scope="module")
def internal(folder):
    return text_of(report([folder]).html)


@pytest.fixture(scope="module")
def public(folder):
    return text_of(report([folder], "public").html)


# --- a person who knows nothing of differential privacy -------------------------------------------

QUESTIONS = {
    "What is protected?": (
        "All text that any one person wrote.",
        "any one sensitive entity, such as a name, a phone number or an address: all sentences of "
        "everybody that mention it",
    ),
    "From whom?": (
        "From anybody who gets the model.",
        "already knows every other text of the collection word for word",
        "It does not protect from those who hold the texts themselves",
    ),
    "How strongly?": (
        "With the model, at most 59% of the guesses are right",
        "Without the model, half of the guesses are right.",
        "at most 4 in 100 of them can be found",
    ),
    "What is not protected?": (
        "Entities are found by software, which misses some.",
        "What the model had learned before, when others trained it.",
        "Which people and sentences mention the same entity",
    ),
    "Which model is this?": (
        "The one whose files have these hashes",
        "A file with any other hash is not covered by this report.",
        "model.safetensors",
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_public_report_answers_five_questions(public, question):
    """The answers stand below the question, before the next one."""
    assert public.count(question) == 1
    start = public.index(question)
    ends = [public.index(other) for other in QUESTIONS if public.index(other) > start]
    own = public[start : min(ends, default=len(public))]
    for answer in QUESTIONS[question]:
        assert answer in own


def test_answers_need_no_word_of_the_field(public):
    """What is said before the terms of the field is plain."""
    first = public[: public.index("In the terms of the field")]
    for term in ("epsilon", "delta", "differential", "noise", "clip", "canary", "incidence"):
        assert term not in first.lower()


def test_the_figures_of_the_public_report_are_the_accountants(folder, public):
    """The test holds them as words above; here is where they come from."""
    planned = RunRecord.read(folder).planned
    strength = strength_of(planned)
    assert 0.58 < strength.success <= 0.59
    assert 0.03 < strength.power[0.01] <= 0.04
    value = epsilon(PROFILE, 40, 1e-5)
    assert f"epsilon {rounded(value, 3)} with delta 10⁻⁵" in public


def test_every_gap_of_the_guarantee_is_explained(public):
    assert set(PLAIN_WORDS) == {*NOT_PROTECTED, PUBLIC_NOT_PROTECTED}
    assert all(PLAIN_WORDS[words] in public for words in NOT_PROTECTED)


# --- the public kind ------------------------------------------------------------------------------


def test_the_public_report_holds_nothing_of_the_corpus(tmp_path):
    measures = {name: value + 0.123 for name, value in MEASURES.items()}
    entities = ENTITIES.model_copy(
        update={
            "detectors": {"spacy:/home/alice/model": "3.8, trained on ACME's mails"},
            "coverage": Coverage(marks=77_123, sentences_found=0.98123, sentences_complete=0.9),
        }
    )
    folder = finished_run(
        tmp_path / "ACME-mails",
        measures=measures,
        run="run-of-alice",
        entities=entities,
        chosen_by="Alice Miller, on ACME's mails",
        public=PUBLIC.model_copy(update={"name": "acme-news.txt", "declared_by": "Bob"}),
    )
    html = report([folder], "public").html
    shown = text_of(html)
    secrets = "ACME acme alice Alice Bob news.txt 77,123 77123 98.1 14,040 5,000 946 distilgpt2"
    for secret in secrets.split():
        assert secret not in html
    assert "123" not in re.sub(r"[0-9a-f]{64}", "", shown)
    assert "PUBLIC REPORT" in shown.upper()
    assert "INTERNAL" not in shown.upper()
    assert html.count('class="chart"') == 0
    assert text_of(report([folder]).html).count("14,040") > 0


def test_the_public_report_does_not_depend_on_what_lies_beside_the_certificate(folder, tmp_path):
    before = report([folder], "public").html
    copy = tmp_path / "another-name"
    shutil.copytree(folder, copy)
    for name in ("metrics.jsonl", "result.json", "config.yaml", "run.json"):
        (copy / name).unlink()
    (copy / "audits").mkdir()
    (copy / "audits" / "mechanism.json").write_text(json.dumps(mechanism()))
    assert report([copy], "public").html == before


def test_settings_that_were_chosen_by_counts_are_not_published(tmp_path):
    chosen_by = "the planner, by counts of this corpus: rounds, user_rate"
    folder = finished_run(tmp_path / "run", chosen_by=chosen_by)
    shown = text_of(report([folder], "public").html)
    assert "The settings are not published" in shown
    assert "58.4%" not in shown  # whole per cent, as of all that is published
    assert "at most 59% of the guesses are right" in shown


# --- what is proven, and what is not --------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (RotationProfile(1.0, 0.05, 0.3), "all sentences of everybody that mention it"),
        (FairSharesProfile(1.0, 0.05, 0.3), "all sentences of everybody that mention it"),
        (UserLevelProfile(1.0, 0.05), "entities that several people mention are not protected"),
        (UedpAlgProfile(2.0, 0.05, 946, 12), "that at most 12 other people mention"),
    ],
    ids=lambda value: getattr(value, "method", ""),
)
def test_every_method_says_what_it_protects(tmp_path, profile, words):
    folder = finished_run(tmp_path / "run", profile)
    shown = text_of(report([folder]).html)
    assert words in shown
    strength = strength_of(RunRecord.read(folder).planned)
    assert f"at most {wording.percent_up(strength.success)} of the guesses" in shown
    assert f"epsilon {rounded(epsilon(profile, 40, 1e-5))}" in shown
    assert ("If the detectors missed the entity" in shown) == (profile.missed(1, 1) is not None)
    public = text_of(report([folder], "public").html)
    assert "12 other" not in public[public.index("What is protected?") : public.index("From whom?")]
    counts = isinstance(profile, UedpAlgProfile)  # epsilon is computed from them
    assert ("the number was counted in the texts and is not published" in public) == counts
    assert ("may depend on counts of them" in public) == counts


def test_randomly_assigned_users_are_not_called_people(tmp_path):
    folder = finished_run(tmp_path / "run", users="assigned at random")
    for kind in ("internal", "public"):
        shown = text_of(report([folder], kind).html)
        assert "it is not known who wrote what" in shown
        assert "any one person wrote" not in shown


@pytest.mark.parametrize("kind", ["internal", "public"])
def test_a_run_that_does_not_verify_says_so_first_and_gives_no_figure(folder, tmp_path, kind):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    (copy / "model.safetensors").write_bytes(b"others")
    made = report([copy], kind)
    assert made.failed == [copy]
    shown = text_of(made.html)
    head = shown[: shown.index("This run does not verify. Do not rely on it.")]
    assert len(head) < 600
    for figure in (
        "guesses are right",
        "proven privacy",
        "58.4%",
        "59%",
        "2.466",
        "2.47",
        "epsilon 3.5",
    ):
        assert figure not in shown
    assert ("model.safetensors: is not the file" in shown) == (kind == "internal")
    assert str(tmp_path) not in shown or kind == "internal"


@pytest.mark.parametrize("kind", ["internal", "public"])
@pytest.mark.parametrize("method", ["noiseless", "deidentified"])
def test_a_run_without_noise_has_no_guarantee(tmp_path, method, kind):
    folder = finished_run(tmp_path / "run", None, method=method)
    shown = text_of(report([folder], kind).html)
    assert "This model has no privacy guarantee." in shown
    assert "guesses are right" not in shown
    assert "proven privacy" not in shown
    if method == "deidentified" and kind == "internal":
        assert "Names were replaced before training. That is not a guarantee" in shown


@pytest.mark.parametrize(
    "setup",
    [{"noise_source": "fixed seed"}, {"vocabulary_origin": "from the corpus, not covered"}],
)
@pytest.mark.parametrize("kind", ["internal", "public"])
def test_a_run_that_exposes_itself_has_no_guarantee(tmp_path, setup, kind):
    shown = text_of(report([finished_run(tmp_path / "run", **setup)], kind).html)
    assert "This model has no privacy guarantee." in shown
    assert "guesses are right" not in shown


def test_a_large_epsilon_is_called_weak(tmp_path):
    folder = finished_run(tmp_path / "run", RotationProfile(0.4, 0.5, 0.3))
    for kind in ("internal", "public"):
        assert "but a weak one" in text_of(report([folder], kind).html)


@pytest.mark.parametrize("kind", ["internal", "public"])
def test_a_run_in_progress_is_not_judged(tmp_path, kind):
    folder = finished_run(tmp_path / "run", rounds_spent=7)
    shown = text_of(report([folder], kind).html)
    assert "There is no model to judge yet." in shown
    assert "guesses are right" not in shown
    assert ("7 of 40 rounds done" in shown) == (kind == "internal")


def test_a_run_that_has_just_begun(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"run": "r"}\n')
    assert "There is no model to judge yet." in text_of(report([folder]).html)
    (folder / "model.safetensors").write_bytes(b"from somewhere")
    assert "does not verify" in text_of(report([folder]).html)


def test_a_published_epsilon_is_marked(folder, tmp_path):
    (tmp_path / "audit.json").write_text(json.dumps(mechanism()))
    shown = text_of(report([folder], audits=[tmp_path / "audit.json"]).html)
    assert "published: 0.5, not a guarantee" in shown
    lower = lower_text(GuessCounts(430, 850, 200, 850).epsilon(1e-5, 0.95))
    assert f"It shows that epsilon is at least {lower} (95% confidence)" in shown


def test_several_attacks_and_their_joint_confidence_are_named(folder, tmp_path):
    other = mechanism(800, 3, plan="0" * 64)
    for name, content in (("a", mechanism()), ("b", training()), ("c", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    shown = text_of(report([folder], audits=sorted(tmp_path.glob("*.json"))).html)
    lower = lower_text(GuessCounts(430, 850, 200, 850).epsilon(1e-5, 0.975))
    assert "2 attacks were tried on this plan. The strongest shows that epsilon is at " in shown
    assert f"at least {lower} (95% confidence that all 2 bounds hold)" in shown
    unused = "rotation, user and entity, attack on the mechanism, 1,000 runs: of another plan"
    assert f"Not used: {unused}" in shown


def test_an_audit_that_refutes_the_guarantee_is_at_the_top(folder, tmp_path):
    (tmp_path / "audit.json").write_text(json.dumps(mechanism(raised=True)))
    shown = text_of(report([folder], audits=[tmp_path / "audit.json"]).html)
    assert shown.index("An audit contradicts the guarantee") < shown.index("The decision")


# --- for the curator ------------------------------------------------------------------------------


def test_the_internal_report(internal):
    for words in (
        "INTERNAL REPORT",
        "Do not publish it",
        "Which entities, and how they were found",
        "spacy:en (spaCy 3, en 3.1)",
        "Not measured. Nobody knows how much the detectors missed",
        "2 runs on its corpus came to epsilon 3.5 together",
        "Signature – not checked The certificate is not signed.",
        "Perplexity on names and on other words",
        "Epsilon spent",
        "Users drawn",
        "Clips reached",
        "privacy.rounds",
    ):
        assert words.lower() in internal.lower(), words


def test_classification_shows_errors(tmp_path):
    html = report([finished_run(tmp_path / "run", measures=ERRORS)]).html
    assert "Errors on names and on other sentences" in html
    assert "12.5%" in text_of(html)


def test_several_runs_are_compared(folder, tmp_path):
    other = finished_run(tmp_path / "other", FairSharesProfile(0.9, 0.05, 0.3), seed=3)
    plain = finished_run(tmp_path / "plain", None)
    html = report([folder, other, plain]).html
    shown = text_of(html)
    assert "Privacy report of 3 runs" in shown
    assert html.count('<details class="run"') == 3
    names = re.findall(r"<g class=\"line\"[^>]*><title>([^<]*)", html)
    assert names.count("plain") == 3
    assert names.count("other") == 4  # and its epsilon


def test_a_failed_run_among_others_is_named_at_the_top(folder, tmp_path):
    copy = tmp_path / "broken"
    shutil.copytree(folder, copy)
    (copy / "ledger.jsonl").write_text("{}\n")
    shown = text_of(report([folder, copy]).html)
    assert "1 of 2 runs do not verify No privacy figure is given for them: broken ." in shown


def test_a_hostile_run_is_shown_as_text(tmp_path):
    folder = finished_run(
        tmp_path / "<img src=x onerror=alert(1)> 'שלום' 🙂",
        chosen_by=HOSTILE,
        entities=ENTITIES.model_copy(update={"detectors": {HOSTILE: HOSTILE}}),
        public=PUBLIC.model_copy(update={"name": HOSTILE, "declared_by": HOSTILE}),
    )
    config = folder / "config.yaml"
    quoted = json.dumps(HOSTILE)
    config.write_text(f"{config.read_text()}extra:\n  ? {quoted}\n  : {quoted}\n")
    hostile = mechanism()
    hostile["audits"][0] |= {"method": HOSTILE, "pair": HOSTILE}
    (tmp_path / "audit.json").write_text(json.dumps(hostile))
    html = report([folder], audits=[tmp_path / "audit.json"]).html
    parser = _Text()
    parser.feed(html)
    assert parser.tags.count("script") == 1
    assert parser.tags.count("img") == 0
    assert HOSTILE[:40] in " ".join(parser.words)
    assert HOSTILE[:12] not in report([folder], "public").html


def test_mistakes_are_one_line(folder, tmp_path):
    for runs, audits in (([], []), ([folder, folder], []), ([folder], [tmp_path / "none.json"])):
        with pytest.raises(UserError) as caught:
            report(runs, audits=audits)
        assert "\n" not in str(caught.value)


def test_an_internal_report_is_private(folder, tmp_path):
    for kind in ("internal", "public"):
        report([folder], kind).write(tmp_path / kind)
    assert (tmp_path / "internal").stat().st_mode & 0o077 == 0
    assert (tmp_path / "public").stat().st_mode & 0o077 != 0


def test_bounds_are_never_rounded_down():
    assert wording.percent_up(0.58401) == "58.5%"
    assert wording.percent_up(0.5) == "50%"
    assert wording.percent_up(0.99966) == "99.97%"
    assert wording.percent_up(0.999991) == "100%"
    assert wording.of_hundred(0.0301) == "4"
    assert wording.delta_text(1e-5) == "10⁻⁵"
    assert wording.delta_text(1.2341e-5) == "1.24·10⁻⁵"
    assert wording.lower_text(0.7126) == "0.712"
    assert wording.chance_text(1e-5) == "1 in 100,000"
    assert wording.chance_text(3e-5) == "1 in 33,333"
    assert wording.factor_text(2980.958) == "2,990"
