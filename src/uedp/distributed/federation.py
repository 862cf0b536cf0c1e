"""Training on texts that stay with their owners: what a server knows, and what clients compute.

A client holds the texts of one or more users. It registers how many sentences each has, and under
a keyed hash which of them mention the same entity: the incidence, and nothing else. In each round
the server draws users, lends entities or divides their shares, and asks the clients of drawn users
for clipped updates. It clips them again, adds them up, and everything after that (ledger, noise,
step, certificate) is that of any other run. How messages travel is a `Transport`'s matter.

The server is trusted with the draw, the noise and the updates of single users. Clients are trusted
with the share of an entity in their own text. Whether a user's update arrives must depend neither
on anybody's texts nor on who else was drawn (`docs/security.md`): a transport must not stop after
the first so many answers, or leave less time where more is asked for.
"""

import hmac
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uedp.distributed import refuse_shared_masks
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints, Rows
from uedp.mechanism.processes import MaskKey, PartialSum
from uedp.mechanism.sampling import Floats, Participants
from uedp.methods import ClippedMethod
from uedp.training.build import Assembly, Say
from uedp.training.datasets import Texts, TrainingData

HASH_BYTES = 16
_ROUNDED_UP = 1 + 2.0**-20  # what a computed norm may lack of the exact one

Words = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ClientRegistration:
    """What a client tells of its texts: no word, no name.

    `users` and `entities` are hashes under a key that clients share and the server lacks, a row
    each. A mention is a sentence and an entity, by their numbers here. `detection` is the part of
    `corpus.json` that says how entities were found, and whether users are people.
    """

    users: Words
    entities: Words
    sentence_user: Ints
    mention_sentence: Ints
    mention_entity: Ints
    detection: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """A hash of all of it, by which a client is known again."""
        described = json.dumps(self.detection, sort_keys=True).encode()
        whole = sha256(described)
        for name in ARRAYS:
            values = getattr(self, name)
            whole.update(f"|{name} {values.shape}|".encode() + values.astype("<i8").tobytes())
        return whole.hexdigest()[:16]

    def check(self) -> None:
        """Raises ValueError if it is not a registration: it came over a network."""
        for hashes in (self.users, self.entities):
            if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != HASH_BYTES:
                raise ValueError("hashes of users or entities have another length")
            if len(np.unique(hashes, axis=0)) != len(hashes):
                raise ValueError("a user or an entity is registered twice")
        counts = (len(self.users), len(self.sentence_user), len(self.entities))
        ids = (self.sentence_user, self.mention_sentence, self.mention_entity)
        for values, count in zip(ids, counts, strict=True):
            if values.ndim != 1 or values.dtype.kind != "i":
                raise ValueError("numbers of users, sentences or entities are not integers")
            if len(values) and not 0 <= values.min() <= values.max() < count:
                raise ValueError("a number of a user, sentence or entity is out of range")
        if len(self.mention_sentence) != len(self.mention_entity):
            raise ValueError("mentions have no sentence or no entity")


ARRAYS = ("users", "entities", "sentence_user", "mention_sentence", "mention_entity")
"""The arrays of a registration."""


@dataclass(frozen=True, eq=False)
class Order:
    """What a client is asked for: the updates of some of its users, by their numbers there.

    Only the client that was sent an order knows its nonce.
    """

    nonce: str
    weights: Tensor
    users: Ints
    sentences: Rows
    parts: Floats  # of their entities' shares, a sentence each
    mask_key: bytes


@dataclass(frozen=True, eq=False)
class Answer:
    """The clipped updates of users, a row each."""

    nonce: str
    users: Ints
    updates: Tensor


class Transport(Protocol):
    """Carries orders to clients and their answers back."""

    def exchange(self, orders: Mapping[str, Order]) -> Iterator[tuple[str, Answer | str]]:
        """The answers that arrive in time, with the client of each, in any order and number.

        Words instead of an answer say why there is none.
        """


