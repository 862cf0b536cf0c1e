"""The noise of the released code: how much it is, and that nothing certifies it."""

import json
from pathlib import Path

import numpy as np
import pytest

import uedp
from research import audit_released, released_reach
from research.audit_released import MODELS, noise_of, stated_config
from research.paper import COUNTS
from research.released_noise import NAME, ReleasedEstimator, too_small
from tests.methods.rounds import flat, method_on, plan
from tests.training import worlds
from uedp.audit.training import audit
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.estimators import Weights, f_e_plus
from uedp.mechanism.sampling import Sampling
from uedp.methods import method_named
from uedp.training import loop

OPTIONS = {
    "privacy__noise": None,
    "privacy__user_rate": 0.2,
    "privacy__entity_rate": 0.5,
    "privacy__update_clip": 0.1,
}


def paper_world() -> Incidence:
    """As many users, sentences and sensitive ones as the paper counts in CoNLL-2003."""
    counts = COUNTS["conll"]
    sensitive = counts["sensitive"]["all"]
    owners = np.arange(counts["sentences"]) % counts["users"]
    return Incidence.build(
        owners, np.arange(sensitive), np.arange(sensitive), counts["users"], sensitive
    )


# --- how much ------------------------------------------------------------------------------------


def test_the_variance_is_used_as_deviation():
    sampling, weights = Sampling(0.2, 0.5), Weights.of(worlds.incidence())
    stated = f_e_plus(sampling, weights, 0.1, 2.0)
    released = ReleasedEstimator(sampling, weights, 0.1, 2.0)
    assert released.deviation == pytest.approx(stated.deviation**2)
    assert released.deviation_of_sum == pytest.approx(released.deviation * stated.denominator)
    assert released.denominator == stated.denominator
    assert too_small(stated) == pytest.approx(stated.deviation / released.deviation)


def test_at_the_papers_settings_it_is_tens_of_thousands_of_times_too_small():
    noise = noise_of(MODELS["lstm"], paper_world())
    assert 3e4 < noise["too_small"] < 5e4
    # by hand: z (q_u U + 1) beta over q_u U (q_e E + S)
    drawn, entities = 0.05 * 946, 0.5 * 11176 + 14040 - 11176
    assert noise["stated"] == pytest.approx(2 * (drawn + 1) * 0.1 / (drawn * entities))
    assert noise["released"] == pytest.approx(noise["stated"] ** 2)


def test_a_round_adds_that_noise_and_is_otherwise_uedp_alg():
    released = plan(NAME, privacy__seed=1, method_options__z=2.0, **OPTIONS)
    exact = plan("uedp-alg", privacy__seed=1, **OPTIONS | {"privacy__noise": 0.0})
    ours, theirs = method_on(released).round(0), method_on(exact).round(0)
    noise = flat(ours.values) - flat(theirs.values)
    stated = f_e_plus(released.sampling, Weights.of(worlds.incidence()), 0.1, 2.0)
    assert ours.deviation == pytest.approx(stated.deviation**2, rel=1e-3)
    # a third more or less would be noticed
    assert float(noise.std()) == pytest.approx(ours.deviation, rel=0.05)


# --- never certified -----------------------------------------------------------------------------


def test_it_is_never_certified(tmp_path):
    assert method_named(NAME).profile_type is None
    config = worlds.config(
        str(worlds.model(tmp_path, "gpt2")), privacy__method=NAME, privacy__rounds=1, **OPTIONS
    )
    outcome = loop.run(config, tmp_path / "run", data=worlds.training_data(tmp_path / "corpus"))
    assert outcome.finished
    assert outcome.certificate is None
    assert not list((tmp_path / "run").glob("certificate*"))


@pytest.mark.parametrize("field", ["epsilon", "noise"])
def test_it_takes_neither_epsilon_nor_noise(field):
    with pytest.raises(UserError, match="leave out epsilon and noise"):
        plan(NAME, **OPTIONS | {f"privacy__{field}": 1.0})


def test_the_product_does_not_know_it():
    sources = Path(uedp.__file__).parent.rglob("*.py")
    assert not [path for path in sources if NAME in path.read_text(encoding="utf-8")]


# --- auditing ------------------------------------------------------------------------------------


def test_the_model_under_audit_can_be_measured_before_it_is_removed(tmp_path):
    seen = []
    config = worlds.config(
        str(worlds.model(tmp_path, "gpt2")), privacy__method=NAME, privacy__rounds=2, **OPTIONS
    )
    found = audit(
        config,
        tmp_path / "audit",
        data=worlds.training_data(tmp_path / "corpus"),
        users=20,
        entities=0,
        seed=0,
        references=4,
        inspect=lambda outcome: seen.append((outcome.rounds, outcome.folder.is_dir())),
    )
    assert seen == [(2, True)]
    assert found is not None
    assert found.proven is None
    assert not (tmp_path / "audit" / "run").exists()


def test_the_stated_noise_differs_in_nothing_else():
    released, stated = MODELS["lstm"], stated_config(MODELS["lstm"])
    assert stated["privacy"]["noise"] == released["method_options"]["z"] == 2.0
    assert stated["privacy"] | {"method": NAME} == released["privacy"] | {"noise": 2.0}
    assert "z" not in stated["method_options"]
    assert stated["model"] == released["model"]


def test_the_paper_claims_half_an_epsilon_for_such_a_run():
    assert audit_released._published(MODELS["lstm"]) == pytest.approx(0.5, abs=0.02)


# --- how far the pretrained model can move -------------------------------------------------------


def test_no_weight_moves_further_than_the_radius():
    """AdamW's largest step, a single gradient after many of zero, over the number of entities."""
    import torch

    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    steps = torch.optim.AdamW([weight], lr=1e-5, weight_decay=0.0)
    for gradient in [0.0] * 5000 + [1.0]:
        weight.grad = torch.full_like(weight, gradient)
        steps.step()
    divisor = 0.5 * 4406 + 14040 - 4406
    assert abs(weight.item()) / divisor == pytest.approx(released_reach.radius(1), rel=1e-2)
    assert released_reach.radius(10) == pytest.approx(10 * released_reach.radius(1))


def test_reach_is_measured(tmp_path):
    folder = worlds.model(tmp_path, "gpt2")
    found = json.loads(json.dumps(released_reach.measure(str(folder), ["the day is good"] * 2)))
    assert found["sentences"] == 2
    assert found["gradient_norm_1"] > 0
    assert 0 < found["perplexity"] - found["least_perplexity"] < 1e-2 * found["perplexity"]
