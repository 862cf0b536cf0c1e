"""Passes of one shape against the engine, on the model and the sentences of a run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.mechanism.clip import Engine
from uedp.mechanism.clip.engine import Losses
from uedp.mechanism.fixed.fixed_pass import FixedPass, Sentences

# How far sums may be off: of a parameter, relative to it and to all; of all, relative to all.
_OF_ONE, _OF_ANY, _OF_ALL = 0.05, 0.002, 0.02
_ROUNDING = 3.0  # and by so much of what half precision changes in the engine itself
_MOVED = 0.02  # deviation by which weights are moved: those that begin at zero hide others
_TOLD = 0.1  # half precision may change a norm by this much, or it decides about the gradient


def refuse_difference(
    one: FixedPass,
    engine: Engine,
    losses: Losses,
    batch: Sentences,
    halved: Losses | None = None,
) -> None:
    """Compare what both make of some sentences, with clips and without.

    In half precision, sentences whose gradient hangs on its rounding are left out, if they are the
    smaller part: some pretrained models turn a change in the third digit of an activation into
    several times the gradient. That the same passes are right in float32 is for the caller to try.

    Args:
        losses: of these sentences, as the engine takes them; `batch` has their tokens.
        halved: the same in half precision, if passes are: it tells how much that alone changes.

    Guarantees:
      - sums that differ in any parameter, or norms that differ, raise a `UserError`
      - trained weights are as before
    """
    if any(a is not b for a, b in zip(one.parameters, engine.parameters, strict=True)):
        raise UserError("other parameters are trained than those of the engine")
    with _moved(engine.parameters), engine.one_round():
        one.refresh()
        if halved is not None:
            kept = _told_apart(one, engine, losses, batch)
            batch, losses, halved = _only(batch, kept), _of(losses, kept), _of(halved, kept)
        norms = _compare(one, engine, losses, batch, torch.inf, halved)
        # some sentences are clipped, and all users
        _compare(one, engine, losses, batch, float(norms.median()), halved)


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


def _told_apart(one: FixedPass, engine: Engine, losses: Losses, batch: Sentences) -> Ints:
    """The sentences whose norms half precision leaves about as they are: most of them."""
    clips = torch.full((len(batch.lengths),), torch.inf)
    expected = engine.clipped_sum(losses, batch.owners.tolist(), clips, torch.inf).sentence_norms
    found = one.clipped_sum(replace(batch, clips=clips), torch.inf).sentence_norms
    close = ((found - expected).abs() <= _TOLD * expected).cpu().numpy()
    if 2 * close.sum() <= len(close):
        raise UserError("norms of sentences differ from those of the engine")
    return np.flatnonzero(close)


def _only(batch: Sentences, kept: Ints) -> Sentences:
    ids = np.concatenate([np.split(batch.ids, np.cumsum(batch.lengths)[:-1])[i] for i in kept])
    owners = np.unique(batch.owners[kept], return_inverse=True)[1]
    return Sentences(ids, batch.lengths[kept], owners, batch.clips[kept])


def _of(losses: Losses, kept: Ints) -> Losses:
    return lambda order: losses([int(kept[place]) for place in order])


def _compare(
    one: FixedPass,
    engine: Engine,
    losses: Losses,
    batch: Sentences,
    clip: float,
    halved: Losses | None,
) -> Tensor:
    clips, update = torch.full((len(batch.lengths),), clip), 0.6 * clip
    owners = batch.owners.tolist()
    expected = engine.clipped_sum(losses, owners, clips, update)
    rounded = expected if halved is None else engine.clipped_sum(halved, owners, clips, update)
    found = one.clipped_sum(Sentences(batch.ids, batch.lengths, batch.owners, clips), update)
    for ours, theirs, half in (
        (found.sentence_norms, expected.sentence_norms, rounded.sentence_norms),
        (found.user_norms, expected.user_norms, rounded.user_norms),
    ):
        allowed = 0.05 * theirs + 0.02 * theirs.max() + _ROUNDING * (half - theirs).abs().max()
        # not the other way round: what is not a number is not close
        if not bool(((ours - theirs).abs() <= allowed).all()):
            raise UserError("norms of sentences differ from those of the engine")
    total = one.in_order(found.total)
    parts = total.split([parameter.numel() for parameter in one.parameters])
    scale = torch.stack([part.norm() for part in expected.gradients.values()]).norm()
    gradients, halves = (
        {p: clipped.gradients.get(p, torch.zeros_like(p)) for p in one.parameters}
        for clipped in (expected, rounded)
    )
    roundings = torch.stack([(halves[p] - gradients[p]).norm() for p in one.parameters])
    # what rounding does to one parameter is a matter of chance: that of the others counts as well
    allowed = _ROUNDING * roundings + roundings.max() + _OF_ANY * scale
    offs = []
    for parameter, part, most in zip(one.parameters, parts, allowed, strict=True):
        true = gradients[parameter]
        offs.append((part.view(parameter.shape) - true).norm())
        if not bool(offs[-1] <= _OF_ONE * true.norm() + most):
            raise UserError("the sum differs from that of the engine in some parameter")
    if not bool(torch.stack(offs).norm() <= _OF_ALL * scale + _ROUNDING * roundings.norm()):
        raise UserError("the sum differs from that of the engine")
    return expected.sentence_norms
