"""Rotation: each entity is lent to one of its holders at a time, and affects one update only."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile
from uedp.incidence import Incidence
from uedp.mechanism.lending import LendingRule, Mask, check_lending_rule, lend
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Participants, Uniforms, draw
from uedp.methods.base import PrivacySettings, RoundSettings, register_method
from uedp.methods.clipped import ClippedMethod

_MENTIONS_PER_ROUND = 750_000  # lending these takes a tenth of a second
_LENDING = "lending"


@register_method
class Rotation(ClippedMethod):
    """Users and entities together (section 5 of docs/privacy.md, Theorems 1 and 2).

    A subclass may use another lending rule; `check_lending_rule` checks it in every round.
    """

    name = "rotation"
    profile_type = RotationProfile
    lending_rule: ClassVar[LendingRule] = staticmethod(lend)

    @classmethod
    def profile(cls, privacy: PrivacySettings, incidence: Incidence, noise: float) -> Profile:
        return RotationProfile(
            noise,
            privacy.user_rate,
            privacy.entity_share,
            entity_rate=privacy.entity_rate,
            extended_rate=privacy.extended_rate,
        )

    @classmethod
    def clips(cls, privacy: PrivacySettings, margin: float) -> Clips:
        return Clips(privacy.update_clip, privacy.entity_share, margin)

    @classmethod
    def sampler(cls, settings: RoundSettings, incidence: Incidence) -> "RotationDraw":
        return RotationDraw(cls.lending_rule, settings, incidence)

    def state(self) -> dict[str, Tensor]:
        return self._draw.schedule.state() if isinstance(self._draw, RotationDraw) else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if isinstance(self._draw, RotationDraw):
            state = self._draw.schedule.restore(state)
        super().restore(state)


class RotationDraw:
    """The participants of a round (see `Draw`), with the lending of its period."""

    def __init__(self, rule: LendingRule, settings: RoundSettings, incidence: Incidence) -> None:
        self._incidence, self._sampling = incidence, settings.sampling
        self.schedule = LendingSchedule(rule, incidence, settings.seed)

    def __call__(self, number: int, uniforms: Uniforms, key: int) -> Participants:
        usable = self.schedule.usable(number, key)
        return draw(self._incidence, self._sampling, uniforms, key, usable)


class LendingSchedule:
    """The usable sentences of each round; on large corpora recomputed only every few rounds.

    Lending may be public and may be reused; sampling and coins are fresh in every round.

    Guarantees:
      - a rule other than `lend` that lends an entity to two users, or is not a function of the
        incidence and the key, is refused in the round in which it does
      - with a seed, the usable sentences of a round depend on the seed and its number only
      - without one, on the key of the first round of the period; `state` keeps that key, so that a
        period goes on as it was in a run that is resumed
    """

    def __init__(self, rule: LendingRule, incidence: Incidence, seed: int | None) -> None:
        self._rule, self._incidence, self._seed = rule, incidence, seed
        self._rounds = 1 + len(incidence.sentence_entities.values) // _MENTIONS_PER_ROUND
        self._period: int | None = None
        self._key: int
        self._usable: Mask

    def usable(self, number: int, key: int) -> Mask:
        period = number // self._rounds
        if period != self._period:
            self._lend(period, key if self._seed is None else self._seed * 2**31 + period)
        return self._usable

    def _lend(self, period: int, key: int) -> None:
        if self._rule is not lend:  # somebody's own: a wrong one would void the guarantee
            check_lending_rule(self._rule, self._incidence, [key])
        self._usable = self._rule(self._incidence, key)
        self._period, self._key = period, key

    def state(self) -> dict[str, Tensor]:
        """The period and its key; nothing where every round lends anew or by the seed."""
        if self._period is None or self._rounds == 1 or self._seed is not None:
            return {}
        return {_LENDING: torch.tensor([self._period, self._key])}

    def restore(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Restore what `state` returned; returns the rest."""
        if _LENDING in state:
            period, key = state[_LENDING].tolist()
            self._lend(period, key)
        return {name: value for name, value in state.items() if name != _LENDING}
