"""Federated rounds over Flower's messages: what is sent, what is refused, who is believed."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs uedp[federated]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity

from tests.distributed.test_federation import KEY, World, apart, sentences
from uedp.accounting import certificate as certificates
from uedp.accounting.ledger import CorpusLedger
from uedp.corpus.store import Corpus
from uedp.distributed import flower, wire
from uedp.distributed.client import Client, FederatedClient, make_key, read_key, register
from uedp.distributed.federation import Answer, Federation, Order, common_detection
from uedp.distributed.flower import Members, Server, client_app
from uedp.distributed.registrations import load_registrations, refuse_other_federation
from uedp.distributed.terms import RoundTerms, difference, refuse_unsuited, terms_of
from uedp.entities.detection import Detection, detect
from uedp.errors import CheckFailedError, UserError
from uedp.incidence import Rows
from uedp.training import loop
from uedp.training.config import Config
from uedp.training.datasets import Texts, TrainingData

Behaviour = Callable[[int, Message, Message], list[Message]]


def sent(records: RecordDict) -> RecordDict:
    """Records as they arrive."""
    return recorddict_from_proto(recorddict_to_proto(records))


def faithful(node: int, message: Message, reply: Message) -> list[Message]:
    return [reply]


class Grid:
    """The grid of a SuperLink: a reply is filed under the message that its SuperNode was sent."""

    def __init__(self, apps: dict[int, Any], behave: Behaviour = faithful) -> None:
        self.apps, self.behave = apps, behave
        self.offline: set[int] = set()
        self.orders: list[Message] = []
        self.filed: dict[str, list[Message]] = {}
        self._count = 0

    def get_node_ids(self) -> list[int]:
        return [node for node in self.apps if node not in self.offline]

    def push_messages(self, messages: list[Message]) -> Iterator[str]:
        for message in messages:
            node = message.metadata.dst_node_id
            self._count += 1
            number = message.metadata.__dict__["_message_id"] = f"m{self._count}"
            message.content = sent(message.content)
            context = Context(1, node, {}, RecordDict(), {})
            reply = self.apps[node](message, context)
            reply.metadata.__dict__["_message_id"] = f"r{self._count}"
            if message.metadata.message_type == wire.UPDATES:
                self.orders.append(message)
                self.filed[number] = self.behave(node, message, reply)
            else:
                self.filed[number] = [reply]
            yield number

    def pull_messages(self, numbers: list[str]) -> list[Message]:
        return [reply for number in numbers for reply in self.filed.pop(number, [])]


class Federated:
    """A federation of the clients of a world, over messages."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        privacy = world.config.privacy.model_copy(update=changes)
        self.config = world.config.model_copy(update={"privacy": privacy})
        self.said: list[str] = []
        self.told: list[str] = []
        self.folder = world.folder / "federation"

    def client(self, name: str, **changes: Any) -> Client:
        return replace(Client(self.world.parts[name].folder, KEY, self.config), **changes)

    def apps(self, first: int = 100, **clients: Client) -> dict[int, Any]:
        everybody = {name: self.client(name) for name in self.world.parts} | clients
        return {
            first + number: client_app(lambda context, one=one: one, self.told.append)
            for number, one in enumerate(everybody.values())
        }

    def server(self, out: str = "run", **settings: Any) -> Server:
        settings = {"clients": 5, "wait": 20.0, "patience": 0.5} | settings
        path = self.world.folder / out
        return Server(self.config, path, self.folder, say=self.said.append, **settings)

    def train(self, grid: Grid, out: str = "run", **settings: Any) -> None:
        self.server(out, **settings).train(grid)


