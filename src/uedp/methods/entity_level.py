"""What methods share that protect users together with entities: clips, and rules with a key."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Participants, Uniforms
from uedp.methods.base import PrivacySettings
from uedp.methods.clipped import ClippedMethod

Result = TypeVar("Result")
_PERIOD = "period"


class Schedule(Generic[Result]):
    """What a rule gives by the key of each round; on large corpora only every few rounds.

    It may be public and may be reused; sampling and coins are fresh in every round.

    Guarantees:
      - with a seed, the result for a round depends on the seed and its number only
      - without one, on the key of the first round of the period; `state` keeps that key, so that a
        period goes on as it was in a run that is resumed
    """

    def __init__(self, rule: Callable[[int], Result], rounds: int, seed: int | None) -> None:
        self._rule, self._rounds, self._seed = rule, rounds, seed
        self._period: int | None = None
        self._key: int
        self._result: Result

    def at(self, number: int, key: int) -> Result:
        period = number // self._rounds
        if period != self._period:
            self._begin(period, key if self._seed is None else self._seed * 2**31 + period)
        return self._result

    def _begin(self, period: int, key: int) -> None:
        self._result = self._rule(key)
        self._period, self._key = period, key

    def state(self) -> dict[str, Tensor]:
        """The period and its key; nothing where every round begins one, or by the seed."""
        if self._period is None or self._rounds == 1 or self._seed is not None:
            return {}
        return {_PERIOD: torch.tensor([self._period, self._key])}

    def restore(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Restore what `state` returned; returns the rest."""
        if _PERIOD in state:
            period, key = state[_PERIOD].tolist()
            self._begin(period, key)
        return {name: value for name, value in state.items() if name != _PERIOD}


class ScheduledDraw(Generic[Result]):
    """The participants of a round (see `Draw`), by what a rule gives for its period."""

    def __init__(
        self,
        schedule: Schedule[Result],
        draw: Callable[[Uniforms, int, Result], Participants],
    ) -> None:
        self.schedule, self._draw = schedule, draw

    def __call__(self, number: int, uniforms: Uniforms, key: int) -> Participants:
        return self._draw(uniforms, key, self.schedule.at(number, key))


class EntityLevel(ClippedMethod):
    """Users and entities together: an entity moves a sum by its share, whoever mentions it."""

    @classmethod
    def clips(cls, privacy: PrivacySettings, margin: float) -> Clips:
        return Clips(privacy.update_clip, privacy.entity_share, margin)

    def state(self) -> dict[str, Tensor]:
        return self._draw.schedule.state() if isinstance(self._draw, ScheduledDraw) else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if isinstance(self._draw, ScheduledDraw):
            state = self._draw.schedule.restore(state)
        super().restore(state)
