"""What gets out of a model: scores, ranks, membership, and models that were really trained."""

import itertools
import json
import math
import runpy
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread
from torch import Tensor, nn

import uedp
from research.membership import likelihood
from tests.conftest import marked
from uedp.audit import scoring
from uedp.audit.extraction import (
    Gap,
    entity_gaps,
    extract,
    rank_entities,
    rank_secrets,
    written,
)
from uedp.audit.ranks import Ranked, Roc, chance_exposure, rank, roc, share, summary
from uedp.audit.scoring import Completions, Endings, Question, Scorer, likelihoods
from uedp.audit.secrets import (
    Secret,
    fill_mask,
    load_secrets,
    mask_size,
    plant,
    sample_mask,
    save_secrets,
)
from uedp.corpus.sentence import Sentence, Span
from uedp.entities.detectors.patterns import load_patterns
from uedp.errors import UserError
from uedp.models.awd_lstm import AwdLstmConfig, AwdLstmForCausalLM
from uedp.models.scratch import byte_tokenizer
from uedp.report.audit_plots import extraction_figure
from uedp.sample.generate import write_sentences
from uedp.training.config import parse_config
from uedp.training.loop import run

TOKENIZER = byte_tokenizer()
NOTES = [Sentence(f"u{i % 20}", f"note {i} is fine") for i in range(40)]


def llama(folder: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(TOKENIZER),
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
            bos_token_id=TOKENIZER.bos_token_id,
            eos_token_id=TOKENIZER.eos_token_id,
            pad_token_id=TOKENIZER.pad_token_id,
        )
    )
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def model(saved: Path) -> Any:
    from uedp.models.load import load_model

    return load_model(saved).model