# --- the server ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Federation:
    """The incidence of all clients together, and whose each user and sentence is."""

    incidence: Incidence
    clients: tuple[str, ...]
    user_client: Ints
    user_number: Ints
    sentence_number: Ints

    @classmethod
    def of(cls, registrations: Mapping[str, ClientRegistration]) -> "Federation":
        """Join the registrations of clients, in the order of their names.

        Guarantees:
          - equal hashes of entities are one entity, whichever clients sent them
          - a user at two clients is refused: it would be drawn, and clipped, twice
        """
        names = tuple(sorted(registrations))
        entities: dict[bytes, int] = {}
        owners: dict[bytes, str] = {}
        columns: dict[str, list[Ints]] = {name: [] for name in _COLUMNS}
        users = sentences = 0
        for place, name in enumerate(names):
            one = registrations[name]
            try:
                one.check()
            except ValueError as error:
                raise UserError(f"client {name}: {error}") from None
            for user in one.users:
                if (other := owners.setdefault(user.tobytes(), name)) != name:
                    raise UserError(
                        f"clients {other} and {name} have text of the same user, who would be "
                        "drawn and clipped twice; let one client hold all text of a user"
                    )
            known = [entities.setdefault(e.tobytes(), len(entities)) for e in one.entities]
            columns["sentence_user"].append(one.sentence_user + users)
            columns["mention_sentence"].append(one.mention_sentence + sentences)
            columns["mention_entity"].append(np.array(known, dtype=np.int64)[one.mention_entity])
            columns["user_client"].append(np.full(len(one.users), place))
            columns["user_number"].append(np.arange(len(one.users)))
            columns["sentence_number"].append(np.arange(len(one.sentence_user)))
            users, sentences = users + len(one.users), sentences + len(one.sentence_user)
        joined = {
            name: np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)
            for name, parts in columns.items()
        }
        incidence = Incidence.build(
            joined["sentence_user"],
            joined["mention_sentence"],
            joined["mention_entity"],
            users,
            len(entities),
        )
        whose = (joined[name] for name in ("user_client", "user_number", "sentence_number"))
        return cls(incidence, names, *whose)

    def parts(self, drawn: Participants) -> Iterator[tuple[str, Participants]]:
        """For each client with a drawn user its part, with the client's own numbers."""
        whose = self.user_client[drawn.users]
        for place in np.unique(whose):
            part = drawn.part(np.flatnonzero(whose == place))
            numbers = self.sentence_number[part.sentences.values]
            yield (
                self.clients[place],
                Participants(
                    self.user_number[part.users],
                    Rows(part.sentences.offsets, numbers),
                    part.weights,
                ),
            )


_COLUMNS = (
    *("sentence_user", "mention_sentence", "mention_entity"),
    *("user_client", "user_number", "sentence_number"),
)


@dataclass
class Received:
    """What became of the answers of a round, for the curator."""

    users: int = 0
    missing: int = 0
    refused: list[str] = field(default_factory=list)

    def describe(self, drawn: int) -> str:
        """One line for people."""
        reasons = [*self.refused[:_SHOWN], *["..."] * (len(self.refused) > _SHOWN)]
        missing = f"{self.missing:,} of {drawn:,} drawn users without an update"
        return ": ".join([missing, "; ".join(reasons)] if reasons else [missing])


_SHOWN = 5  # reasons, in a line


