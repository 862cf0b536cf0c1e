"""Training on surrogates: their tokens are read, and not learned."""

import numpy as np
import torch

from research.surrogate_task import SurrogateTask
from tests.models import tiny
from uedp.mechanism.fixed.token_loss import IGNORED
from uedp.methods.base import EndToEnd
from uedp.training.mentions import Mentions
from uedp.training.tasks import NextWord

TEXTS = ["anna met bob here", "nothing at all"]
ROWS = [(0, 0, 4, "person"), (0, 9, 12, "person")]


def test_only_tokens_of_surrogates_are_left_out() -> None:
    tokenizer = tiny.tokenizer()
    task = SurrogateTask(TEXTS, tokenizer, 32, mentions=Mentions.of_rows(ROWS))
    plain = NextWord(TEXTS, tokenizer, 32)
    both = np.array([0, 1])
    found, all_of_them = task.batch(both), plain.batch(both)
    assert torch.equal(found["input_ids"], all_of_them["input_ids"])
    left_out = (found["labels"] == IGNORED) & (all_of_them["labels"] != IGNORED)
    kept = found["labels"] != IGNORED
    assert torch.equal(found["labels"][kept], all_of_them["labels"][kept])
    hidden = tokenizer.decode(all_of_them["labels"][0][left_out[0]].tolist())
    assert hidden.replace(" ", "") == "annabob"
    assert not left_out[1].any()


def test_packed_and_padded_losses_agree() -> None:
    task = SurrogateTask(TEXTS, tiny.tokenizer(), 32, mentions=Mentions.of_rows(ROWS))
    model, both = tiny.llama().eval(), np.array([0, 1])
    padded = task.losses(model, both)
    packed = task._packed_losses(model, both)
    assert torch.allclose(padded, packed.losses, rtol=1e-5)
    plain = NextWord(TEXTS, tiny.tokenizer(), 32).losses(model, both)
    assert not torch.allclose(padded[0], plain[0], rtol=1e-3)
    assert torch.allclose(padded[1], plain[1], rtol=1e-5)


def test_rounds_do_not_read_all_tokens_end_to_end() -> None:
    task = SurrogateTask(TEXTS, tiny.tokenizer(), 32, mentions=Mentions.of_rows(ROWS))
    assert not isinstance(task, EndToEnd)
    assert isinstance(NextWord(TEXTS, tiny.tokenizer(), 32), EndToEnd)