class Knowing(nn.Module):
    """A causal model that knows some texts by heart and of all else nothing."""

    config = None

    def __init__(self, texts: Sequence[str], sure: float = 9.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._after: dict[tuple[int, ...], list[int]] = {}
        self._sure = sure
        for text in texts:
            ids = [TOKENIZER.bos_token_id, *TOKENIZER(text)["input_ids"]]
            for i in range(1, len(ids)):
                self._after.setdefault(tuple(ids[:i]), []).append(ids[i])

    def forward(self, input_ids: Tensor) -> Any:
        logits = torch.zeros(*input_ids.shape, len(TOKENIZER))
        for row, ids in enumerate(input_ids.tolist()):
            for i in range(len(ids)):
                logits[row, i, self._after.get(tuple(ids[: i + 1]), [])] = self._sure
        return SimpleNamespace(logits=logits)


def knowing(texts: Sequence[str]) -> Scorer:
    return Scorer(Knowing(texts), TOKENIZER, 128)


# --- planting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("holders", ["new", "existing"])
def test_secrets_are_told_once_by_each_of_their_users(holders: Any) -> None:
    sentences, secrets = plant(NOTES, repeats=(1, 4, 16), each=2, left_out=9, holders=holders)
    assert sentences[: len(NOTES)] == NOTES
    told = sentences[len(NOTES) :]
    assert sorted(secret.repeats for secret in secrets) == [0] * 9 + [1, 1, 4, 4, 16, 16]
    for secret in secrets:
        users = [sentence.user for sentence in told if sentence.text == secret.text]
        assert len(users) == len(set(users)) == secret.repeats
        assert secret.planted == (secret.repeats > 0)
        assert not any(secret.secret in sentence.text for sentence in NOTES)
    known = {sentence.user for sentence in NOTES}
    assert all((sentence.user in known) == (holders == "existing") for sentence in told)
    assert len(told) == 42
    if holders == "new":
        assert len({sentence.user for sentence in told}) == 42


def test_no_two_secrets_share_a_name_or_a_number_and_marks_are_exact() -> None:
    sentences, secrets = plant([], repeats=(1,), each=100, left_out=100)
    assert len({secret.prompt for secret in secrets}) == 200
    assert len({secret.secret for secret in secrets}) == 200
    finder = load_patterns()
    for sentence in sentences:
        name, number = sentence.marks
        assert (name.label, number.label) == ("PERSON", "PHONE")
        own = next(s for s in secrets if s.text == sentence.text)
        assert sentence.text[number.start : number.end] == own.secret
        assert sentence.text == f"Call {sentence.text[name.start : name.end]} at {own.secret} ."
        assert Span(number.start, number.end, "PHONE") in finder.find(sentence.text)


def test_a_seed_gives_the_same_secrets_and_another_others() -> None:
    first, again, other = (plant(NOTES, each=2, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert {s.secret for s in first[1]} != {s.secret for s in other[1]}
    assert {s.repeats for s in first[1]} == {0, 1, 2, 4, 8, 16}


def test_who_is_planted_is_drawn_apart_from_names_and_numbers() -> None:
    few, many = (plant([], repeats=(1,), each=e, left_out=20 - e, seed=3)[1] for e in (5, 15))
    assert [(s.prompt, s.secret) for s in few] == [(s.prompt, s.secret) for s in many]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mask": "5##"}, "too few to hide 100 secrets"),
        ({"each": 0}, "at least one secret"),
        ({"repeats": (0,)}, "at least one secret"),
        ({"prompt": "Call me at"}, "must contain {name}"),
        ({"repeats": (21,), "holders": "existing"}, "only 20 users"),
        ({"repeats": (1,), "each": 15_000, "mask": "######"}, "names for"),
    ],
)
def test_what_cannot_be_planted_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plant(NOTES, **options)


def test_planting_twice_is_refused() -> None:
    sentences, _ = plant(NOTES, each=1)
    with pytest.raises(UserError, match="planted already"):
        plant(sentences, each=1)


def test_numbers_of_a_form() -> None:
    assert mask_size("212-555-####") == 10_000
    assert fill_mask("(#) #-#", 42) == "(0) 4-2"
    assert sample_mask("5#", 10) == [f"5{n}" for n in range(10)]
    some = sample_mask("####", 50, seed=1)
    assert len(set(some)) == 50
    assert all(len(number) == 4 for number in some)


def test_secrets_and_sentences_survive_the_disk(tmp_path: Path) -> None:
    sentences, secrets = plant(NOTES, each=1)
    save_secrets(secrets, tmp_path / "secrets.json")
    assert load_secrets(tmp_path / "secrets.json") == secrets
    for name in ("t.jsonl", "t.jsonl.gz"):
        write_sentences(sentences, tmp_path / name)
        columns = uedp.Columns(marks="marks")
        assert list(uedp.read_sentences(tmp_path / name, columns=columns)) == sentences
    (tmp_path / "not.json").write_text('[{"prompt": 1}]')
    with pytest.raises(UserError, match="not a list of secrets"):
        load_secrets(tmp_path / "not.json")
    with pytest.raises(UserError, match="cannot be read"):
        load_secrets(tmp_path / "none.json")


# --- likelihoods ---------------------------------------------------------------------------------


def slowly(model: Any, prefix: Sequence[int], ending: Sequence[int]) -> float:
    ids = [*prefix, *ending]
    with torch.no_grad():
        steps = model(input_ids=torch.tensor([ids])).logits.double().log_softmax(-1)[0]
    return sum(float(steps[i - 1, ids[i]]) for i in range(len(prefix), len(ids)))


tokens = st.integers(3, 60)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(tokens, min_size=1, max_size=6),
            st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([1, 12, 1000]),
    st.sampled_from([1, 3, 64]),
)
def test_likelihoods_are_sums_over_tokens_whatever_stands_beside(
    model: Any, asked: list[tuple[list[int], list[list[int]]]], room: int, many: int
) -> None:
    questions = [Question(prefix, Endings.of(endings)) for prefix, endings in asked]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_MANY", many)  # from this on, prefixes are read apart
        found = likelihoods(model, questions, room)
    for (prefix, endings), scores in zip(asked, found, strict=True):
        expected = [slowly(model, prefix, ending) for ending in endings]
        assert scores == pytest.approx(expected, abs=1e-4)


