"""Rounds end to end: chunks, empty rounds, bounds, and that training reaches what it should."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.mechanism.clip.test_engine import Net, language_models, ragged, token_losses
from tests.models import tiny
from uedp.errors import UserError
from uedp.incidence import Incidence, Rows
from uedp.mechanism.clip import Engine
from uedp.mechanism.noise import SecureNoise, SeededNoise
from uedp.mechanism.release import Clips, release
from uedp.mechanism.sampling import Participants, Sampling, draw, draw_whole
from uedp.training.plan import rounding_margin
from uedp.training.tasks import NextWord

SENTENCES = 24


class Task:
    """A small net and sentences for it."""

    def __init__(self, seed: int = 0, model: nn.Module | None = None) -> None:
        torch.manual_seed(seed)
        self.model = model or Net(8, 12, True, "layer", True)
        self.lengths = np.random.default_rng(seed).integers(2, 9, SENTENCES)
        self.ids, mask = ragged(self.lengths.tolist(), seed)
        self.labels = self.ids.masked_fill(~mask, -100)
        self.engine = Engine(self.model)

    def losses(self, which) -> Tensor:
        return token_losses(self.model(self.ids[which]), self.labels[which])


def participants(counts: list[int], weight: float = 1.0) -> Participants:
    total = sum(counts)
    rows = Rows(np.concatenate([[0], np.cumsum(counts)]).astype(int), np.arange(total))
    return Participants(np.arange(len(counts)), rows, np.full(total, weight))


NO_NOISE = (SecureNoise(), 0.0)


def summed(task: Task, who: Participants, clips: Clips, max_tokens=None) -> Tensor:
    lengths = task.lengths[who.sentences.values]
    sums, _ = release(task.engine, who, task.losses, lengths, clips, *NO_NOISE, max_tokens)
    return torch.cat([s.flatten() for s in sums])


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(
        lambda c: 0 < sum(c) <= SENTENCES
    ),
    max_tokens=st.integers(1, 120),
    share=st.sampled_from([0.1, 0.5, 2.0]),
    update=st.sampled_from([0.05, 1.0, 50.0]),
)
def test_the_sum_does_not_depend_on_the_chunks(counts, max_tokens, share, update):
    task, clips = Task(), Clips(update, share)
    whole = summed(task, participants(counts), clips, 10**9)
    chunked = summed(task, participants(counts), clips, max_tokens)
    torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-5 * update)


@pytest.mark.parametrize("fits", [1, 3, 7])
def test_less_memory_than_thought(fits, monkeypatch):
    """A device that runs out of memory beyond a few sentences."""
    task, who, clips = Task(), participants([5, 2, 8, 0, 4]), Clips(0.5, 0.4)
    whole = summed(task, who, clips)
    real = task.engine.clipped_sum

    def cramped(losses, owners, *rest):
        if len(owners) > fits:
            raise torch.OutOfMemoryError("out of memory")
        return real(losses, owners, *rest)

    monkeypatch.setattr(task.engine, "clipped_sum", cramped)
    torch.testing.assert_close(summed(task, who, clips), whole, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("max_tokens", [None, 20])
@pytest.mark.parametrize("share", [0.2, 2.0])
def test_no_user_moves_the_sum_by_more_than_its_clip(max_tokens, share):
    task, clips = Task(), Clips(0.3, share)
    for counts in ([9], [1], [3]):
        moved = summed(task, participants(counts), clips, max_tokens)
        assert float(moved.norm()) <= 0.3 * (1 + 1e-5)


def test_sentences_of_one_entity_stay_within_its_share():
    """Four sentences that mention it, each clipped to a quarter of the share."""
    task, clips = Task(), Clips(1.0, 0.4)
    with_it = summed(task, participants([4], weight=1 / 4), clips)
    assert float(with_it.norm()) <= 0.4 * (1 + 1e-5)
    assert float(summed(task, participants([4]), clips).norm()) > 0.4


EMPTY = {
    "no user drawn": participants([]),
    "no sentence selected": participants([0, 0]),
}


@pytest.mark.parametrize("who", EMPTY.values(), ids=EMPTY)
def test_empty_rounds_are_noised_like_any_other(who):
    task = Task()
    sums, stats = release(
        task.engine,
        who,
        task.losses,
        np.zeros(0, int),
        Clips(0.5, 0.2),
        SeededNoise(1),
        3.0,
    )
    values = torch.cat([s.flatten() for s in sums])
    assert values.numel() == sum(p.numel() for p in task.engine.parameters)
    # standard deviation 1.5: its estimate from n values has relative deviation 1/sqrt(2n)
    assert float(values.std()) == pytest.approx(1.5, rel=6 / np.sqrt(2 * values.numel()))
    assert stats.sentences == 0


def test_a_parameter_no_gradient_reaches_is_noised():
    task = Task()
    task.model.unused = nn.Linear(5, 5)
    task.engine = Engine(task.model)
    sums, _ = release(
        task.engine,
        participants([2, 1]),
        task.losses,
        task.lengths[:3],
        Clips(1.0, 1.0),
        SeededNoise(1),
        1.0,
    )
    assert all(bool((s != 0).all()) for s in sums)


def trained(how: str) -> nn.Module:
    import peft

    torch.manual_seed(0)
    model = language_models()["llama, grouped-query, tied"]()
    if how == "lora":
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj"])
        )
    elif how == "last layer":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("layers.1." in name)
    return model


@pytest.mark.parametrize("how", ["full", "lora", "last layer"])
def test_a_step_changes_what_is_trained_and_nothing_else(how):
    """With hardly any noise: each parameter meant to train moves by its own gradient."""
    model = trained(how)
    task = Task(model=model)
    task.losses = lambda which: token_losses(  # type: ignore[method-assign]
        model(input_ids=task.ids[which]).logits, task.labels[which]
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    names = {p: name for name, p in model.named_parameters()}
    for _ in range(2):  # a LoRA adapter's first factor moves once its second is not zero
        sums, _ = release(
            task.engine,
            participants([3, 2]),
            task.losses,
            task.lengths[:5],
            Clips(1.0, 1.0),
            SeededNoise(1),
            1e-12,
        )
        with torch.no_grad():
            for parameter, total in zip(task.engine.parameters, sums, strict=True):
                parameter.sub_(total)
    meant = {names[p] for p in task.engine.parameters}
    moved = {
        n for n, p in model.named_parameters() if float((p.detach() - before[n]).norm()) > 1e-6
    }
    assert moved == meant


@pytest.mark.parametrize(
    ("clips", "why"), [((0.0, 1.0), "update clip"), ((1.0, 0.0), "share"), ((1.0, 2.5), "share")]
)
def test_clips_out_of_range(clips, why):
    with pytest.raises(UserError, match=why):
        Clips(*clips)


def test_stats_say_how_often_clipping_took_effect():
    task = Task()
    round_ = (task.engine, participants([2, 0, 1]), task.losses, task.lengths[:3])
    _, tight = release(*round_, Clips(1e-4, 2.0), *NO_NOISE)
    _, loose = release(*round_, Clips(1e4, 2.0), *NO_NOISE)
    assert (tight.users, tight.sentences) == (3, 3)
    assert tight.sentences_clipped == 1.0
    assert tight.users_clipped == pytest.approx(2 / 3)
    assert tight.mean_update == pytest.approx(2 / 3)
    assert loose.sentences_clipped == loose.users_clipped == 0.0
    assert 0 < loose.mean_update < 1e-2


def test_rotation_bounds_what_an_entity_moves():
    """From the draw on: emptying the sentences of one entity moves the sum by its share at most."""
    rng = np.random.default_rng(0)
    owners = rng.integers(0, 5, SENTENCES)
    mentions = np.array([(s, e) for s in range(SENTENCES) for e in range(3) if rng.random() < 0.4])
    incidence = Incidence.build(owners, mentions[:, 0], mentions[:, 1], 5, 3)
    task, clips = Task(), Clips(0.5, 0.3)
    for key in range(10):
        who = draw(incidence, Sampling(1.0, per_entity=None), np.random.default_rng(key), key)
        whole = summed(task, who, clips)
        for entity in range(3):
            named = {int(s) for s, e in mentions if e == entity}
            emptied = Task()
            real = emptied.losses
            emptied.losses = lambda which, real=real, named=named: (
                real(which)
                * torch.tensor(  # type: ignore[method-assign]
                    [float(s not in named) for s in which]
                )
            )
            moved = summed(emptied, who, clips) - whole
            assert float(moved.norm()) <= 0.3 * 0.5 * (1 + 1e-4)


def test_user_level_draws_take_all_sentences():
    owners = np.array([0, 0, 1, 1, 1, 2])
    incidence = Incidence.build(owners, np.array([0, 2]), np.array([0, 0]), 3, 1)
    rng = np.random.default_rng(0)
    who = draw_whole(incidence, Sampling(1.0), rng, 5)
    assert [who.sentences[i].tolist() for i in range(3)] == [[0, 1], [2, 3, 4], [5]]
    capped = draw_whole(incidence, Sampling(1.0, per_user=2), rng, 5)
    assert capped.sentences.counts.tolist() == [2, 2, 1]
    alone = draw_whole(incidence, Sampling(0.5, per_user=2), np.random.default_rng(3), 5)
    for place, user in enumerate(alone.users):
        assert alone.sentences[place].tolist() == capped.sentences[user].tolist()


@given(share=st.floats(0.05, 2), margin=st.floats(0, 0.04), clip=st.floats(1e-3, 10))
def test_the_margin_covers_what_a_text_moves_of_others(share, margin, clip):
    """In units of the noise, every shift of the theorems stays what it was without rounding."""
    clips = Clips(clip, share, margin)
    unit = clips.unit_of_noise
    kept = float(clips.of_sentences(np.ones(1, int))[0])
    others = margin * clip
    slack = 1e-6
    assert (clip + others) / unit <= 1 + slack  # a user
    assert (kept + others) / unit <= share + slack  # an entity
    assert (kept + clip + others) / unit <= 1 + share + slack  # both
    assert (2 * clip + others) / unit <= 2 + slack  # the user and the holder
    assert kept <= share * clip * (1 + slack)


def test_a_share_within_the_margin_is_refused():
    with pytest.raises(UserError, match=r"entity share 0\.02: smaller than the margin of 0\.03"):
        Clips(1.0, 0.02, 0.03)


# --- how far one text moves what others add, by how rows are laid out and rounded ----------------

MARGIN_CLIP = 0.1


def others(texts: list[str], half: bool) -> torch.Tensor:
    """The sum over all users but the first, who is clipped to nothing."""
    torch.manual_seed(0)
    model = tiny.llama().eval()
    task = NextWord(texts, tiny.tokenizer(), 64)
    packing = task.packing_for(model)
    engine, count = Engine(model), len(texts)

    def losses(order):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return task.losses(model, np.array(order), packing)

    weights = np.ones(count)
    weights[0] = 2.0**-60  # clipped to nothing
    who = Participants(np.arange(count), Rows(np.arange(count + 1), np.arange(count)), weights)
    clips = Clips(MARGIN_CLIP, 0.5)
    sums, _ = release(engine, who, losses, task.lengths, clips, *NO_NOISE, packing=packing)
    return torch.cat([part.flatten().double() for part in sums])


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_a_text_moves_others_by_less_than_the_margin(half):
    rng = np.random.default_rng(0)
    words = "one two three four five six seven eight nine ten".split()
    texts = [" ".join(rng.choice(words, rng.integers(2, 12))) for _ in range(63)]
    empty = others(["", *texts], half)
    moved = max(
        float((others([" ".join(["two"] * length), *texts], half) - empty).norm())
        for length in (3, 9, 25)
    )
    assert moved / MARGIN_CLIP <= rounding_margin("bfloat16" if half else "float32", 64)
