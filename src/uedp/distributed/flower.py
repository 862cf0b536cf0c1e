"""Federated rounds over Flower: a ServerApp that trains, a ClientApp that computes updates.

The server asks all SuperNodes to register, joins what they tell, and trains as any other run does.
Each round sends an order to the clients of drawn users and waits for their answers. Whose answer it
is follows from the message that it replies to, as the SuperLink keeps it, and from a nonce that
only this client was sent; never from what the answer says.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from uedp.accounting.chain import read_chain
from uedp.accounting.ledger import RUN_LEDGER, planned_run
from uedp.distributed import wire
from uedp.distributed.client import Client
from uedp.distributed.federation import (
    Answer,
    ClientRegistration,
    FederatedRounds,
    Federation,
    Order,
    common_detection,
    server_data,
)
from uedp.distributed.registrations import load_registrations, save_registrations
from uedp.distributed.terms import RoundTerms, refuse_unsuited, terms_of
from uedp.errors import UserError
from uedp.progress import SILENT, Progress
from uedp.training import loop
from uedp.training.build import Assembly, Say
from uedp.training.config import Config
from uedp.training.datasets import read_texts
from uedp.training.outcome import Outcome

from flwr.app import Context, Message  # isort: skip - `wire` sets Flower's environment
from flwr.clientapp import ClientApp  # isort: skip
from flwr.serverapp import Grid, ServerApp  # isort: skip

_PAUSE = 0.2  # seconds between two looks for answers
_HOURS = 3600.0


@dataclass(eq=False)
class Members:
    """Which SuperNode belongs to which client: by the registration that it sends.

    Guarantees:
      - a client whose SuperNode is connected is not taken over by another one
      - once the federation is fixed, only its clients are members, with their registrations
    """

    grid: Grid
    terms: Mapping[str, Any]
    say: Say
    fixed: frozenset[str] | None = None  # names of the federation's clients
    registrations: dict[str, ClientRegistration] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    _invited: set[int] = field(default_factory=set)
    _waiting: dict[str, int] = field(default_factory=dict)  # message to node

    def update(self) -> None:
        """Invite SuperNodes that are new, and read what those before them sent."""
        connected = set(self.grid.get_node_ids())
        if new := sorted(connected - self._invited):
            self._invited.update(new)
            asked = wire.invitation(self.terms)
            for node in new:
                if number := _send(self.grid, Message(asked, node, wire.REGISTER, ttl=_HOURS)):
                    self._waiting[number] = node
        for number, node in list(self._waiting.items()):
            if node not in connected:
                del self._waiting[number]
                self._invited.discard(node)
                continue
            for reply in _replies(self.grid, number):
                self._waiting.pop(number, None)
                if refusal := self._take(node, reply, connected):
                    self.say(f"SuperNode {node}: not taken: {refusal}")

    def _take(self, node: int, reply: Message | None, connected: set[int]) -> str | None:
        """Bind a SuperNode to its client; or why not."""
        if reply is None or reply.has_error():
            return "it failed to register"
        try:
            if problem := wire.read_problem(reply.content):
                return problem
            one = wire.read_registration(reply.content)
        except ValueError as error:
            return str(error)
        if self.fixed is not None and one.name not in self.fixed:
            return (
                "its registration is not that of a client of this federation; was its corpus "
                "detected anew, or has it another key?"
            )
        if self.nodes.get(one.name) in connected:
            return f"client {one.name} is connected by another SuperNode"
        self.registrations[one.name], self.nodes[one.name] = one, node
        users, sentences = len(one.users), len(one.sentence_user)
        self.say(f"client {one.name}: {users:,} users, {sentences:,} sentences (SuperNode {node})")
        return None

    def gather(self, clients: int, wait: float, known: Mapping[str, ClientRegistration]) -> None:
        """Wait for so many clients, or for those of a federation that is known already."""
        self.fixed = frozenset(known) if known else None
        wanted = len(known) or clients
        self.say(f"waiting for {wanted} clients, for up to {wait:,.0f} seconds")
        end = time.monotonic() + wait
        while len(self.nodes) < wanted and time.monotonic() < end:
            self.update()
            time.sleep(_PAUSE)
        if len(self.nodes) < (1 if known else clients):
            raise UserError(
                f"{len(self.nodes)} of {wanted} clients registered within {wait:,.0f} seconds; "
                "start the others, or ask for fewer"
            )
        if known:
            missing = len(known) - len(self.nodes)
            if missing:
                self.say(f"{missing} of {len(known)} clients are missing; their users count as 0")
            self.registrations = dict(known)
        self.fixed = frozenset(self.registrations)


@dataclass(eq=False)
class FlowerTransport:
    """Orders and answers of a round as messages (see `federation.Transport`).

    Guarantees:
      - an answer is that of the client whose order the SuperLink filed it under, whatever it says
      - what arrives after `patience` seconds, or is no answer, is not an answer of the round
    """

    grid: Grid
    members: Members
    terms: Callable[[], RoundTerms]
    patience: float
    wait: float = 600.0
    """Seconds for clients to make their models, before the first round."""
    _prepared: bool = field(default=False, init=False)

    def _prepare(self, terms: RoundTerms) -> None:
        """Let all clients make their models: in a round, the others would wait for them."""
        self._prepared, waiting = True, {}
        connected = set(self.grid.get_node_ids())
        for name, node in self.members.nodes.items():
            if node in connected:
                asked = Message(wire.preparation(terms), node, wire.PREPARE, ttl=_HOURS)
                if sent := _send(self.grid, asked):
                    waiting[sent] = name
        for name, reply in _arriving(self.grid, waiting, self.wait):
            if (problem := _problem(reply)) is not None:
                self.members.say(f"client {name}: {problem}")
        for name in waiting.values():
            self.members.say(f"client {name}: is not ready after {self.wait:,.0f} seconds")

    def exchange(self, orders: Mapping[str, Order]) -> Iterator[tuple[str, Answer | str]]:
        self.members.update()
        terms = self.terms()
        if not self._prepared:
            self._prepare(terms)
        connected = set(self.grid.get_node_ids())
        waiting: dict[str, str] = {}
        for name, order in orders.items():
            node = self.members.nodes.get(name)
            if node not in connected:
                yield name, "is not connected"
                continue
            # an order that is too old is not delivered, or a slow client would never catch up
            lasts = 2 * self.patience
            message = Message(wire.order(order, terms), node, wire.UPDATES, ttl=lasts)
            if sent := _send(self.grid, message):
                waiting[sent] = name
            else:
                yield name, "its order could not be sent"
        for name, reply in _arriving(self.grid, waiting, self.patience):
            yield name, _answer(reply)
        for name in waiting.values():
            yield name, "no answer in time"


def _send(grid: Grid, message: Message) -> str | None:
    """Send a message; its number, by which the SuperLink files replies."""
    with _as_user_error():
        return next(iter(grid.push_messages([message])), None)


def _replies(grid: Grid, number: str) -> list[Message | None]:
    """What the SuperLink filed as a reply to this message; None: it cannot be read.

    One message at a time: who sent a reply could write another sender into it, but not have it
    filed under another client's message.
    """
    with _as_user_error():
        try:
            return list(grid.pull_messages([number]))
        except httpx.HTTPError:
            raise
        except Exception:  # of Flower's code that reads what a client wrote
            return [None]


def _arriving(
    grid: Grid, waiting: dict[str, str], seconds: float
) -> Iterator[tuple[str, Message | None]]:
    """Replies to messages in time, with the client of each; `waiting` keeps those without one."""
    end = time.monotonic() + seconds
    while waiting:
        before = len(waiting)
        for number, name in list(waiting.items()):
            for reply in _replies(grid, number):
                waiting.pop(number, None)
                yield name, reply
        if time.monotonic() > end:
            return
        if len(waiting) == before:
            time.sleep(_PAUSE)


@contextmanager
def _as_user_error() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise UserError(
            f"the SuperLink is gone ({type(error).__name__}); nothing of this round was released: "
            "start the server again with `resume=True`"
        ) from None


def _answer(reply: Message | None) -> Answer | str:
    if (problem := _problem(reply)) is not None:
        return problem
    assert reply is not None  # or there is a problem
    try:
        return wire.read_answer(reply.content)
    except ValueError as error:
        return str(error)


def _problem(reply: Message | None) -> str | None:
    """Why a client did not do what it was asked for; None if it did."""
    if reply is None or reply.has_error():
        return "failed to compute its answer"
    try:
        return wire.read_problem(reply.content)
    except ValueError as error:
        return str(error)


@dataclass
class Server:
    """A federated run, from registration to certificate.

    Args:
        folder: of the federation: the registrations of its clients, and the ledger of all runs on
            their texts. If it holds registrations, no other clients are taken.
        clients: how many must have registered before a new federation is fixed.
        wait: seconds for that, and for clients to make their models.
        patience: seconds that a round waits for answers.
    """

    config: Config
    out: Path
    folder: Path
    clients: int = 1
    wait: float = 600.0
    patience: float = 600.0
    resume: bool = False
    progress: Progress = SILENT
    say: Say = lambda line: None

    def __post_init__(self) -> None:
        refuse_unsuited(self.config)
        self._told: RoundTerms | None = None
        data = self.config.data.model_copy(update={"train": self.folder})
        self.config = self.config.model_copy(update={"data": data})
        if self.clients < 1:
            raise UserError(f"`clients={self.clients}`: must be at least 1")

    def train(self, grid: Grid) -> Outcome:
        """Gather the clients, and train."""
        known = load_registrations(self.folder)
        members = Members(grid, terms_of(self.config), self.say)
        members.gather(self.clients, self.wait, known)
        federation = Federation.of(members.registrations)
        if not known:
            save_registrations(self.folder, members.registrations)
        incidence = federation.incidence
        self.say(
            f"{len(federation.clients)} clients with {incidence.users:,} users, "
            f"{incidence.sentences:,} sentences and {incidence.entities:,} entities together"
        )
        evaluated, most = self.config.data.evaluate, self.config.data.evaluate_sentences
        data = server_data(
            federation,
            self.folder,
            None if evaluated is None else read_texts(evaluated, most),
            self.config.task.labels,
            common_detection(members.registrations),
        )
        transport = FlowerTransport(grid, members, self._terms, self.patience, self.wait)
        rounds = FederatedRounds(federation, transport, self.say)

        def watch(assembly: Assembly) -> Any:
            self._assembly = assembly
            return rounds.watch(assembly)

        return loop.run(
            self.config,
            self.out,
            data=data,
            resume=self.resume,
            progress=self.progress,
            say=self.say,
            watch=watch,
        )

    def _terms(self) -> RoundTerms:
        """What clients are told of the run, as its ledger has it."""
        if self._told is None:
            path, plan = self.out / RUN_LEDGER, self._assembly.plan
            planned = planned_run(path, read_chain(path)[0])
            self._told = RoundTerms.of(plan.round_settings, planned, self._assembly.model)
        return self._told


def server_app(
    server: Server, done: Callable[[Outcome], object] = lambda outcome: None
) -> ServerApp:
    """A Flower ServerApp that trains; `done` gets the outcome."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        done(server.train(grid))

    app.main()(main)
    return app