@dataclass(eq=False)
class FederatedRounds:
    """Rounds whose updates come from clients (see `Processes`).

    Guarantees:
      - nobody moves the sum by more than the update clip, whatever a client sends: an update is
        taken once, from the client that was asked, if it is finite and has the right length, and
        is clipped again
      - a client that answers late, twice, or not at all changes nothing for the others, and no user
        is drawn in place of a missing one
    """

    federation: Federation
    transport: Transport
    say: Say = lambda line: None
    received: Received = field(default_factory=Received)

    def watch(self, assembly: Assembly) -> ClippedMethod:
        """Let clients compute the rounds of a run (see `training.build.Watch`)."""
        method = assembly.method
        if not isinstance(method, ClippedMethod):
            name = assembly.plan.config.privacy.method
            raise UserError(f"privacy.method {name}: its updates cannot come from clients")
        refuse_shared_masks(assembly.model)
        if assembly.incidence.digest != self.federation.incidence.digest:
            # users would be drawn, and shares divided, by who mentions what elsewhere
            raise UserError("the corpus of this run is not the incidence that clients registered")
        self._method = method
        method.processes = self
        return method

    @contextmanager
    def sharing(
        self, drawn: Participants, lengths: Ints, mask_key: MaskKey
    ) -> Iterator[Participants]:
        weights = torch.cat([p.detach().flatten().float().cpu() for p in self._method.parameters])
        self._asked = {
            name: Order(
                secrets.token_hex(16),
                weights,
                part.users,
                part.sentences,
                part.weights,
                mask_key(place + 1),
            )
            for place, (name, part) in enumerate(self.federation.parts(drawn))
        }
        self._drawn = len(drawn.users)
        yield drawn.part(np.zeros(0, dtype=np.int64))  # the server has no text

    def add_up(self, own: PartialSum) -> PartialSum:
        clip, size = self._method.settings.clips.update, own.total.numel()
        self.received, norms = Received(), []
        taken: set[tuple[str, int]] = set()
        # in float64, in which the order of arrival, which may depend on texts, makes no difference
        total = own.total.double()
        for client, answer in self.transport.exchange(self._asked):
            problem = answer if isinstance(answer, str) else self._problem(client, answer, size)
            if problem is not None or isinstance(answer, str):
                self.received.refused.append(f"client {client}: {problem}")
                continue
            for user, update in zip(answer.users.tolist(), answer.updates, strict=True):
                if (client, user) in taken:
                    self.received.refused.append(f"client {client}: a user's second update")
                    continue
                taken.add((client, user))
                exact = update.double()  # in which no finite update and no factor is out of range
                norm = float(exact.norm())
                exact *= min(1.0, clip / max(norm * _ROUNDED_UP, 1e-300))
                total.add_(exact.to(total))
                norms.append(norm / clip)
        self.received.users = len(taken)
        self.received.missing = self._drawn - len(taken)
        if self.received.missing or self.received.refused:
            self.say(self.received.describe(self._drawn))
        # a user whose update is missing counts as zero
        updates = np.array([*norms, *[0.0] * self.received.missing])
        return PartialSum(total.to(own.total), own.clipped, updates)

    def _problem(self, client: str, answer: Answer, size: int) -> str | None:
        """Why an answer is refused as a whole."""
        order = self._asked.get(client)
        if order is None or not hmac.compare_digest(answer.nonce.encode(), order.nonce.encode()):
            return "an answer that nobody asked for in this round"
        updates, users = answer.updates, answer.users
        if updates.dim() != 2 or updates.shape[1] != size or len(updates) != len(users):
            return "updates of another size"
        if not updates.is_floating_point() or not bool(torch.isfinite(updates.float()).all()):
            return "updates that are not finite"
        if users.ndim != 1 or users.dtype.kind not in "iu" or not np.isin(users, order.users).all():
            return "a user who was not drawn"
        return None


def server_data(
    federation: Federation,
    folder: Path,
    held_out: Texts | None = None,
    labels: Sequence[str] = (),
    detection: Mapping[str, Any] | None = None,
) -> TrainingData:
    """What a run of the server reads: the incidence, and invented texts to check a model with.

    Args:
        folder: where the ledger of all runs of the federation lies.
        labels: those of a classifier.
        detection: how the clients found entities (`common_detection`).
    """
    from uedp.corpus.column import Column
    from uedp.sample.generate import sample_sentences

    folder.mkdir(parents=True, exist_ok=True)
    count = federation.incidence.sentences
    invented = [sentence.text for sentence in sample_sentences(people=50)]
    texts = (invented * math.ceil(count / len(invented)))[:count]
    names = list(islice(cycle(labels), count)) if labels else [None] * count
    return TrainingData(
        Texts(Column.of(texts), names),
        federation.incidence,
        folder,
        held_out,
        detection,
        stays_with_clients=True,
    )


def common_detection(registrations: Mapping[str, ClientRegistration]) -> dict[str, Any]:
    """How entities were found, if all clients did it alike; whether anybody's users are groups.

    Guarantees:
      - groups that were formed at random, at any client, are not called people
      - a detection that one of the clients did not use is not stated
    """
    every = [dict(one.detection) for one in registrations.values()]
    assigned = any(one.pop("assigned_users", False) for one in every)
    same = every[0] if every and all(one == every[0] for one in every) else {}
    return {**same, "source": {"assigned_users": assigned}}
