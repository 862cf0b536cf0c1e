import contextlib
import math

import numpy as np
import pytest
import torch

from tests.models import tiny
from uedp.errors import UserError
from uedp.mechanism.packing import SHARED_ROWS, PackedLosses
from uedp.models.awd_lstm import AwdLstmConfig, AwdLstmForCausalLM
from uedp.training.mentions import Mentions
from uedp.training.tasks import (
    Classification,
    NextWord,
    build_task,
)

TEXTS = ["the cat sat", "", "a", "the other theory was longer by far", "   "]
LABELS = ["x", "y", "y", "x", "x"]
EMPTY = [1, 4]
ALL = np.arange(len(TEXTS))


def token_ids(texts, tokenizer, max_tokens):
    task = NextWord(texts, tokenizer, max_tokens)
    return [task._ids[place].tolist() for place in range(len(texts))], task._first


def lstm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AwdLstmConfig(vocab_size=tiny.WORDS, embedding_size=8, hidden_size=12)
        return AwdLstmForCausalLM(config).eval()


def words(max_tokens: int = 64) -> NextWord:
    return NextWord(TEXTS, tiny.tokenizer(), max_tokens)


def classes(texts=TEXTS, labels=LABELS, names=("x", "y")) -> Classification:
    return Classification(texts, labels, names, tiny.tokenizer(pad_token="<|end|>"), 64)


CASES = {
    "gpt2": (tiny.gpt2, words),
    "llama": (tiny.llama, words),
    "opt": (tiny.opt, words),
    "lstm": (lstm, words),
    "bert": (tiny.bert, classes),
    "gpt2 classifier": (lambda: tiny.gpt2(labels=2), classes),
}


@pytest.fixture(params=CASES)
def case(request):
    model, task = CASES[request.param]
    return model(), task()


def gradient(loss, model):
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [g for g in found if g is not None]


def test_a_loss_depends_on_its_sentence_only(case):
    """Whatever stands beside it, in whichever order, however much padding that means."""
    model, task = case
    together = task.losses(model, ALL)
    alone = torch.cat([task.losses(model, ALL[[i]]) for i in ALL])
    backwards = task.losses(model, ALL[::-1].copy()).flip(0)
    assert torch.allclose(together, alone, atol=1e-4)
    assert torch.allclose(together, backwards, atol=1e-4)
    assert float(together.detach().max()) > 0.01


def test_an_empty_sentence_has_no_loss_and_no_gradient(case):
    """Nor has the end token, nor a label, nor any regulariser."""
    model, task = case
    model.train()
    losses = task.losses(model, ALL)
    assert losses[EMPTY].tolist() == [0.0, 0.0]
    assert all(float(g.abs().max()) == 0 for g in gradient(losses[EMPTY].sum(), model))
    others = task.losses(model, ALL)[[0, 2, 3]].sum()
    assert max(float(g.abs().max()) for g in gradient(others, model)) > 0


def test_a_sentence_is_normalised_by_its_own_tokens():
    model, task = tiny.gpt2(), words()
    ids, start = token_ids(TEXTS, tiny.tokenizer(), 64)
    for place in (0, 2, 3):
        row = torch.tensor([ids[place]])
        logits = model(input_ids=row).logits[0, :-1]
        expected = torch.nn.functional.cross_entropy(logits, row[0, 1:])
        assert torch.allclose(task.losses(model, ALL[[place]])[0], expected, rtol=1e-4)
    assert start == 0


