"""Texts stay with their owners: the same model, whatever clients do that they should not."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.training import worlds
from uedp.accounting import certificate as certificates
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.distributed.client import FederatedClient, register
from uedp.distributed.federation import (
    ARRAYS,
    Answer,
    FederatedRounds,
    Federation,
    Order,
    server_data,
)
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError
from uedp.mechanism.processes import PartialSum
from uedp.training import loop
from uedp.training.config import Config

KEY = bytes(range(32))
NAMES = ("Ann Lee", "Bob Roy", "Eve Fox", "Joe May")


def sentences(users: range) -> list[Sentence]:
    """Of each user one that names somebody, marked as people would, and two that do not."""
    found = []
    for user in users:
        for number in range(3):
            text, marks = "the day is good " * (1 + user % 3), ()
            if number == 1:
                name = NAMES[user % 4]
                text, marks = f"call {name} now", (Span(5, 5 + len(name), "PERSON"),)
            found.append(Sentence(f"user-{user:02}", text, None, marks))
    return found


class Everybody:
    """A transport to clients in this process."""

    def __init__(self, clients: Mapping[str, Callable[[], FederatedClient]]) -> None:
        self._make, self.clients = clients, {}
        self.orders: list[Order] = []

    def exchange(self, orders: Mapping[str, Order]) -> Iterator[tuple[str, Answer]]:
        for name, order in orders.items():
            if name not in self.clients:
                self.clients[name] = self._make[name]()
            self.orders.append(order)
            yield from self.answers(name, order)

    def answers(self, name: str, order: Order) -> Iterator[tuple[str, Answer]]:
        yield name, self.clients[name].answer(order)


class World:
    """A corpus, and the same corpus as the texts of several clients."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        detection = Detection(("labels",))
        self.whole = detect(sentences(range(40)), folder / "whole", detection)
        self.parts = {
            f"client-{n}": detect(sentences(range(n * 8, n * 8 + 8)), folder / f"c{n}", detection)
            for n in range(5)
        }
        self.config = worlds.config(
            model, data__train=str(folder / "whole"), privacy__seed=3, model__train="lora"
        )
        self.federation = Federation.of({n: register(c, KEY) for n, c in self.parts.items()})

    def central(self) -> Mapping[str, torch.Tensor]:
        loop.run(self.config, self.folder / "central")
        return load_file(self.folder / "central" / "model.safetensors")

    def clients(self, config: Config) -> dict[str, Callable[[], FederatedClient]]:
        def maker(corpus: Corpus) -> Callable[[], FederatedClient]:
            return lambda: FederatedClient(corpus.folder, config, self.settings)

        return {name: maker(corpus) for name, corpus in self.parts.items()}

    def run(
        self, transport: type[Everybody] = Everybody, out: str = "run", **changes: object
    ) -> FederatedRounds:
        """A federated run; its rounds say what they received."""
        privacy = self.config.privacy.model_copy(update=changes)
        config = self.config.model_copy(update={"privacy": privacy})
        rounds = FederatedRounds(self.federation, transport(self.clients(config)))

        def watch(assembly):
            self.settings = assembly.plan.round_settings
            return rounds.watch(assembly)

        data = server_data(self.federation, self.folder / "federation")
        loop.run(config, self.folder / out, data=data, watch=watch)
        return rounds

    def weights(self, out: str = "run") -> Mapping[str, torch.Tensor]:
        return load_file(self.folder / out / "model.safetensors")


@pytest.fixture
def world(tmp_path, saved, monkeypatch) -> World:
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    return World(tmp_path, saved())