def client_app(
    client: Callable[[Context], Client], say: Callable[[str], object] = lambda line: None
) -> ClientApp:
    """A Flower ClientApp; `client` gives the client that a SuperNode stands for.

    Guarantees:
      - what goes wrong is told to `say`, on this machine; the server learns that something did, and
        the reason only if it is the difference between two configs
    """
    app = ClientApp()

    def replied(message: Message, compute: Callable[[], Any]) -> Message:
        try:
            return Message(compute(), reply_to=message)
        except UserError as error:
            say(f"refused: {error}")
        except Exception as error:  # its text may quote the client's
            say(f"failed: {type(error).__name__}: {error}")
        return Message(
            wire.problem("refused or failed; its own messages say why"), reply_to=message
        )

    def register(message: Message, context: Context) -> Message:
        def compute() -> Any:
            one = client(context)
            if problem := one.problem_with(wire.read_invitation(message.content)):
                say(f"refused: {problem}")
                return wire.problem(problem)
            say(f"registered as client {one.registration.name}")
            return wire.registration(one.registration)

        return replied(message, compute)

    def prepare(message: Message, context: Context) -> Message:
        def compute() -> Any:
            client(context).prepare(wire.read_preparation(message.content))
            say("ready")
            return wire.ready()

        return replied(message, compute)

    def updates(message: Message, context: Context) -> Message:
        def compute() -> Any:
            order, terms = wire.read_order(message.content)
            answer = client(context).answer(order, terms)
            say(f"computed the updates of {len(order.users):,} users")
            return wire.answer(answer)

        return replied(message, compute)

    app.query("register")(register)
    app.query("prepare")(prepare)
    app.train("updates")(updates)
    return app
