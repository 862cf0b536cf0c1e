"""A method in one file outside the package: it trains, is certified, resumes and is audited."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.training import worlds
from tests.training.runs import stopping_after
from uedp.accounting import profile
from uedp.accounting.certificate import verify
from uedp.accounting.divergence import DominatingPair
from uedp.accounting.profile import Profile, register_profile
from uedp.accounting.proven import UserLevelProfile
from uedp.audit import sensitivity
from uedp.audit.training import audit
from uedp.incidence import Incidence
from uedp.mechanism.sampling import Sampling, draw_whole
from uedp.methods import (
    UNATTENDED,
    Attempt,
    ClippedMethod,
    Gradient,
    MethodOptions,
    PrivacySettings,
    RoundSettings,
    base,
    register_method,
)
from uedp.methods.base import Draw
from uedp.training import loop
from uedp.training.plan import build_plan


@dataclass(frozen=True)
class FewSentencesProfile(Profile):
    """Users as in user-level DP-SGD."""

    method = "few-sentences"
    unit = "one user, of whom at most a few sentences are used in a round"
    unit_of_groups = "one group of texts"
    short_unit = "one user"
    protects_entities = False

    def pairs(self) -> Mapping[str, DominatingPair]:
        return UserLevelProfile(self.noise, self.user_rate).pairs()

    def user_alone(self) -> "FewSentencesProfile":
        return self


class FewSentencesOptions(MethodOptions):
    sentences: int = 2


class FewSentences(ClippedMethod):
    """User-level privacy with a few sentences per user, and a state that must survive."""

    name = "few-sentences"
    profile_type = FewSentencesProfile
    options_type = FewSentencesOptions

    rounds_made = 0

    @classmethod
    def profile(cls, privacy: PrivacySettings, incidence: Incidence, noise: float) -> Profile:
        return FewSentencesProfile(noise, privacy.user_rate)

    @classmethod
    def sampler(cls, settings: RoundSettings, incidence: Incidence) -> Draw:
        options = settings.options
        assert isinstance(options, FewSentencesOptions)
        sampling = Sampling(settings.sampling.user_rate, per_user=options.sentences)
        return lambda number, uniforms, key: draw_whole(incidence, sampling, uniforms, key)

    def round(self, number: int, attempt: Attempt = UNATTENDED) -> Gradient:
        gradient = super().round(number, attempt)
        self.rounds_made += 1  # after it: a round that is interrupted leaves no trace
        return gradient

    def state(self) -> dict[str, torch.Tensor]:
        return {"rounds": torch.tensor(self.rounds_made)}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self.rounds_made = int(state["rounds"])


@pytest.fixture(scope="module", autouse=True)
def registered():
    """For this file only: other tests ask the registries for what the package has."""
    register_profile(FewSentencesProfile)
    register_method(FewSentences)
    yield
    base._METHODS.pop(FewSentences.name)
    profile._PROFILES.pop(FewSentences.name)


@pytest.fixture
def config(tmp_path: Path):
    return worlds.config(
        worlds.model(tmp_path, "gpt2"),
        privacy__method="few-sentences",
        method_options__sentences=1,
    )


def test_a_toy_method_trains_and_is_certified(config, tmp_path):
    outcome = loop.run(config, tmp_path / "run", data=worlds.training_data(tmp_path / "corpus"))
    assert outcome.finished
    certificate = verify(tmp_path / "run", corpus=tmp_path / "corpus")
    assert certificate.method == "few-sentences"
    assert certificate.epsilon == build_plan(config, worlds.incidence()).epsilon < float("inf")
    assert "of whom at most a few sentences" in certificate.statement


def test_a_toy_method_resumes_with_its_state(config, tmp_path):
    data, made = worlds.training_data(tmp_path / "corpus"), []

    def watch(assembly):
        made.append(assembly.method)
        return assembly.method

    loop.run(config, tmp_path / "run", data=data, progress=stopping_after(2), watch=watch)
    outcome = loop.run(config, tmp_path / "run", data=data, resume=True, watch=watch)
    assert outcome.finished
    assert [method.rounds_made for method in made] == [2, 4]


def test_the_options_of_a_toy_method_are_validated(tmp_path):
    for fields, complaint in (
        ({"method_options__sentences": "many"}, "method_options.sentences 'many'"),
        ({"method_options__sentence": 1}, "method_options.sentence: no such field"),
    ):
        with pytest.raises(Exception, match=complaint):
            worlds.config("model", privacy__method="few-sentences", **fields)


SMALL = {"seed": 0, "rounds": 3, "scanned": 60, "chance": 1e-6}


def test_the_rounds_of_a_toy_method_are_audited(config, monkeypatch):
    plan = build_plan(config, worlds.incidence())
    assert sensitivity.measure(plan, **SMALL).broken == []
    # rounds that clip at twice the norm they are accounted for are found out
    settings = RoundSettings.__init__

    def twice(self, **fields):
        clips = fields["clips"]
        settings(self, **{**fields, "clips": replace(clips, update=2 * clips.update)})

    monkeypatch.setattr(RoundSettings, "__init__", twice)
    assert sensitivity.measure(plan, **SMALL).broken


def test_a_training_run_of_a_toy_method_is_audited(config, tmp_path):
    counts = {"users": 20, "entities": 0, "references": 16, "seed": 0}
    data = worlds.training_data(tmp_path / "corpus", held_out=False)
    audited = audit(config, tmp_path / "audit", data=data, **counts)
    assert audited.method == "few-sentences"
    assert audited.covers == ("user",)
    assert not audited.refuted