def apart(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_the_server_knows_the_incidence_and_no_name(world: World) -> None:
    incidence = world.federation.incidence
    assert incidence.digest == world.whole.incidence.digest
    for corpus in world.parts.values():
        told = register(corpus, KEY)
        raw = b"".join(getattr(told, name).tobytes() for name in ARRAYS)
        raw += repr(told.detection).encode()
        for name in (*corpus.user_names.to_pylist(), *corpus.entities["name"].to_pylist()):
            assert name.encode() not in raw
        other = register(corpus, bytes(32))
        assert not set(map(bytes, told.entities)) & set(map(bytes, other.entities))


def test_clients_together_train_the_model_that_one_owner_would(world: World) -> None:
    rounds = world.run()
    assert rounds.received.refused == []
    assert rounds.received.missing == 0
    assert apart(world.weights(), world.central()) < 1e-6


def test_the_certificate_of_a_federated_run_verifies(world: World) -> None:
    world.run(seed=None)
    found = certificates.verify(world.folder / "run", corpus=world.folder / "federation")
    assert found.rounds_spent == 4
    assert found.epsilon > 0


class Unreliable(Everybody):
    """Some answer twice, some with an old nonce, some not at all."""

    def answers(self, name: str, order: Order) -> Iterator[tuple[str, Answer]]:
        answer = self.clients[name].answer(order)
        kind = int(name[-1])
        if kind == 0:
            return
        if kind == 1:
            yield name, replace(answer, nonce="0" * 32)
            return
        yield name, answer
        if kind == 2:
            yield name, answer
        if kind == 3:
            yield "client-4", answer  # in another client's name


def test_clients_that_vanish_or_repeat_themselves_change_nothing_for_others(world: World) -> None:
    class Fewer(Everybody):
        def answers(self, name: str, order: Order) -> Iterator[tuple[str, Answer]]:
            if int(name[-1]) > 1:
                yield name, self.clients[name].answer(order)

    assert world.run(Fewer, "fewer").received.missing > 0
    rounds = world.run(Unreliable, "unreliable")
    assert any("nobody asked" in line for line in rounds.received.refused)
    assert any("second update" in line for line in rounds.received.refused)
    assert apart(world.weights("fewer"), world.weights("unreliable")) < 1e-7


@pytest.mark.parametrize(
    "kind", ["nan", "huge", "long", "short", "other user", "integers", "table of users", "nonce"]
)
def test_what_is_not_an_update_is_refused(world: World, kind: str) -> None:
    class Bad(Everybody):
        def answers(self, name: str, order: Order) -> Iterator[tuple[str, Answer]]:
            answer = self.clients[name].answer(order)
            if name == "client-2":
                updates, users = answer.updates.clone(), answer.users
                if kind == "nan":
                    updates[0, 0] = float("nan")
                elif kind == "huge":  # finite, until it is added to a sum of float32
                    updates = torch.full_like(updates, 1e100, dtype=torch.float64)
                elif kind == "long":
                    updates = torch.cat([updates, updates], 1)
                elif kind == "short":
                    updates = updates[:, :-1]
                elif kind == "integers":
                    updates = updates.int()
                elif kind == "table of users":
                    users = np.stack([users, users], 1)
                elif kind == "nonce":
                    answer = replace(answer, nonce="é" * 32)
                else:
                    users = users + 100
                answer = Answer(answer.nonce, users, updates)
            yield name, answer

    rounds = world.run(Bad, noise=1.0, user_rate=1.0)
    assert rounds.received.missing == 8
    assert rounds.received.users == 32
    assert all(line.startswith("client client-2: ") for line in rounds.received.refused)


def test_a_malicious_update_moves_the_sum_by_the_clip_at_most(world: World) -> None:
    sums = {}

    class Malicious(Everybody):
        scale = 1.0

        def answers(self, name: str, order: Order) -> Iterator[tuple[str, Answer]]:
            answer = self.clients[name].answer(order)
            if name == "client-2":
                large = torch.ones_like(answer.updates, dtype=torch.float64) * self.scale
                answer = replace(answer, updates=large)
            yield name, answer

    clip = world.config.privacy.update_clip
    rounds = world.run(noise=1.0, user_rate=1.0)
    orders = rounds.transport.orders
    scales = (1e6, 1e30, 3e38)  # the last squared is more than a sum can hold
    for scale in (0.0, *scales):
        rounds.transport = Malicious({})
        rounds.transport.clients = {
            name: make() for name, make in world.clients(world.config).items()
        }
        rounds.transport.scale = scale
        rounds._asked = dict(zip(world.federation.clients, orders[-5:], strict=True))
        size = sum(p.numel() for p in rounds._method.parameters)
        empty = np.zeros(0)
        own = PartialSum(torch.zeros(size), empty.astype(bool), empty)
        sums[scale] = rounds.add_up(own).total.double()
    for scale in scales:
        moved = float((sums[scale] - sums[0.0]).norm())
        assert 0.99 * 8 * clip < moved <= 8 * clip * (1 + 1e-6)  # eight users of that client


def test_a_user_at_two_clients_is_refused(world: World) -> None:
    one = register(world.parts["client-0"], KEY)
    with pytest.raises(UserError, match="same user"):
        Federation.of({"a": one, "b": one})


def test_a_damaged_registration_is_refused(world: World) -> None:
    good = register(world.parts["client-0"], KEY)
    bad = {
        "another length": {"users": good.users[:, :8]},
        "registered twice": {"entities": good.entities[[0, 0, *range(2, len(good.entities))]]},
        "out of range": {"sentence_user": good.sentence_user + 10**6},
        "not integers": {"mention_entity": good.mention_entity.astype(float)},
        "no sentence": {"mention_sentence": good.mention_sentence[1:]},
    }
    for words, change in bad.items():
        with pytest.raises(UserError, match=words):
            Federation.of({"a": replace(good, **change)})
