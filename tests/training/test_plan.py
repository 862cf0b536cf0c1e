import math

import numpy as np
import pytest

from tests.training import worlds
from uedp.accounting.proven import RotationProfile, UedpAlgProfile, UserLevelProfile, epsilon
from uedp.accounting.statement import statement
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.estimators import Weights, f_e_plus
from uedp.training.config import parse_config
from uedp.training.plan import build_plan, rounding_margin


def plan(incidence=None, **changes):
    return build_plan(worlds.config("model", **changes), incidence or worlds.incidence())


# --- what was planned is what is done ------------------------------------------------------------


def test_the_profile_of_rotation_describes_its_rounds():
    found = plan(
        privacy__noise=1.5,
        privacy__entity_share=0.4,
        privacy__entity_rate=0.7,
        privacy__extended_rate=0.6,
        privacy__update_clip=3.0,
    )
    profile = found.profile
    assert isinstance(profile, RotationProfile)
    assert profile.noise == found.noise == 1.5
    assert profile.user_rate == found.sampling.user_rate == 0.5
    assert profile.entity_rate == found.sampling.entity_rate == 0.7
    assert profile.extended_rate == found.sampling.extended_rate == 0.6
    assert profile.entity_share == found.clips.share == 0.4
    # a sentence alone, as one without entities is, may have the whole share and no more
    margin = rounding_margin("float32", 0.5 * 40)
    assert found.clips.margin == margin > 0
    kept = 0.4 - 0.6 * margin
    assert found.clips.of_sentences(np.array([1, 0.5])).tolist() == pytest.approx(
        [3.0 * kept, 1.5 * kept]
    )
    assert not profile.reveal_draw
    assert found.epsilon == epsilon(profile, 4, 1e-5)
    assert found.rounds == 4


def test_the_profile_of_user_level_describes_its_rounds():
    found = plan(privacy__method="user-level", privacy__noise=1.5)
    assert found.profile == UserLevelProfile(1.5, 0.5)
    assert found.sampling.user_rate == 0.5
    assert found.noise == 1.5


def test_the_profile_of_uedp_alg_describes_its_rounds():
    found = plan(privacy__method="uedp-alg", privacy__noise=0.5)
    assert found.profile == UedpAlgProfile(
        0.5, 0.5, worlds.USERS, 10
    )  # 40 users, 4 names, one each
    estimator = f_e_plus(
        found.sampling, Weights.of(worlds.incidence()), found.clips.update, found.noise
    )
    assert estimator.noise_in_updates == 0.5 * (0.5 * worlds.USERS + 1)


def test_an_entity_mentioned_by_all_has_all_as_holders():
    everyone = Incidence.build(np.arange(20), np.arange(20), np.zeros(20, int), 20, 1)
    found = plan(everyone, privacy__method="uedp-alg")
    assert found.profile == UedpAlgProfile(1.0, 0.5, 20, 20)


def test_a_sentence_without_entities_has_a_holder():
    """Its user, who need not be the one that is protected with it."""
    none = Incidence.build(np.arange(20), np.zeros(0, int), np.zeros(0, int), 20, 0)
    assert plan(none, privacy__method="uedp-alg").profile == UedpAlgProfile(1.0, 0.5, 20, 1)


@pytest.mark.parametrize("method", ["rotation", "user-level"])
def test_calibration_meets_the_target(method):
    found = plan(privacy__method=method, privacy__noise=None, privacy__epsilon=3.0)
    assert found.profile is not None
    assert found.epsilon <= 3.0
    assert found.epsilon == epsilon(found.profile, found.rounds, 1e-5)
    assert found.epsilon > 2.99  # no noise is wasted
    assert found.private


@pytest.mark.parametrize("method", ["noiseless", "deidentified"])
def test_without_noise_there_is_no_guarantee(method):
    found = plan(privacy__method=method)
    assert found.profile is None
    assert found.noise == 0
    assert not found.private
    assert found.epsilon == math.inf
    assert found.statement == f"{method}: this run will have no privacy guarantee."


def test_a_plan_cannot_be_changed():
    with pytest.raises(AttributeError):
        plan().epsilon = 0.1  # type: ignore[misc]


def test_the_divisor_is_the_expected_number_of_users():
    assert plan().expected_users == 0.5 * worlds.USERS


# --- what is said of it --------------------------------------------------------------------------


def test_the_guarantee_in_a_sentence():
    found = plan(privacy__noise=2.0)
    sentence, *lines = found.statement.splitlines()
    assert sentence == statement(found.profile, found.epsilon, 1e-5, True)
    assert "one user together with one sensitive entity" in found.statement
    assert [line.split(":")[0] for line in lines] == ["Caveat"] * 2
    assert plan(privacy__noise=0.0).statement.startswith("This run has no privacy guarantee.\n")


