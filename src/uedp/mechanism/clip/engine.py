"""Clip twice in one forward and one backward pass.

Hooks record every trainable layer's input and output gradient; ordinary weight gradients are never
formed. From the records come, layer by layer, the inner products between the gradients of each
user's sentences (`Grams`), which give all norms. Factors divide by upper bounds of these, from
`rounding`. One weighted product per layer then gives the sum.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.mechanism.clip.clipping import Allowances
from uedp.mechanism.clip.combine import combined
from uedp.mechanism.clip.deterministic import (
    FixedRandomness,
    deterministic_training,
    held_values,
    refuse_changed_values,
    refuse_layer_drop,
    state_error,
)
from uedp.mechanism.clip.layout import Grams, Layout
from uedp.mechanism.clip.recording import OverwrittenError, Recording, recording
from uedp.mechanism.clip.records import Record
from uedp.mechanism.clip.registry import trainable_layers
from uedp.mechanism.clip.rounding import exact_float32
from uedp.mechanism.clip.shared import held_masks, refuse_unheld, shared_masks
from uedp.mechanism.packing import PackedLosses, loss_values


@dataclass(frozen=True)
class ClippedSum:
    """The sum of a chunk's twice-clipped updates, and the norms before each clip (private).

    Norms are as computed: one per sentence as the caller numbered them, one per user that has a
    sentence, by its number.
    """

    gradients: Mapping[nn.Parameter, Tensor]
    sentence_norms: Tensor
    user_norms: Tensor
    allowances: Allowances
    """By how much the users' norms may exceed `user_norms`."""


Losses = Callable[[Sequence[int]], Tensor | PackedLosses]

_HALVES = (torch.bfloat16, torch.float16)
_CROWD = 16  # times as many sentences as a trial has are also computed together