# --- sentences that share rows -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_sharing_rows_changes_neither_losses_nor_gradients(kind):
    model, task = CASES[kind][0](), words()
    expected = task.losses(model, ALL)
    weights = torch.arange(1.0, len(TEXTS) + 1)
    by_row = gradient((expected * weights).sum(), model)
    packing = task.packing_for(model)
    assert packing.shares_rows
    found = task.losses(model, ALL, packing)
    assert isinstance(found, PackedLosses)
    assert found.sentences.end < expected.numel() * int(task.lengths.max())
    assert torch.allclose(found.losses, expected, atol=1e-5)
    for ours, theirs in zip(gradient((found.losses * weights).sum(), model), by_row, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_sentences_in_a_row_share_no_gradient(kind):
    model, task = CASES[kind][0](), words()
    seen = []
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(lambda _, __, output: seen.append(output) or output)
    found = task.losses(model, ALL[[3, 0, 2]], SHARED_ROWS)
    (received,) = torch.autograd.grad(found.losses[1], seen[0])
    received = received.flatten(0, 1).abs().sum(1)
    own = set(found.sentences.places[1][found.sentences.real[1]].tolist())
    assert {place for place, value in enumerate(received.tolist()) if value} <= own
    assert float(received.sum()) > 0


# --- tokens --------------------------------------------------------------------------------------


def test_a_sentence_has_start_and_end_tokens():
    tokenizer = tiny.tokenizer()
    (ids,), start = token_ids(["the cat"], tokenizer, 64)
    assert ids[0] == start == tokenizer.eos_token_id == ids[-1]
    assert tokenizer.decode(ids[1:-1]) == "the cat"


def test_a_truncated_sentence_has_no_end_token():
    for most in (2, 3, 7):
        (cut, short), _ = token_ids(["abcdefghijklmnop", "a"], tiny.tokenizer(), most)
        assert len(cut) == most
        assert 0 not in cut[1:]
        assert short == [0, cut[1], 0][:most]


def test_an_empty_sentence_has_no_tokens():
    class Tokenizer:
        bos_token_id, eos_token_id = None, 9

        def __call__(self, texts, **options):
            return {"input_ids": [[7, 8] for _ in texts]}

        def __len__(self):
            return 10

        def get_vocab(self):
            return {"a": 7, "b": 8}

    assert token_ids(["", " \n", "a"], Tokenizer(), 8) == ([[], [], [9, 7, 8, 9]], 9)


def test_a_tokenizer_without_start_and_end_tokens_is_refused():
    with pytest.raises(UserError, match="neither a start nor an end token"):
        token_ids(["a"], tiny.tokenizer(unk_token="a"), 8)


def test_padding_has_no_label():
    batch = words().batch(np.array([2, 3]))
    assert batch["input_ids"].shape[1] == batch["labels"].shape[1] + 1
    assert (batch["labels"][0] != -100).sum() == 2  # the letter and the end
    assert (batch["labels"][1] != -100).all()


# --- evaluation ----------------------------------------------------------------------------------


def test_perplexity_is_over_all_tokens_and_words():
    model, task = tiny.gpt2(), words()
    total = tokens = 0.0
    for place, ids in enumerate(token_ids(TEXTS, tiny.tokenizer(), 64)[0]):
        if ids:
            total += float(task.losses(model, ALL[[place]]).detach()) * (len(ids) - 1)
            tokens += len(ids) - 1
    for room in (1, 40, 10_000):  # however it is batched
        found = task.evaluate(model, contextlib.nullcontext, room)
        assert found["tokens"] == tokens
        assert found["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-4)
        assert found["bits per token"] == pytest.approx(total / tokens / math.log(2), rel=1e-4)
        assert found["perplexity per word"] == pytest.approx(math.exp(total / 11), rel=1e-4)


def test_what_is_truncated_is_counted():
    texts = ["abcdefghij", "abc", "", "abcd", "abcde"]
    task = NextWord(texts, tiny.tokenizer(), 5)  # four tokens and the start
    full = sum(map(len, token_ids(texts, tiny.tokenizer(), 64)[0])) - 2 * 4
    kept = [min(n, 4) for n in (10, 3, 0, 4, 5)]
    if full == 22:  # a token for each letter
        found = task.truncation
        assert (found.sentences, found.of_sentences) == (2, 5)
        assert (found.tokens, found.of_tokens) == (22 - sum(kept), 22)
    assert task.truncation.warning(5).startswith("2 of 5 sentences are longer than 5 tokens: ")
    assert NextWord(texts, tiny.tokenizer(), 64).truncation.warning(64) is None
    classes = Classification(texts, ["x"] * 5, ("x", "y"), tiny.tokenizer(), 4)
    assert classes.truncation.tokens == task.truncation.tokens


def test_truncated_words_are_not_counted():
    model, tokenizer = tiny.gpt2(), tiny.tokenizer()
    cut = NextWord(["aaa bbb ccc ddd eee"], tokenizer, 9)  # start, and eight of nineteen letters
    found = cut.evaluate(model, contextlib.nullcontext, 100)
    loss = math.log(found["perplexity"]) * found["tokens"]
    assert found["tokens"] == 8
    assert math.log(found["perplexity per word"]) == pytest.approx(loss / 2, rel=1e-6)


def test_the_error_rate_is_over_sentences_with_text_and_label():
    texts, labels = ["a b", "c", "", "d e", "f"], ["x", "y", "x", None, "y"]
    task = Classification(texts, labels, ["x", "y"], tiny.tokenizer(pad_token="<|end|>"), 64)
    model = tiny.bert()
    found = task.evaluate(model, contextlib.nullcontext, 7)
    guesses, losses = [], []
    for place, label in ((0, 0), (1, 1), (4, 1)):
        batch = task.batch(np.array([place]))
        with torch.no_grad():
            output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits = output.logits
        guesses.append(int(logits.argmax()) != label)
        losses.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor([label]))))
    assert found["sentences"] == 3
    assert found["error rate"] == pytest.approx(np.mean(guesses))
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