def test_a_fixed_seed_is_not_private():
    found = plan(privacy__noise=2.0, privacy__seed=1)
    assert not found.private
    assert found.statement.splitlines()[0] == "This run has no privacy guarantee."
    assert found.setup().noise_source == "fixed seed"


def test_the_setup_records_every_decision():
    found = plan(
        privacy__sentences_per_user=7,
        privacy__chosen_by="me, on other data",
    ).setup()
    assert found.sentences_per_user == 7
    assert found.chosen_by == "me, on other data"
    assert plan().setup().noise_source == "cipher"
    assert "not stated" in plan().setup().chosen_by


def test_the_shape_matches_the_incidence():
    shape = plan().shape
    assert shape.digest == worlds.incidence().digest
    assert (shape.users, shape.sentences, shape.entities) == (40, 120, 4)
    assert plan().describe()["users per round"] == 20


# --- what is refused or doubted ------------------------------------------------------------------


def test_too_few_users_are_refused():
    with pytest.raises(UserError, match=r"rate 0.1: of 40 users a round would draw 4, .* 0.12"):
        plan(privacy__user_rate=0.1)
    assert plan(privacy__user_rate=0.125).warnings(10)
    with pytest.raises(UserError, match="corpus: 4 users are too few"):
        plan(worlds.incidence(4))
    plan(worlds.incidence(4), privacy__method="noiseless")  # which hides nobody


@pytest.mark.parametrize("delta", [0.025, 0.1, 0.9])
def test_a_delta_that_allows_publishing_a_user_is_refused(delta):
    with pytest.raises(UserError, match=rf"privacy.delta {delta}: must be below .*, 0.025; choose"):
        plan(privacy__delta=delta)
    plan(privacy__delta=delta, privacy__method="noiseless")
    plan(privacy__delta=0.024)


def test_a_large_epsilon_is_a_warning_and_a_caveat():
    much = plan(privacy__noise=0.2)
    assert much.epsilon > 20
    assert any("is a weak guarantee" in line for line in much.warnings(10))
    assert "Caveat: an epsilon above 20 says little" in much.statement
    less = plan(privacy__noise=None, privacy__epsilon=19.9)
    assert not any("is a weak guarantee" in line for line in less.warnings(10))
    assert "says little" not in less.statement


def test_a_corpus_without_users_is_refused():
    nobody = Incidence.build(np.zeros(0, int), np.zeros(0, int), np.zeros(0, int), 0, 0)
    for method in ("rotation", "noiseless", "uedp-alg"):
        with pytest.raises(UserError, match="corpus: the corpus has no sentences"):
            plan(nobody, privacy__method=method)


def test_few_users_are_a_warning():
    (warning,) = plan(privacy__user_rate=0.25).warnings(10)
    assert "draws about 10 users" in warning
    assert "raise privacy.user_rate" in warning
    assert not plan().warnings(10)  # 20 of them
    assert not plan(privacy__method="noiseless", privacy__user_rate=0.25).warnings(10)


def test_a_low_signal_to_noise_ratio_is_a_warning():
    found = plan(privacy__noise=None, privacy__epsilon=0.05)
    ratio = found.signal_to_noise(10**8)
    # 20 users, four rounds
    assert ratio == pytest.approx(20 * 2 / (found.noise * 10**4))
    (warning,) = found.warnings(10**8)
    assert f"most {ratio:.2g}, below" in warning
    assert not plan().warnings(1000)
    assert plan(privacy__method="noiseless").signal_to_noise(10**8) == math.inf


def test_the_noise_of_uedp_alg_counts_in_full():
    found = plan(privacy__method="uedp-alg", privacy__noise=2.0)
    assert found.signal_to_noise(10**4) == pytest.approx(20 * 2 / (2 * 21 * 100))


def test_a_plan_needs_no_model():
    """What cannot work is refused before anything is loaded."""
    values = {"privacy": {"epsilon": 1}, "data": {"train": "c"}, "model": {"name": "no such"}}
    assert build_plan(parse_config(values), worlds.incidence(200)).private


def test_the_margin_of_fair_shares_is_in_their_epsilon():
    """There any holder that was drawn may cause rounding, so raising the noise is not enough."""
    settings = {"privacy__noise": 1.0, "privacy__entity_share": 0.3}
    found = plan(privacy__method="fair-shares", **settings)
    assert found.profile.margin == found.clips.margin > 0
    assert found.profile.noise_on_sum == found.noise * found.clips.unit_of_noise
    assert found.epsilon == epsilon(found.profile, found.rounds, 1e-5)
    assert found.epsilon != epsilon(found.profile.with_margin(0.0), found.rounds, 1e-5)
    assert found.on(worlds.incidence()).profile == found.profile
    rotation = plan(**settings).profile
    assert rotation.with_margin(0.5) == rotation
