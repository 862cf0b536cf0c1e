"""How far one text moves what others add, by how rows are laid out and rounded."""

import numpy as np
import pytest
import torch

from tests.models import tiny
from uedp.incidence import Rows
from uedp.mechanism.clip import Engine
from uedp.mechanism.release import Clips, clipped_sums
from uedp.mechanism.sampling import Participants
from uedp.training.plan import rounding_margin
from uedp.training.tasks import NextWord

CLIP = 0.1


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

    crowding = np.ones(count, int)
    crowding[0] = 1 << 60  # clipped to nothing
    who = Participants(np.arange(count), Rows(np.arange(count + 1), np.arange(count)), crowding)
    sums, _ = clipped_sums(engine, who, losses, task.lengths, Clips(CLIP, 0.5), packing=packing)
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
    assert moved / CLIP <= rounding_margin("bfloat16" if half else "float32", 64)
