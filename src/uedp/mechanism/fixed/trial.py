"""Passes of one shape against the engine, on the model and the sentences of a run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.clip.engine import Losses
from uedp.mechanism.fixed.fixed_pass import FixedPass, Sentences

# How far sums may be off: of a parameter, relative to it and to all; of all, relative to all.
_OF_ONE, _OF_ANY, _OF_ALL = 0.05, 0.002, 0.02
_MOVED = 0.02  # deviation by which weights are moved: those that begin at zero hide others
_ALIKE = 2.0  # the factor by which half precision may change most norms


def refuse_difference(one: FixedPass, engine: Engine, losses: Losses, batch: Sentences) -> None:
    """Compare what both make of some sentences in float32, with clips and without.

    Args:
        losses: of these sentences, as the engine takes them; `batch` has their tokens.

    Guarantees:
      - sums that differ in any parameter, or norms that differ, raise a `UserError`
      - trained weights are as before
    """
    with _both_ready(one, engine):
        norms = _compare(one, engine, losses, batch, torch.inf)
        # some sentences are clipped, and all users
        _compare(one, engine, losses, batch, float(norms.median()))


def refuse_other_norms(one: FixedPass, engine: Engine, losses: Losses, batch: Sentences) -> None:
    """Compare norms of a pass in half precision with those of the engine in float32.

    Some pretrained models turn a change in the third digit of an activation into several times
    the gradient of a sentence, so only most norms must be alike. Privacy does not hang on it: a
    sentence is computed alike in every pass, and clipped by the norm of what is added.

    Guarantees:
      - norms of which most differ by more than a factor of two, or one is not finite, raise a
        `UserError`
      - trained weights are as before
    """
    clips = torch.full((len(batch.lengths),), torch.inf)
    with _both_ready(one, engine):
        expected = engine.clipped_sum(losses, batch.owners.tolist(), clips, torch.inf)
        found = one.clipped_sum(replace(batch, clips=clips), torch.inf).sentence_norms
    ratios = found / expected.sentence_norms
    alike = (ratios > 1 / _ALIKE) & (ratios < _ALIKE)
    if not bool(found.isfinite().all()) or 2 * int(alike.sum()) <= len(alike):
        raise UserError("norms of sentences differ from those of the engine")


@contextmanager
def _both_ready(one: FixedPass, engine: Engine) -> Iterator[None]:
    if any(a is not b for a, b in zip(one.parameters, engine.parameters, strict=True)):
        raise UserError("other parameters are trained than those of the engine")
    with _moved(engine.parameters), engine.one_round():
        one.refresh()
        yield


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
    one: FixedPass, engine: Engine, losses: Losses, batch: Sentences, clip: float
) -> Tensor:
    clips, update = torch.full((len(batch.lengths),), clip), 0.6 * clip
    expected = engine.clipped_sum(losses, batch.owners.tolist(), clips, update)
    found = one.clipped_sum(replace(batch, clips=clips), update)
    for ours, theirs in (
        (found.sentence_norms, expected.sentence_norms),
        (found.user_norms, expected.user_norms),
    ):
        # not the other way round: what is not a number is not close
        if not bool(((ours - theirs).abs() <= 0.05 * theirs + 0.02 * theirs.max()).all()):
            raise UserError("norms of sentences differ from those of the engine")
    parts = one.in_order(found.total).split([parameter.numel() for parameter in one.parameters])
    scale = torch.stack([part.norm() for part in expected.gradients.values()]).norm()
    offs = []
    for parameter, part in zip(one.parameters, parts, strict=True):
        true = expected.gradients.get(parameter, torch.zeros_like(parameter))
        offs.append((part.view(parameter.shape) - true).norm())
        if not bool(offs[-1] <= _OF_ONE * true.norm() + _OF_ANY * scale):
            raise UserError("the sum differs from that of the engine in some parameter")
    if not bool(torch.stack(offs).norm() <= _OF_ALL * scale):
        raise UserError("the sum differs from that of the engine")
    return expected.sentence_norms