# of "the cat sat": cat; of "the other theory was longer by far": other, theory, and both together
MENTIONS = Mentions.of_rows(
    [(0, 4, 7, "person"), (3, 4, 9, "person"), (3, 10, 16, "org"), (3, 4, 16, "misc")]
)


def one_token_at_a_time(model, text, spans, max_tokens=64):
    """The losses of name tokens and of others, by the characters that the tokens spell."""
    tokenizer = tiny.tokenizer()
    (ids,), _ = token_ids([text], tokenizer, max_tokens)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
    place, names, others = 0, [], []
    for token, loss in zip(ids[1:], losses.tolist(), strict=True):
        end = place + len(tokenizer.decode([token], skip_special_tokens=True))
        inside = any(place < stop and start < end for start, stop in spans)
        (names if inside else others).append(loss)
        place = end
    return names, others


@pytest.mark.parametrize("kind", ["gpt2", "lstm"])
@pytest.mark.parametrize("most", [64, 14])
def test_perplexity_on_names_and_on_other_tokens(kind, most):
    model = CASES[kind][0]()
    task = NextWord(TEXTS, tiny.tokenizer(), most, mentions=MENTIONS)
    names, others = [], []
    for text, spans in ((0, [(4, 7)]), (2, []), (3, [(4, 16)])):
        own = one_token_at_a_time(model, TEXTS[text], spans, most)
        names += own[0]
        others += own[1]
    for room in (1, 10_000):
        found = task.evaluate(model, contextlib.nullcontext, room)
        assert found["name tokens"] == len(names)
        assert found["tokens"] == len(names) + len(others)
        assert found["perplexity on names"] == pytest.approx(math.exp(np.mean(names)), rel=1e-4)
        on_others = found["perplexity on other tokens"]
        assert on_others == pytest.approx(math.exp(np.mean(others)), rel=1e-4)


def test_perplexities_on_names_and_on_the_rest_combine_to_the_whole():
    model = tiny.gpt2()
    task = NextWord(TEXTS, tiny.tokenizer(), 64, mentions=MENTIONS)
    found = task.evaluate(model, contextlib.nullcontext)
    plain = words().evaluate(model, contextlib.nullcontext)
    assert {key: found[key] for key in plain} == plain  # to the last bit
    assert next(iter(found)) == "perplexity"
    names, tokens = found["name tokens"], found["tokens"]
    total = names * math.log(found["perplexity on names"])
    total += (tokens - names) * math.log(found["perplexity on other tokens"])
    assert math.exp(total / tokens) == pytest.approx(found["perplexity"], rel=1e-13)


def test_perplexity_by_category():
    model, every = tiny.gpt2(), {}
    for category, own in (("person", {0: (4, 7), 3: (4, 9)}), ("org", {3: (10, 16)})):
        parts = [one_token_at_a_time(model, TEXTS[n], [span])[0] for n, span in own.items()]
        every[category] = [loss for part in parts for loss in part]
    task = NextWord(TEXTS, tiny.tokenizer(), 64, mentions=MENTIONS)
    found = task.evaluate(model, contextlib.nullcontext)
    for category, losses in every.items():
        assert found[f"name tokens: {category}"] == len(losses)
        expected = math.exp(np.mean(losses))
        assert found[f"perplexity on names: {category}"] == pytest.approx(expected, rel=1e-4)
    assert found["name tokens: misc"] < found["name tokens"]