def test_endings_with_a_common_context_take_one_row() -> None:
    endings = Endings.of([[int(d) for d in f"{n:04d}"] for n in range(10_000)])
    assert len(endings.contexts) == 1000


def test_a_gap_is_scored_with_what_comes_after(model: Any) -> None:
    scorer = Scorer(model, TOKENIZER, 128)
    names = ["Ann", "Barbara", "An"]
    (found,) = scorer.answer([scorer.question("so ", names, " left .")])
    rows = scorer.tokens([f"so {name} left ." for name in names])
    assert rows[0][0] == TOKENIZER.bos_token_id
    expected = np.array([slowly(model, row[:1], row[1:]) for row in rows])
    assert found - found[0] == pytest.approx(expected - expected[0], abs=1e-4)


def test_candidates_that_begin_each_other_keep_a_token_each(model: Any) -> None:
    scorer = Scorer(model, TOKENIZER, 128)
    prefix, endings = scorer.split(["ab", "abc", "ab"])
    assert len(prefix) == 2
    assert [len(ending) for ending in endings] == [1, 2, 1]


def test_known_cuts_are_used_only_where_they_are_the_same() -> None:
    """A tokenizer that merges what stands before a number with it, after one of the prompts."""

    class Merging:
        bos_token_id, eos_token_id = 1, None

        def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, Any]:
            ids = [[ord(c) % 50 + 3 for c in text] for text in texts]
            for own, text in zip(ids, texts, strict=True):
                if text.startswith("x"):  # its last two letters are one token
                    own[-2:] = [60]
            return {"input_ids": ids}

    scorer = Scorer(Knowing([]), Merging(), 128)
    forms = Completions(scorer, [f"{n:02d}" for n in range(20)])
    first = forms.after("a")
    assert forms.after("bb").endings is first.endings
    other = forms.after("x")
    assert other.endings is not first.endings
    assert max(map(len, other.endings.contexts)) == 0


def test_too_long_a_text_is_refused(model: Any) -> None:
    scorer = Scorer(model, TOKENIZER, 16)
    with pytest.raises(UserError, match="too long for the model, which takes 16"):
        scorer.question("a text of more than that ", ["1", "2"])


def test_one_beam_is_greedy_and_more_find_what_greedy_misses(model: Any) -> None:
    scorer = Scorer(model, TOKENIZER, 128)
    prompts = ["Call", "Call me", "Ask"]
    found = scorer.continuations(prompts, 5)
    for prompt, (text,) in zip(prompts, found, strict=True):
        ids = torch.tensor(scorer.tokens([prompt]))
        length = ids.shape[1]
        for _ in range(5):
            with torch.no_grad():
                best = model(input_ids=ids).logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, best], 1)
        assert text == TOKENIZER.decode(ids[0, length:], skip_special_tokens=True)