@pytest.fixture
def world(tmp_path: Path, saved: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    monkeypatch.setattr(flower, "_PAUSE", 0.01)
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return World(tmp_path, saved())


# --- the wire ------------------------------------------------------------------------------------


def an_order() -> Order:
    return Order(
        nonce="ab" * 16,
        weights=torch.tensor([0.5, -2.0, 3.0]),
        users=np.array([4, 1]),
        sentences=Rows(np.array([0, 2, 2]), np.array([7, 8])),
        parts=np.array([0.25, 1.0]),
        mask_key=b"\x00\xff" * 16,
    )


def test_what_is_sent_is_what_arrives(world: World) -> None:
    one = register(world.parts["client-1"], KEY)
    assert wire.read_registration(sent(wire.registration(one))).name == one.name
    nobody = replace(one, mention_sentence=np.zeros(0, int), mention_entity=np.zeros(0, int))
    assert wire.read_registration(sent(wire.registration(nobody))).name == nobody.name
    order, terms = wire.read_order(sent(wire.order(an_order(), RoundTerms('{"a": 1}'))))
    assert terms == RoundTerms('{"a": 1}')
    for name, value in vars(an_order()).items():
        if isinstance(value, Rows):
            assert order.sentences.offsets.tolist() == value.offsets.tolist()
            assert order.sentences.values.tolist() == value.values.tolist()
        else:
            assert np.array_equal(np.asarray(getattr(order, name)), np.asarray(value))
    answer = Answer("cd" * 16, np.array([4]), torch.tensor([[1.0, float("nan"), 1e38]]))
    read = wire.read_answer(sent(wire.answer(answer)))
    assert (read.nonce, read.users.tolist()) == (answer.nonce, [4])
    assert torch.equal(read.updates.nan_to_num(), answer.updates.nan_to_num())
    assert wire.read_invitation(sent(wire.invitation({"privacy": {}}))) == {"privacy": {}}
    assert wire.read_problem(sent(wire.problem("x " * 1000))) == ("x " * 1000)[:500].strip()
    assert wire.read_problem(wire.answer(answer)) is None
    assert wire.read_problem(sent(wire.ready())) is None
    assert wire.read_preparation(sent(wire.preparation(terms))) == terms


def _raw(dtype: str, shape: tuple[int, ...], data: bytes, stype: str = "uedp.raw") -> Array:
    return Array(dtype, shape, stype, data)


DAMAGED: dict[str, Callable[[RecordDict], object]] = {
    "no words": lambda r: r.pop("uedp"),
    "no arrays": lambda r: r.pop("arrays"),
    "arrays for words": lambda r: r.__setitem__("uedp", ArrayRecord()),
    "words for arrays": lambda r: r.__setitem__("arrays", ConfigRecord()),
    "protocol": lambda r: r["uedp"].__setitem__("protocol", 2),
    "nonce": lambda r: r["uedp"].__setitem__("nonce", 7),
    "no nonce": lambda r: r["uedp"].pop("nonce"),
    "missing": lambda r: r["arrays"].pop("users"),
    "type": lambda r: r["arrays"].__setitem__("users", _raw("float64", (1,), bytes(8))),
    "object": lambda r: r["arrays"].__setitem__("users", _raw("object", (1,), bytes(8))),
    "short": lambda r: r["arrays"].__setitem__("users", _raw("int64", (2,), bytes(8))),
    "huge": lambda r: r["arrays"].__setitem__("users", _raw("int64", (2**60,), bytes(8))),
    "negative": lambda r: r["arrays"].__setitem__("users", _raw("int64", (-1,), b"")),
    "scalar": lambda r: r["arrays"].__setitem__("users", _raw("int64", (), bytes(8))),
    "table": lambda r: r["arrays"].__setitem__("users", _raw("int64", (1, 1), bytes(8))),
    "numpy file": lambda r: r["arrays"].__setitem__("users", Array(np.array([1]))),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_message_is_refused(kind: str) -> None:
    read: dict[Callable[[RecordDict], Any], RecordDict] = {
        wire.read_order: wire.order(an_order(), RoundTerms("{}")),
        wire.read_answer: wire.answer(Answer("ab", np.array([4]), torch.zeros(1, 3))),
    }
    for reader, records in read.items():
        reader(records)
        DAMAGED[kind](records)
        with pytest.raises(ValueError, match=r"\w"):
            reader(records)


@pytest.mark.parametrize("offsets", [[], [1, 2], [0, 1], [0, 3], [0, 2, 1, 2]])
def test_sentences_of_nobody_are_refused(offsets: list[int]) -> None:
    records = wire.order(an_order(), RoundTerms("{}"))
    records["arrays"]["offsets"] = wire._raw(np.array(offsets, dtype=np.int64))
    with pytest.raises(ValueError, match=r"users|user"):
        wire.read_order(records)


def test_a_registration_out_of_range_is_refused(world: World) -> None:
    one = register(world.parts["client-1"], KEY)
    with pytest.raises(ValueError, match="out of range"):
        wire.read_registration(
            wire.registration(replace(one, mention_entity=one.mention_entity + 9))
        )


# --- training ------------------------------------------------------------------------------------


def centrally(world: World, fed: "Federated", out: str = "central") -> None:
    """The same run by one owner of all texts, who numbers users and entities alike."""
    corpora = {register(corpus, KEY).name: corpus for corpus in world.parts.values()}
    joined = Federation.of(load_registrations(fed.folder))
    texts = [
        text for name in joined.clients for text in corpora[name].sentences["text"].to_pylist()
    ]
    train = Texts(texts, [None] * len(texts))
    (world.folder / out).mkdir()
    data = TrainingData(train, joined.incidence, world.folder / out)
    loop.run(fed.config, world.folder / out / "run", data=data)


def test_clients_over_flower_train_the_model_that_one_owner_would(world: World) -> None:
    fed = Federated(world)
    grid = Grid(fed.apps())
    fed.train(grid)
    assert sum(line.startswith("registered as client ") for line in fed.told) == 5
    centrally(world, fed)
    assert apart(world.weights(), world.weights("central/run")) < 1e-6
    nonces = [message.content["uedp"]["nonce"] for message in grid.orders]
    assert len(set(nonces)) == len(nonces)  # nobody knows that of another's order


def test_the_certificate_says_who_was_trusted_with_what(world: World) -> None:
    fed = Federated(world, seed=None)
    fed.train(Grid(fed.apps()))
    found = certificates.verify(world.folder / "run", corpus=fed.folder)
    refuse_other_federation(found, fed.folder)
    assert found.private
    assert found.setup.holders == "clients"
    assert "texts stayed with clients" in found.statement
    assert found.setup.entities is not None
    assert tuple(found.setup.entities.detectors) == ("labels",)
    for corpus in world.parts.values():  # which count the run from now on
        (entry,) = CorpusLedger(corpus.folder).entries()
        assert (entry.run, entry.counted) == (found.run, 4)
    elsewhere = world.folder / "run" / "certificate.json"
    stated = json.loads(elsewhere.read_text())
    stated["setup"]["holders"] = "the curator"
    elsewhere.write_text(json.dumps(stated))
    with pytest.raises(UserError, match="holders"):
        certificates.verify(world.folder / "run")


def answer_to(message: Message, **changes: Any) -> Message:
    """A reply in which a client writes what it likes."""
    order, _ = wire.read_order(message.content)
    values = {"nonce": order.nonce, "users": order.users} | changes
    values.setdefault("updates", torch.zeros(len(values["users"]), len(order.weights)))
    return Message(wire.answer(Answer(**values)), reply_to=message)


def test_what_clients_do_wrong_costs_only_their_own_users(world: World) -> None:
    def behave(node: int, message: Message, reply: Message) -> list[Message]:
        order, _ = wire.read_order(message.content)
        long = torch.zeros(len(order.users), len(order.weights) + 1)
        bad = torch.full((len(order.users), len(order.weights)), float("nan"))
        garbage = Message(RecordDict({"x": ConfigRecord({"y": 1})}), reply_to=message)
        return {
            100: [],  # late
            101: [answer_to(message, updates=bad)],
            102: [answer_to(message, updates=long)],
            103: [Message(Error(1, "crash"), reply_to=message)],
            104: [garbage, reply],
        }[node]

    fed = Federated(world, seed=None)
    fed.train(Grid(fed.apps(), behave))
    lines = [line for line in fed.said if "without an update" in line]
    assert len(lines) == 4
    everything = " ".join(lines)
    for words in ("no answer in time", "not finite", "another size"):
        assert words in everything
    found = certificates.verify(world.folder / "run", corpus=fed.folder)
    faithfully = Federated(world, seed=None)
    faithfully.folder = world.folder / "federation-2"
    faithfully.train(Grid(faithfully.apps()), "run-2")
    assert found.epsilon == certificates.verify(world.folder / "run-2").epsilon


def test_an_impostor_is_not_believed(world: World) -> None:
    """What one client writes in another's name is filed, and refused, under its own."""
    stolen: list[Message] = []

    def behave(node: int, message: Message, reply: Message) -> list[Message]:
        if node != 102:
            stolen.append(message)
            return [reply]
        victim = wire.read_order(stolen[-1].content)[0]
        forged = answer_to(message, users=victim.users, nonce=victim.nonce)
        forged.metadata.__dict__["_src_node_id"] = stolen[-1].metadata.dst_node_id
        forged.metadata.__dict__["_reply_to_message_id"] = stolen[-1].metadata.message_id
        return [forged]

    fed = Federated(world)
    fed.train(Grid(fed.apps(), behave))
    name = fed.client("client-2").registration.name
    lines = [line for line in fed.said if "without an update" in line]
    assert len(lines) == 4
    assert all(f"client {name}: an answer that nobody asked for" in line for line in lines)


# --- who takes part ------------------------------------------------------------------------------


def test_too_few_clients_are_not_waited_for_forever(world: World) -> None:
    fed = Federated(world)
    grid = Grid(fed.apps())
    grid.offline = {103, 104}
    with pytest.raises(UserError, match="3 of 5 clients registered within"):
        fed.train(grid, wait=0.2)
    assert not (world.folder / "run").exists()
    assert not (fed.folder / "federation.npz").exists()


def test_a_node_that_vanishes_while_it_registers_is_invited_again(world: World) -> None:
    fed = Federated(world)
    grid = Grid(fed.apps())
    members = Members(grid, terms_of(fed.config), fed.said.append)
    real, grid.pull_messages = grid.pull_messages, lambda numbers: []
    members.update()
    assert not members.nodes
    grid.offline = {100}
    members.update()
    grid.offline, grid.pull_messages = set(), real
    members.update()
    assert sorted(members.nodes.values()) == [100, 101, 102, 103, 104]


def test_a_client_with_another_config_is_not_taken(world: World) -> None:
    fed = Federated(world)
    privacy = fed.config.privacy.model_copy(update={"update_clip": 5.0})
    other = fed.client("client-1", config=fed.config.model_copy(update={"privacy": privacy}))
    with pytest.raises(UserError, match="4 of 5"):
        fed.train(Grid(fed.apps(**{"client-1": other})), wait=0.2)
    words = "privacy.update_clip: the server has 1.0, this client 5.0; use the same config"
    assert f"refused: {words}" in fed.told
    assert any(words in line for line in fed.said)


def test_a_connected_client_is_not_taken_over(world: World) -> None:
    fed = Federated(world)
    grid = Grid(fed.apps())
    members = Members(grid, terms_of(fed.config), fed.said.append)
    members.gather(5, 5, {})
    copied = fed.client("client-3")
    grid.apps[200] = client_app(lambda context: copied)
    members.update()
    assert 200 not in members.nodes.values()
    assert "is connected by another SuperNode" in fed.said[-1]
    stranger = fed.client("client-3", key=bytes(32))
    grid.apps[300] = client_app(lambda context: stranger)
    members.update()
    assert "not that of a client of this federation" in fed.said[-1]
    grid.offline = {103}  # it was started again, as another SuperNode
    grid.apps[400] = client_app(lambda context: copied)
    members.update()
    assert members.nodes[copied.registration.name] == 400


def test_a_later_run_has_the_same_clients(world: World) -> None:
    fed = Federated(world, seed=None)
    fed.train(Grid(fed.apps()))
    grid = Grid(fed.apps(500))  # other numbers of SuperNodes
    detect(sentences(range(16, 23)), world.folder / "less", Detection(("labels",)))
    other = Client(world.folder / "less", KEY, fed.config)
    grid.apps[502] = client_app(lambda context: other)
    fed.train(grid, "run-2", wait=1.0)
    assert "1 of 5 clients are missing; their users count as 0" in fed.said
    found = certificates.verify(world.folder / "run-2", corpus=fed.folder)
    first = certificates.verify(world.folder / "run")
    assert found.incidence == first.incidence
    assert found.corpus_total is not None
    assert found.corpus_total.runs == 2
    with pytest.raises(CheckFailedError, match="not the users and entities"):
        refuse_other_federation(
            found.model_copy(update={"incidence": replace_digest(found.incidence)}), fed.folder
        )


def replace_digest(shape: Any) -> Any:
    return shape.model_copy(update={"digest": "0" * 64})


def test_a_damaged_federation_is_refused(world: World) -> None:
    fed = Federated(world)
    fed.train(Grid(fed.apps()))
    path = fed.folder / "federation.npz"
    assert len(load_registrations(fed.folder)) == 5
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(UserError, match="damaged"):
        load_registrations(fed.folder)
    with pytest.raises(UserError, match="is a corpus"):
        load_registrations(world.folder / "whole")


# --- a client ------------------------------------------------------------------------------------


def test_a_client_refuses_orders_for_what_it_does_not_have(world: World) -> None:
    client = FederatedClient(
        world.parts["client-0"].folder, world.config, round_settings(world.config)
    )
    size = sum(p.numel() for p in client._method.parameters)
    good = Order(
        "n", torch.zeros(size), np.array([2]), Rows(np.array([0, 1]), np.array([6])),
        np.ones(1), bytes(32),
    )  # fmt: skip
    client.answer(good)
    for change in (
        {"users": np.array([1])},  # whose sentence it is not
        {"users": np.array([8])},
        {"sentences": Rows(np.array([0, 1]), np.array([99]))},
        {"sentences": Rows(np.array([0, 1]), np.array([-1]))},
        {"parts": np.array([1.5])},
        {"parts": np.array([float("nan")])},
        {"parts": np.ones(2)},
        {"weights": torch.zeros(size + 1)},
        {"sentences": Rows(np.array([0, 1, 1]), np.array([6]))},
    ):
        with pytest.raises(UserError, match="does not have"):
            client.answer(replace(good, **change))


def round_settings(config: Config) -> Any:
    from tests.training import worlds
    from uedp.training.plan import build_plan

    return build_plan(config, worlds.incidence()).round_settings


def test_another_model_is_refused(world: World, saved: Any) -> None:
    with pytest.raises(UserError, match="frozen weights"):
        FederatedClient(
            world.parts["client-0"].folder, world.config, round_settings(world.config), "0" * 64
        )


def test_a_run_beyond_a_clients_budget_is_refused_before_anything_is_computed(
    world: World,
) -> None:
    fed = Federated(world, seed=None)
    privacy = fed.config.privacy.model_copy(update={"corpus_budget": 0.01})
    careful = fed.client("client-1", config=fed.config.model_copy(update={"privacy": privacy}))
    fed.train(Grid(fed.apps(**{"client-1": careful})))
    name = careful.registration.name
    assert f"client {name}: refused or failed; its own messages say why" in fed.said
    assert any("budget epsilon 0.01" in line for line in fed.told)
    assert not any("budget" in line for line in fed.said)  # that is between it and its users
    assert not CorpusLedger(careful.corpus).entries()


def test_what_goes_wrong_at_a_client_stays_there(world: World) -> None:
    fed = Federated(world)
    one = fed.client("client-0")

    def broken(*arguments: object) -> None:
        raise RuntimeError("cannot tokenize 'call Ann Lee now'")

    one.answer = broken
    fed.train(Grid(fed.apps(**{"client-0": one})))
    assert any("Ann Lee" in line for line in fed.told)
    assert any("refused or failed" in line for line in fed.said)
    assert not any("Ann Lee" in line for line in fed.said)


def test_a_detection_by_own_lists_is_not_stated(world: World) -> None:
    folder = world.folder / "listed"
    detect(
        sentences(range(8)),
        folder,
        Detection(("labels",)),
    )
    plain = register(Corpus(folder), KEY)
    assert plain.detection["detectors"] == ["labels"]
    assert set(plain.detection.get("propagation", {"rule": 0})) == {"rule"}
    info = json.loads((folder / "corpus.json").read_text())
    from uedp.distributed.client import _detection

    assert _detection(info | {"declared_public": ["Acme"]}) == {"assigned_users": False}
    groups = replace(plain, detection={**plain.detection, "assigned_users": True})
    both = {"a": plain, "b": groups}
    assert common_detection(both)["source"] == {"assigned_users": True}
    assert common_detection(both)["detectors"] == ["labels"]
    listed = replace(plain, detection={"assigned_users": False})
    assert "detectors" not in common_detection({"a": plain, "b": listed})


def test_a_corpus_that_was_extended_cannot_take_part(world: World) -> None:
    corpus = Corpus(world.parts["client-0"].folder)
    corpus.epochs = (*corpus.epochs, *corpus.epochs)
    with pytest.raises(UserError, match="extended"):
        register(corpus, KEY)


def test_a_key_is_kept_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key(path)
    assert len(read_key(path)) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="exists already"):
        make_key(path)
    path.write_text("short\n")
    for bad in (path, tmp_path / "none"):
        with pytest.raises(UserError, match="holds no key"):
            read_key(bad)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy__method": "noiseless"}, "privacy.method noiseless"),
        ({"privacy__method": "uedp-alg"}, "privacy.method uedp-alg"),
        ({"privacy__method": "deidentified"}, "privacy.method deidentified"),
        ({"vocabulary__source": "corpus"}, "vocabulary.source corpus"),
        ({"data__public": "news.txt"}, "data.public"),
        ({"task__kind": "classification"}, "task.labels"),
    ],
)
def test_a_run_that_cannot_be_federated_is_refused_at_once(
    changes: dict[str, Any], words: str, saved: Any
) -> None:
    from tests.training import worlds

    with pytest.raises(UserError, match=words):
        refuse_unsuited(worlds.config(saved(), **changes))


def test_rounds_are_not_chosen_by_the_time_of_clients(saved: Any) -> None:
    from uedp.training.config import parse_config

    values = {"privacy": {"epsilon": 8}, "data": {"train": "c"}, "model": {"name": str(saved())}}
    with pytest.raises(UserError, match=r"privacy\.rounds"):
        refuse_unsuited(parse_config(values))


def test_terms_name_the_field_that_differs() -> None:
    one = {"privacy": {"epsilon": 8.0}, "model": {"train": "lora"}}
    assert difference(one, one) is None
    assert difference(one, {**one, "privacy": {}}) == (
        "privacy.epsilon: the server has 8.0, this client null; use the same config"
    )
    assert difference({"privacy": 3}, one) == "model: is not a section"