@pytest.mark.parametrize("rows", [[], [(1, 0, 0, "org")], [(3, 30, 33, "org")]])
def test_without_name_tokens_only_the_whole_is_measured(rows):
    task = NextWord(TEXTS, tiny.tokenizer(), 9, mentions=Mentions.of_rows(rows))
    found = task.evaluate(tiny.gpt2(), contextlib.nullcontext)
    assert list(found) == ["perplexity", "perplexity per word", "bits per token", "tokens"]


def test_error_rates_with_and_without_entities():
    texts, labels = ["a b", "c", "", "d e", "f", "g"], ["x", "y", "x", None, "y", "x"]
    mentions = Mentions.of_rows(
        [(0, 0, 1, "person"), (2, 0, 0, "loc"), (3, 0, 1, "loc"), (4, 0, 1, "org")]
    )
    model, tokenizer = tiny.bert(), tiny.tokenizer(pad_token="<|end|>")
    task = Classification(texts, labels, ["x", "y"], tokenizer, 64, mentions=mentions)
    guesses = {}
    for place in (0, 1, 4, 5):
        batch = task.batch(np.array([place]))
        label = batch.pop("labels")
        with torch.no_grad():
            guesses[place] = float(model(**batch).logits.argmax() != label)
    for room in (1, 100):
        found = task.evaluate(model, contextlib.nullcontext, room)
        assert found["error rate"] == pytest.approx(np.mean(list(guesses.values())))
        assert found["error rate with entities"] == pytest.approx((guesses[0] + guesses[4]) / 2)
        assert found["error rate without entities"] == pytest.approx((guesses[1] + guesses[5]) / 2)
        assert found["sentences with entities"] == 2
        assert found["error rate with entities: person"] == guesses[0]
        assert found["sentences with entities: org"] == 1
        assert "sentences with entities: loc" not in found  # without a text or a label
    plain = Classification(texts, labels, ["x", "y"], tokenizer, 64)
    whole = plain.evaluate(model, contextlib.nullcontext)
    assert list(whole) == ["error rate", "loss", "sentences"]
    assert {key: found[key] for key in whole} == pytest.approx(whole)


def test_evaluating_nothing_is_refused():
    with pytest.raises(UserError, match="every sentence is empty"):
        NextWord(["", " "], tiny.tokenizer(), 8).evaluate(tiny.gpt2(), contextlib.nullcontext, 9)
    nothing = classes(["", "a"], ["x", None])
    with pytest.raises(UserError, match="no sentence has text and a label"):
        nothing.evaluate(tiny.bert(), contextlib.nullcontext, 9)
    with pytest.raises(UserError, match="every sentence is empty"):
        NextWord([], tiny.tokenizer(), 8).evaluate(tiny.gpt2(), contextlib.nullcontext, 9)


def test_evaluation_leaves_no_graph_and_no_gradient():
    model = tiny.gpt2()
    words().evaluate(model, contextlib.nullcontext, 100)
    assert all(p.grad is None for p in model.parameters())


# --- labels --------------------------------------------------------------------------------------


def test_labels_are_numbered_in_the_order_of_names():
    for names in (["x", "y"], ["y", "x"]):
        expected = [names.index(label) for label in LABELS]
        found = classes(names=names).batch(ALL)["labels"].tolist()
        assert [found[i] for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]
        assert [found[i] for i in EMPTY] == [-100, -100]


def test_a_sentence_without_a_label_is_ignored():
    """Emptying a sentence takes its label too; that must not stop a run."""
    task, model = classes(["a", "b"], [None, "x"]), tiny.bert()
    losses = task.losses(model, np.arange(2))
    assert float(losses[0].detach()) == 0
    assert all(float(g.abs().max()) == 0 for g in gradient(losses[0], model))


def test_an_unknown_label_is_refused_by_name():
    with pytest.raises(UserError, match="label 'z': not one of x, y; correct it"):
        classes(["a", "b"], ["x", "z"])


def test_build_task_makes_both_kinds():
    tokenizer = tiny.tokenizer(eos_token="<|end|>", pad_token="<|end|>")
    assert isinstance(build_task("next-word", TEXTS, LABELS, [], tokenizer, 8), NextWord)
    assert isinstance(
        build_task("classification", TEXTS, LABELS, ["x", "y"], tokenizer, 8), Classification
    )