class Forgetful(nn.Module):
    """A model without a cache."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, input_ids: Tensor) -> Any:
        return SimpleNamespace(logits=self.inner(input_ids=input_ids).logits)


@pytest.mark.parametrize("kind", ["llama", "lstm"])
def test_what_a_model_keeps_of_its_beams_changes_none_of_them(kind: str, model: Any) -> None:
    if kind == "lstm":
        sizes = {"vocab_size": len(TOKENIZER), "embedding_size": 8, "hidden_size": 12}
        model = AwdLstmForCausalLM(AwdLstmConfig(**sizes)).eval()
    ids = torch.randint(0, len(TOKENIZER), (3, 4), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = (
            Scorer(own, TOKENIZER, 128)._beams(ids, 5, 4) for own in (model, Forgetful(model))
        )
    assert torch.equal(found, expected)
    assert len(set(found[:, :, 0].flatten().tolist())) > 1


def test_beams_are_the_likeliest_of_all_where_there_is_room_for_all(model: Any) -> None:
    scorer = Scorer(model, TOKENIZER, 128)
    ids = torch.tensor(scorer.tokens(["Ask"]))
    words = len(TOKENIZER)
    beams = scorer._beams(ids, 2, words)[0].tolist()
    every = [list(pair) for pair in itertools.product(range(words), repeat=2)]
    (scores,) = likelihoods(model, [Question(ids[0].tolist(), Endings.of(every))], 9999)
    best = [every[i] for i in np.argsort(-scores, kind="stable")[:5]]
    assert beams[:5] == best


# --- ranks ---------------------------------------------------------------------------------------


def test_ranks() -> None:
    assert rank(0.0, np.array([1.0, 2.0, -1.0]))[0] == 3
    assert rank(0.0, np.zeros(9))[0] == 5.5
    position, confidence = rank(math.log(0.5), np.log(np.array([0.25, 0.25])))
    assert position == 1
    assert confidence == pytest.approx(-1)


def ranked(exposed: float, member: bool = True, **options: Any) -> Ranked:
    values: dict[str, Any] = {"group": "1 users", "users": 1, "among": 1024, "space": 1024}
    values["confidence"] = 0.0
    return Ranked(member=member, rank=1024 / 2**exposed, **values | options)


def test_exposure_runs_from_none_to_its_cap() -> None:
    assert ranked(0).exposure == 0
    assert ranked(10).exposure == 10
    assert ranked(10).rank == 1


def test_exposure_by_chance_is_the_mean_over_all_ranks() -> None:
    for among in (1, 7, 100):
        ranks = np.arange(1, among + 1)
        assert chance_exposure(among) == pytest.approx(np.mean(np.log2(among / ranks)))
    assert chance_exposure(10**6) == pytest.approx(1 / math.log(2), abs=1e-4)


def test_a_model_that_knows_secrets_gives_them_away_and_no_others() -> None:
    sentences, secrets = plant([], repeats=(1,), each=5, left_out=20, mask="55-##")
    found = rank_secrets(knowing([s.text for s in sentences]), secrets, beams=2)
    assert [item.member for item in found] == [secret.planted for secret in secrets]
    for item in found:
        assert item.among == item.space == 100
        if item.member:
            assert item.rank == 1
            assert item.exposure == pytest.approx(math.log2(100))
            assert item.extracted
            assert item.in_beams
            assert item.confidence > -0.1
        else:
            assert item.rank == 50.5  # all alike
            assert not item.extracted
            assert not item.in_beams
    told = summary(found)
    assert told["exact"]
    assert told["groups"]["planted"]["extracted"]["share"] == 1
    assert told["groups"]["left out"]["extracted"]["share"] == 0
    assert told["membership"]["area"] == 1


def test_a_sample_of_alternatives_caps_exposure_and_leaves_other_secrets_out() -> None:
    secrets = [Secret("a", "111111", "######", 1, True), Secret("b", "222222", "######", 0, False)]
    # the other's number is likelier than one's own after either prompt
    texts = ["a 222222", "b 111111"]
    found = rank_secrets(knowing(texts), secrets, alternatives=63, beams=1)
    assert [item.among for item in found] == [64, 64]
    assert [item.space for item in found] == [10**6, 10**6]
    assert all(item.exposure <= 6 for item in found)
    for item, first in zip(found, "21", strict=True):
        likelier = sum(number.startswith(first) for number in sample_mask("######", 63))
        assert item.rank == 1 + likelier + (63 - likelier) / 2
    assert not summary(found)["exact"]


def test_many_likelihoods_are_those_of_each_alone(model: Any) -> None:
    _, secrets = plant(NOTES, repeats=(1, 4), each=3, left_out=5, mask="9-###", prompt="{name}")
    secrets.append(Secret("A much longer prompt than the others", "9-123", "9-###", 1, True))
    scorer = Scorer(model, TOKENIZER, 128)
    scorer._max_tokens = 200  # several batches
    found = likelihood(scorer, secrets)
    for secret, own in zip(secrets, found, strict=True):
        ids = [TOKENIZER.bos_token_id, *TOKENIZER(f"{secret.prompt} {secret.secret}")["input_ids"]]
        begin = 1 + len(TOKENIZER(secret.prompt)["input_ids"])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        alone = sum(float(logits[i - 1, ids[i]]) for i in range(begin, len(ids)))
        assert own == pytest.approx(alone, abs=1e-3)
    assert len(likelihood(scorer, [])) == 0


def test_the_likelihood_is_of_the_secret_not_of_its_prompt() -> None:
    known = Secret("Call Ann at", "12345", "#####", 1, True)
    other = Secret("Call Ann at", "54321", "#####", 0, False)
    unknown_prompt = Secret("Ask Bob at", "12345", "#####", 0, False)
    found = likelihood(knowing(["Call Ann at 12345"]), [known, other, unknown_prompt])
    assert found[0] > found[1] + 9
    assert found[0] > found[2] + 9
    assert written(knowing(["Call Ann at 12345"]), [known, other]) == [True, False]


def test_an_extraction_needs_the_whole_secret() -> None:
    secret = Secret("Call Ann at", "12345", "#####", 1, True)
    for text, right in (("Call Ann at 12345 .", True), ("Call Ann at 12344 .", False)):
        (found,) = rank_secrets(knowing([text]), [secret], alternatives=10, beams=1)
        assert found.extracted is right


def test_entities_are_ranked_in_their_sentence_and_against_a_reference() -> None:
    others = ("Bob", "Eva", "Tom")
    gaps = [
        Gap("so ", "Ann", " left", others, "person", True, 3),
        Gap("so ", "Ida", " left", others, "person", False, 1),
    ]
    after = knowing(["so Ann left", "so Bob left"])
    first, second = rank_entities(after, gaps)
    assert (first.rank, second.rank) == (1.5, 1 + 1 + 0.5 * 2)
    assert (first.group, second.group) == ("person, held in", "person, held out")
    assert first.users == 3
    (first, _) = rank_entities(after, gaps, knowing(["so Bob left"]))
    assert first.rank == 1  # that Bob is likely was so before


# --- membership ----------------------------------------------------------------------------------

scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=30)


@given(scores, scores, st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]))
def test_roc(members: list[float], others: list[float], rate: float) -> None:
    own = Roc(np.array(members), np.array(others))
    false, true = own.curve()
    for rates in (false, true):
        assert rates[0] == 0
        assert rates[-1] == 1
        assert (np.diff(rates) >= 0).all()
    wins = np.sign(np.array(members)[:, None] - np.array(others))
    assert own.area() == pytest.approx((1 + wins.mean()) / 2)
    cuts = [t for t in [*others, -9.0] if np.mean(np.array(others) > t) <= rate]
    assert own.hits(rate) == max(np.count_nonzero(np.array(members) > t) for t in cuts)


def test_a_rate_that_too_few_others_can_show_is_marked() -> None:
    found = [ranked(9, confidence=1.0)] * 3 + [ranked(1, member=False, confidence=0.0)] * 50
    rates = summary(found)["membership"]["at"]
    assert [rate["resolved"] for rate in rates] == [False, False, True]
    assert [rate["true_positives"]["share"] for rate in rates] == [1, 1, 1]
    assert rates[0]["true_positives"]["low"] == pytest.approx(0.025 ** (1 / 3))
    with pytest.raises(UserError, match="left out of it"):
        roc(found[:3])


@given(scores, scores, st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]))
def test_hits_follow_from_how_many_others_are_above(
    members: list[float], others: list[float], rate: float
) -> None:
    own = Roc(np.array(members), np.array(others))
    above = own.above()
    assert above.tolist() == [sum(o >= m for o in others) for m in members]
    assert own.hits(rate) == np.count_nonzero(above <= rate * len(others) + 1e-9)


def test_the_interval_of_a_share() -> None:
    found = share([False] * 40)
    assert found == {"share": 0.0, "low": 0.0, "high": pytest.approx(1 - 0.025 ** (1 / 40))}
    found = share([True] * 3 + [False] * 7)  # as tables of Clopper and Pearson have it
    assert (found["low"], found["high"]) == (
        pytest.approx(0.0667, abs=1e-4),
        pytest.approx(0.6525, abs=1e-4),
    )


# --- entities of two corpora ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("corpora")
    found = []
    for name, who in (("train", range(12)), ("other", range(10, 20))):
        sentences = [
            marked(
                f"u{n}", f"today P{n}x met P{n + 1}x in C{n}x", (f"P{n}x", "PER"), (f"C{n}x", "LOC")
            )
            for n in who
        ]
        sentences += [Sentence("long", "word " * 100), marked("u", "A1x", ("A1x", f"X{name}"))]
        found.append(uedp.detect(sentences, folder / name, uedp.Detection(("labels",))))
    return found[0], found[1]


def test_gaps_are_of_entities_that_only_one_corpus_mentions(corpora: tuple[Any, Any]) -> None:
    gaps = entity_gaps(*corpora, others=4)
    inside = [gap for gap in gaps if gap.member]
    outside = [gap for gap in gaps if not gap.member]
    for category, letter in (("person", "P"), ("loc", "C")):
        held = [[g for g in side if g.category == category] for side in (inside, outside)]
        assert len(held[0]) == len(held[1]) == 8
        assert {g.truth for g in held[0]} < {f"{letter}{n}x" for n in range(10)}
        assert {g.truth for g in held[1]} == {f"{letter}{n}x" for n in range(12, 20)}
        for gap in held[0] + held[1]:
            assert gap.before.startswith("today")
            assert "met" in gap.before + gap.after
            numbers = [int(other[1:-1]) for other in gap.others]
            assert sum(n < 10 for n in numbers) == sum(n >= 12 for n in numbers) == 2
            assert gap.truth not in gap.others
            assert gap.users == 1
    assert {gap.category for gap in gaps} == {"person", "loc"}  # A1x is in both


def test_gaps_are_repeatable_and_about_as_many_as_asked_for(corpora: tuple[Any, Any]) -> None:
    assert entity_gaps(*corpora, seed=1) == entity_gaps(*corpora, seed=1)
    assert entity_gaps(*corpora, seed=1) != entity_gaps(*corpora, seed=2)
    few = entity_gaps(*corpora, most=8)
    assert len(few) == 16
    with pytest.raises(UserError, match="hold out more users"):
        entity_gaps(corpora[0], corpora[0])


# --- the benchmark -------------------------------------------------------------------------------


def test_the_benchmark_plants_a_thousand_and_leaves_enough_out() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "extraction.py"
    benchmark = runpy.run_path(str(path))
    _, secrets = plant(
        NOTES,
        repeats=benchmark["REPEATS"],
        each=benchmark["EACH"],
        left_out=benchmark["LEFT_OUT"],
        mask=benchmark["MASK"],
    )
    counts = Counter(secret.repeats for secret in secrets)
    assert counts == {1: 640, 4: 240, 16: 80, 64: 40, 0: 20_000}
    epsilons = {}
    for name, values in benchmark["RUNS"].items():
        if values is not None:
            config = parse_config({**values, "data": {"train": "corpus"}})
            assert name.startswith(config.privacy.method)
            assert config.privacy.seed is None  # a fixed seed has no certificate
            epsilons[name] = config.privacy.epsilon
    assert epsilons == {
        "rotation-8": 8,
        "user-level-8": 8,
        "noiseless": None,
        "rotation-2": 2,
        "user-level-2": 2,
        "deidentified": None,
    }


# --- trained models ------------------------------------------------------------------------------

METHODS = {"noiseless": None, "user-level": 4.0, "rotation": 4.0, "deidentified": None}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, saved: Path) -> tuple[Path, list[Secret]]:
    """The same corpus with numbers that 16 users tell, one model by each method."""
    folder = tmp_path_factory.mktemp("trained")
    sentences, secrets = plant(
        NOTES, repeats=(16,), each=4, left_out=12, mask="9-###", prompt="{name}"
    )
    uedp.detect(sentences, folder / "corpus", uedp.Detection(("labels",)))
    for method, epsilon in METHODS.items():
        config = parse_config(
            {
                "privacy": {"method": method, "rounds": 50, "user_rate": 0.5, "seed": 1}
                | ({} if epsilon is None else {"epsilon": epsilon}),
                "data": {"train": str(folder / "corpus")},
                "model": {"name": str(saved), "train": "full", "max_tokens": 48},
                "optimiser": {"rate": 0.01},
                "run": {"device": "cpu"},
            }
        )
        run(config, folder / method)
    return folder, secrets


def exposure_of(trained: tuple[Path, list[Secret]], method: str) -> dict[str, Any]:
    folder, secrets = trained
    found = extract(folder / method, secrets, beams=1)
    assert found.method == method
    assert found.kind == "secrets"
    if METHODS[method] is None:
        assert found.epsilon is None
    else:
        assert found.epsilon == pytest.approx(METHODS[method], abs=0.05)
    assert not any(secret.secret in json.dumps(found.to_json()) for secret in secrets)
    return summary(found.ranked)


def test_training_without_noise_gives_numbers_away(trained: tuple[Path, list[Secret]]) -> None:
    found = exposure_of(trained, "noiseless")
    assert found["groups"]["planted"]["mean_exposure"] > 9  # of 9.97
    assert found["groups"]["planted"]["extracted"]["share"] >= 0.5
    assert found["groups"]["left out"]["extracted"]["share"] == 0
    assert found["membership"]["area"] > 0.95


def test_what_many_users_tell_escapes_user_level_privacy(
    trained: tuple[Path, list[Secret]],
) -> None:
    found = exposure_of(trained, "user-level")
    # four exposures that nothing raised have this mean in one of 2,600 cases
    assert found["groups"]["planted"]["mean_exposure"] > 3.5


@pytest.mark.parametrize("method", ["rotation", "deidentified"])
def test_rotation_and_deidentification_keep_it(
    trained: tuple[Path, list[Secret]], method: str
) -> None:
    found = exposure_of(trained, method)
    assert found["groups"]["planted"]["mean_exposure"] < 3
    assert found["groups"]["planted"]["extracted"]["share"] == 0


def test_runs_that_cannot_be_attacked_are_refused(
    trained: tuple[Path, list[Secret]], tmp_path: Path
) -> None:
    folder, _ = trained
    with pytest.raises(UserError, match="not a run"):
        extract(tmp_path)
    with pytest.raises(
        UserError, match=r"names no corpus; give one of other users by `held_out=...`"
    ):
        extract(folder / "noiseless")
    (tmp_path / "config.yaml").write_bytes((folder / "noiseless" / "config.yaml").read_bytes())
    with pytest.raises(UserError, match="not finished"):
        extract(tmp_path)


def test_the_figure_shows_runs_beside_each_other(tmp_path: Path) -> None:
    found = [ranked(e % 10, extracted=True, confidence=float(e)) for e in range(20)]
    found += [ranked(e % 5, member=False, extracted=False, confidence=0.0) for e in range(20)]
    for count in (1, 2, 4):
        path = tmp_path / f"{count}.png"
        extraction_figure({f"run {n}": found for n in range(count)}, path)
        assert imread(path).std() > 0
