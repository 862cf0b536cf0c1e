"""User-level DP-SGD: Poisson-sampled users, one clipped update each."""

from uedp.accounting.profile import Profile
from uedp.accounting.proven import UserLevelProfile
from uedp.incidence import Incidence
from uedp.mechanism.sampling import draw_whole
from uedp.methods.base import Draw, PrivacySettings, RoundSettings, register_method
from uedp.methods.clipped import ClippedMethod


@register_method
class UserLevel(ClippedMethod):
    """Uses all sentences of a drawn user; entities of several users are not protected."""

    name = "user-level"
    profile_type = UserLevelProfile

    @classmethod
    def profile(cls, privacy: PrivacySettings, incidence: Incidence, noise: float) -> Profile:
        return UserLevelProfile(noise, privacy.user_rate)

    @classmethod
    def sampler(cls, settings: RoundSettings, incidence: Incidence) -> Draw:
        return lambda number, uniforms, key: draw_whole(incidence, settings.sampling, uniforms, key)