class Engine:
    """Computes clipped sums for one model.

    Guarantees:
      - a model that cannot be clipped is refused before anything is computed
      - the sum is that of `reference.clipped_sum`, up to rounding
      - no sentence adds more than its clip, and no user more than the update clip, whatever
        cancels between tokens, in float32 and in half precision
      - a sentence whose gradient is not finite contributes nothing
      - chunks whose sentences share a dropout mask are refused outside of `one_round`
      - a pass that changes a parameter or a buffer of the model is refused
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers = trainable_layers(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._hooked: set[str] = set()
        self._shared = shared_masks(model)

    def one_round(self) -> AbstractContextManager[None]:
        """Inside, chunks belong to one round: masks that sentences share are drawn once."""
        return held_masks(self._shared)

    def clipped_sum(
        self, losses: Losses, owners: Sequence[int], sentence_clips: Tensor, update_clip: float
    ) -> ClippedSum:
        """The clipped sum of one chunk.

        Args:
            losses: gives the loss of each sentence, in the order asked for; `PackedLosses` if
                sentences share rows.
            owners: the user of each sentence.
        """
        refuse_unheld(self._shared)
        layout = Layout.of(owners)
        # every index is made before the pass, so that nothing has to wait for the device after it
        device = self.parameters[0].device
        order = torch.tensor(layout.order, device=device)
        owner = torch.tensor(layout.owner, device=device)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=device)
        bounds = sentence_clips.to(device, torch.float64)[order]
        by_number = torch.argsort(torch.tensor(layout.users, device=device))
        recorded = self._pass(losses, layout)

        @exact_float32()
        @torch.no_grad()
        def summed(records: Mapping[str, Record]) -> ClippedSum:
            parts = (
                part
                for name, layer in self._layers.items()
                if name in records
                for part in layer.contributions(records[name])
            )
            rules = combined(parts, layout)
            grams = Grams(layout, owner, len(self._layers))
            for rule in rules:
                rule.add_products(grams)
            sentence_squares = grams.sentence_squares()
            factors = grams.sentence_factors(sentence_squares, bounds)
            squares = grams.user_squares(factors)
            for rule in rules:
                rule.add_user_squares(squares, layout, factors.float())
            squares.clamp_(min=0)
            weights, allowances = grams.weights(squares, factors, update_clip)
            total: dict[nn.Parameter, Tensor] = {}
            for rule in rules:
                total.update(rule.weighted(weights))
            norms, user_norms = sentence_squares.sqrt().float(), squares.sqrt().float()
            return ClippedSum(total, norms[place], user_norms[by_number], allowances[by_number])

        result = summed(recorded.records)
        broken = ~torch.isfinite(result.sentence_norms)[order]
        if recorded.packed is not None and broken.any():
            # attention multiplies by zero whatever it masks, and zero times infinity is not zero:
            # the row's other sentences must not suffer for it
            recompute = recorded.packed.recompute
            recorded = self._pass(lambda _: recompute(), layout)
            result = summed(recorded.records)
            broken = ~torch.isfinite(result.sentence_norms)[order]
        if broken.any():  # rare: take these sentences out and start over
            result = summed({n: r.without(broken) for n, r in recorded.records.items()})
        return result

    def check(self, losses: Losses, sentences: int, half: bool = False) -> None:
        """Try the model on a few sentences, without randomness, before its rules are trusted.

        In training mode, as in rounds, and in evaluation mode, in which some layers behave
        differently; one by one, together, and in a crowd of `_CROWD` times as many. Give short
        sentences first: the crowd is filled up with the first two, since how many there are matters
        and not how long they are, and the last one is left out in evaluation mode. `half` says
        that passes are in half precision.

        Guarantees:
          - a loss of one sentence that depends on others is refused
          - a model in which a sentence's gradient is taken for another's is refused
          - a model in which a weight is also used outside its layer is refused, by its name
          - a model that trains a tensor which is not among its parameters is refused
          - a model that skips layers by chance, draws random numbers that sentences share, or
            keeps something of what it has read is refused
        """
        refuse_layer_drop(self._model)
        with evaluating(self._model):
            self._try(losses, max(min(sentences, 2), sentences - 1), None, half)
        with deterministic_training(self._model) as fixed, self.one_round():
            self._try(losses, sentences, fixed, half)

    def _try(
        self, losses: Losses, sentences: int, fixed: FixedRandomness | None, half: bool
    ) -> None:
        half = half or any(p.dtype in _HALVES for p in self._model.parameters())
        close = 0.02 if half else 2e-3

        def computed(order: Sequence[int]) -> Tensor:
            if fixed is not None:
                fixed.start_pass(len(order))
            return loss_values(losses(order))

        others = (_CROWD - 1) * sentences
        crowd = [*range(sentences), *(i % min(2, sentences) for i in range(others))]
        computed(range(sentences))  # a first pass may set up buffers that hold no text
        versions, held = self._versions(), held_values(self._model)
        together = computed(range(sentences))
        each = [computed([i]) for i in range(sentences)]
        with torch.no_grad():
            again, many = computed(range(sentences)), computed(crowd)
        self._refuse_changes(versions)
        refuse_changed_values(self._model, held)
        self._refuse_other_leaves(together, each[0])
        single = torch.cat(each).detach()
        if not torch.allclose(again, together, rtol=1e-3, atol=1e-3):
            raise UserError(
                "the loss of a sentence changes from one pass to the next: the model draws random "
                "numbers of its own, or keeps something of what it has read"
            )
        for in_batch, expected in ((together, single), (many, single[crowd])):
            if not torch.allclose(in_batch, expected, rtol=close, atol=close):
                raise UserError(
                    "the loss of a sentence changes with the sentences beside it; it must depend "
                    "on that sentence and the weights alone"
                )
        if fixed is not None:
            fixed.refuse_shared(sentences, len(crowd))
            fixed.start_pass(sentences)
        gradients, true_norms = self._gradients(each)
        unclipped = torch.full((sentences,), torch.inf)
        clipped = self.clipped_sum(losses, [0] * sentences, unclipped, torch.inf)
        self._compare(gradients, clipped)
        norms = clipped.sentence_norms.to(true_norms)
        if ((norms - true_norms).abs() > 0.05 * true_norms + 0.02 * true_norms.max()).any():
            raise UserError(
                "the gradients of sentences are not what the layers' rules give one by one: some "
                "layer does not compute sentence by sentence; freeze it (requires_grad_(False))"
            )

    def _compare(self, gradients: Sequence[Tensor], clipped: ClippedSum) -> None:
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        scale = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for parameter, true in zip(self.parameters, gradients, strict=True):
            ours = clipped.gradients.get(parameter, torch.zeros_like(parameter))
            if (ours - true).norm() > 0.05 * true.norm() + 0.002 * scale:
                raise UserError(
                    f"the gradient of {names[parameter]} is not what its layer's rule gives; it is "
                    "used in a way no rule covers: freeze it (requires_grad_(False))"
                )

    def _refuse_other_leaves(self, *losses: Tensor) -> None:
        """A tensor outside the model that trains would get a gradient without noise."""
        known = {id(parameter) for parameter in self.parameters}
        for tensor in set.intersection(*(_leaves(loss) for loss in losses)):
            if id(tensor) not in known:
                raise UserError(
                    f"a tensor of shape {tuple(tensor.shape)} gets gradients but is no parameter "
                    "of the model; register it, or freeze it (requires_grad_(False))"
                )

    def _versions(self) -> dict[str, tuple[int, int]]:
        """The identity of every parameter and buffer, and how often it was written to."""
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        return {name: (id(tensor), tensor._version) for name, tensor in named}

    def _refuse_changes(self, before: Mapping[str, tuple[int, int]]) -> None:
        """State that a pass leaves behind carries one user's text to others, unclipped."""
        for name, version in self._versions().items():
            if version != before.get(name):
                raise state_error(name)

    def _gradients(self, losses: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The sum of the gradients of losses, and the norm of each, by ordinary means."""
        total = [torch.zeros_like(parameter) for parameter in self.parameters]
        norms = []
        for loss in losses:
            own = torch.autograd.grad(loss.sum(), self.parameters, materialize_grads=True)
            norms.append(torch.stack([gradient.float().norm() for gradient in own]).norm())
            torch._foreach_add_(total, list(own))
        return total, torch.stack(norms)

    def _pass(self, losses: Losses, layout: Layout) -> Recording:
        """Forward and backward, once; twice if the model turns out to overwrite outputs."""
        before = self._versions()
        try:
            hooks = recording(self._layers, self.parameters, layout.sentences, self._hooked)
            with hooks as recorded:
                # coarser products differ more from batch to batch
                with exact_float32(), attention_without_plans():
                    result = losses(layout.order)
                per_sentence = loss_values(result)
                recorded.packed = result if isinstance(result, PackedLosses) else None
                if per_sentence.shape != (layout.sentences,):
                    raise UserError(
                        f"the loss has shape {tuple(per_sentence.shape)} where one value per "
                        f"sentence, ({layout.sentences},), is needed; return it unreduced"
                    )
                with exact_float32():
                    per_sentence.sum().backward()
        except OverwrittenError as changed:
            self._hooked |= changed.layers
            return self._pass(losses, layout)
        self._refuse_changes(before)
        return recorded


def attention_without_plans() -> AbstractContextManager[None]:
    """cuDNN's attention plans anew for every shape, which takes longer than computing it."""
    others = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    manager: AbstractContextManager[None] = sdpa_kernel(list(others))
    return manager


def _leaves(loss: Tensor) -> set[Tensor]:
    """The tensors that a backward pass of a loss would add gradients to."""
    nodes, seen, leaves = [loss.grad_fn], set(), set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            if isinstance(tensor := getattr(node, "variable", None), Tensor):
                leaves.add(tensor)
    return leaves
