"""UeDP-Alg with the noise of its released code, which no certificate covers.

The paper adds `N(0, sigma^2)` to the mean update. Its code (github.com/PhungLai728/UeDP, 2022)
computes `sigma` and draws with the standard deviation `sigma^2`: at the paper's settings tens of
thousands of times too little. This method does the same, for one column of the results page. It is
registered by importing this module, and `uedp` cannot run it by itself.
"""

from dataclasses import dataclass

from pydantic import Field

from uedp.mechanism.estimators import Estimator
from uedp.methods.base import Positive, PrivacySettings, register_method
from uedp.methods.uedp_alg import UedpAlg, UedpAlgOptions

NAME = "uedp-alg-released"


@dataclass(frozen=True, eq=False)
class ReleasedEstimator(Estimator):
    """An estimator whose noise has the deviation `sigma^2` instead of `sigma`.

    Guarantees:
      - draws, weights and denominator are those of the paper's estimator
      - the noise is `1 / sigma` times smaller than what the paper's text states
    """

    @property
    def deviation_of_sum(self) -> float:
        stated = super().deviation_of_sum
        return stated * stated / self.denominator


class ReleasedNoiseOptions(UedpAlgOptions):
    """UeDP-Alg's options and its `z`, which is not a noise multiplier here."""

    z: Positive = Field(default=2.0, description="The paper's z.")


@register_method
class ReleasedNoise(UedpAlg):
    """UeDP-Alg as its code runs it: nothing is proven of its noise, so it has no profile.

    Guarantees:
      - never certified: there is no accountant's profile, and neither epsilon nor noise is taken
    """

    name = NAME
    profile_type = None  # type: ignore[assignment]
    options_type = ReleasedNoiseOptions

    @classmethod
    def check(cls, privacy: PrivacySettings) -> None:
        if privacy.sentences_per_entity or privacy.sentences_per_user:
            raise ValueError(f"{cls.name} uses all sentences it samples")
        super(UedpAlg, cls).check(privacy)

    def _set_up(self) -> None:
        super()._set_up()
        options, stated = self.settings.options, self._estimator
        assert isinstance(options, ReleasedNoiseOptions)
        # `torch.func` would take the steps of an LSTM one by one, for all users at once
        config = getattr(self.model, "config", None)
        self._local.batched &= getattr(config, "model_type", None) != "awd_lstm"
        self._estimator = ReleasedEstimator(
            stated.sampling, stated.weights, stated.update_clip, options.z
        )


def too_small(stated: Estimator) -> float:
    """By which factor the released code draws less noise than the text states."""
    return 1 / stated.deviation
