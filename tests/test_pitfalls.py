"""Every error that `docs/pitfalls.md` quotes is the one the code raises."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.accounting.plans import planned as planned_run
from tests.training import worlds
from uedp.accounting import certificate
from uedp.accounting.ledger import Budget, CorpusLedger, RunLedger
from uedp.accounting.model_files import model_files, refuse_other_files
from uedp.accounting.proven import RotationProfile
from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.clip.shared import SharedMask
from uedp.training import lineage
from uedp.training.datasets import refuse_private_text
from uedp.training.plan import build_plan

PAGE = (Path(__file__).parents[1] / "docs" / "pitfalls.md").read_text()
QUOTED = [" ".join(line.split()) for line in re.findall(r"^    (.*)$", PAGE, re.MULTILINE)]
PROFILE = RotationProfile(1.0, 0.1, 0.3)


class Net(nn.Module):
    """A linear layer, one more that does not do, and a weight that is used twice if asked for."""

    def __init__(self, twice: bool = False, **layers: nn.Module) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.twice = twice
        for name, layer in layers.items():
            self.add_module(name, layer)

    def losses(self, order):
        x = torch.arange(6.0).view(2, 1, 3)[list(order)]
        found = self.head(x).flatten(1).sum(1)
        return found + (x.flatten(1) @ self.head.weight.t()).sum(1) if self.twice else found


def batch_norm(folder):
    inner = nn.Module()
    inner.norm = nn.BatchNorm1d(3)
    Engine(Net(encoder=inner))


def no_rule(folder):
    Engine(Net(conv=nn.Conv2d(1, 1, 1)))


def used_twice(folder):
    net = Net(twice=True)
    Engine(net).check(net.losses, 2)


def tokens_first(folder):
    layer = torch.nn.Linear(3, 3)
    x = torch.arange(12.0).view(2, 2, 3)
    Engine(layer).check(lambda order: layer(x[list(order)].transpose(0, 1)).sum((0, 2)), 2)


def mixing(folder):
    net = Net()
    Engine(net).check(lambda order: net.losses(order) / len(order), 2)


def reduced(folder):
    net = Net()
    Engine(net).clipped_sum(lambda order: net.losses(order).mean(), [0, 1], torch.ones(2), 1.0)


def unheld_mask(folder):
    net = Net(drop=SharedMask(0.5)).train()
    Engine(net).clipped_sum(net.losses, [0, 1], torch.ones(2), 1.0)


def knows_already(folder):
    before = (lineage.Ancestor("20260101-000000-abc", "noiseless", "digest"),)
    lineage.refuse_reused_corpus(before, (("digest", ""),), "my-run")


def few_users(folder):
    build_plan(worlds.config("m", privacy__user_rate=0.01), worlds.incidence())


def budget(folder):
    ledger = CorpusLedger(folder)
    ledger.reserve(planned_run("one", "digest", PROFILE, 200))
    ledger.reserve(planned_run("two", "digest", PROFILE, 200), Budget(9, 1e-5))


def planned(folder):
    run = folder / "my-run"
    run.mkdir()
    with RunLedger.open(run, planned_run("my-run", "digest", PROFILE, 10)) as ledger:
        ledger.spend(10)
        ledger.spend()


def seeded(folder):
    plan = planned_run("run", "digest", PROFILE, 10, noise_source="fixed seed")
    with RunLedger.open(folder, plan):
        pass
    raise UserError(certificate.issue(folder).statement.splitlines()[0])


def unseeded(folder):
    run = folder / "my-run"
    run.mkdir()
    with RunLedger.open(
        run, planned_run("my-run", "digest", PROFILE, 10, noise_source="fixed seed")
    ):
        pass
    with RunLedger.open(run, planned_run("my-run", "digest", PROFILE, 10)):
        pass


def large_delta(folder):
    build_plan(worlds.config("m", privacy__delta=0.1), worlds.incidence())


def another_file(folder):
    run = folder / "my-run"
    run.mkdir()
    (run / "model.safetensors").write_bytes(b"weights")
    files = model_files(run)
    (run / "adapter_config.json").write_text("{}")
    refuse_other_files(run, files)


def cut(folder):
    run = folder / "my-run"
    run.mkdir()
    plan = planned_run("my-run", "digest", PROFILE, 10)
    with RunLedger.open(run, plan, folder) as ledger:
        ledger.spend()
        ledger.spend()
    path = run / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with RunLedger.open(run, plan, folder):
        pass


def public_users(folder):
    names = frozenset({"ann", "bob", "eve"})
    public = worlds.public_text(users=names, name="news.txt")
    refuse_private_text(worlds.training_data(folder, public=public, names=names))


CASES = (
    *(batch_norm, no_rule, used_twice, tokens_first, mixing, reduced, unheld_mask),
    *(knows_already, few_users, budget, planned, seeded),
    *(unseeded, large_delta, another_file, cut, public_users),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_error_is_quoted_as_it_is(case, tmp_path):
    with pytest.raises(UserError) as caught:
        case(tmp_path)
    said = str(caught.value).replace(f"{tmp_path}/", "")
    wanted = re.sub(r"come to [\d.]+", "come to", said)  # a number that the page makes up
    assert wanted in [re.sub(r"come to [\d.]+", "come to", line) for line in QUOTED]


def test_nothing_else_is_quoted():
    assert len(QUOTED) == len(CASES)
    assert len(set(QUOTED)) == len(QUOTED)
