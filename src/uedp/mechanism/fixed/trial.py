"""Passes of one shape against the engine, on the model and the sentences of a run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.clip.engine import Losses
from uedp.mechanism.fixed.fixed_pass import FixedPass, Sentences

# How far sums may be off: of a parameter, relative to it and to all; of all, relative to all.
_WHOLE, _HALF = (0.05, 0.002, 0.02), (0.2, 0.005, 0.1)
_MOVED = 0.02  # deviation by which weights are moved: those that begin at zero hide others


def refuse_difference(
    one: FixedPass, engine: Engine, losses: Losses, batch: Sentences, half: bool = False
) -> None:
    """Compare what both make of some sentences, with clips and without.

    Args:
        losses: of these sentences, as the engine takes them; `batch` has their tokens.
        half: passes are in half precision, in which both round by themselves.

    Guarantees:
      - sums that differ in any parameter, or norms that differ, raise a `UserError`
      - trained weights are as before
    """
    if any(a is not b for a, b in zip(one.parameters, engine.parameters, strict=True)):
        raise UserError("other parameters are trained than those of the engine")
    with _moved(engine.parameters), engine.one_round():
        one.refresh()
        norms = _compare(one, engine, losses, batch, torch.inf, half)
        # some sentences are clipped, and all users
        _compare(one, engine, losses, batch, float(norms.median()), half)


@contextmanager
def _moved(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    before = [parameter.detach().clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for parameter in parameters:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise.to(parameter), alpha=_MOVED)
        yield
    finally:
        with torch.no_grad():
            for parameter, own in zip(parameters, before, strict=True):
                parameter.copy_(own)


def _compare(
    one: FixedPass, engine: Engine, losses: Losses, batch: Sentences, clip: float, half: bool
) -> Tensor:
    clips = torch.full((len(batch.lengths),), clip)
    expected = engine.clipped_sum(losses, batch.owners.tolist(), clips, 0.6 * clip)
    found = one.clipped_sum(Sentences(batch.ids, batch.lengths, batch.owners, clips), 0.6 * clip)
    for ours, theirs in (
        (found.sentence_norms, expected.sentence_norms),
        (found.user_norms, expected.user_norms),
    ):
        # not the other way round: what is not a number is not close
        if not bool(((ours - theirs).abs() <= 0.05 * theirs + 0.02 * theirs.max()).all()):
            raise UserError("norms of sentences differ from those of the engine")
    total = one.in_order(found.total)
    parts = total.split([parameter.numel() for parameter in one.parameters])
    scale = torch.stack([part.norm() for part in expected.gradients.values()]).norm()
    relative, absolute, together = _HALF if half else _WHOLE
    offs = []
    for parameter, part in zip(one.parameters, parts, strict=True):
        true = expected.gradients.get(parameter, torch.zeros_like(parameter))
        offs.append((part.view(parameter.shape) - true).norm())
        if not bool(offs[-1] <= relative * true.norm() + absolute * scale):
            raise UserError("the sum differs from that of the engine in some parameter")
    if not bool(torch.stack(offs).norm() <= together * scale):
        raise UserError("the sum differs from that of the engine")
    return expected.sentence_norms
