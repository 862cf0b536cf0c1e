"""Many clients on one machine, over Flower's simulation: to see what a federation would learn.

The texts are in one corpus; each client stands for some of its users. Processes share no state with
the server but messages, and each has one model for all clients that it computes for.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from uedp.corpus.store import Corpus
from uedp.distributed.client import Client, FederatedClient, register
from uedp.distributed.federation import Answer, ClientRegistration, Order
from uedp.distributed.flower import Server, client_app, server_app
from uedp.distributed.terms import RoundTerms
from uedp.errors import UserError
from uedp.incidence import Ints, Rows
from uedp.training.outcome import Outcome

from flwr.app import Context  # isort: skip - `flower` sets Flower's environment
from flwr.simulation import run_simulation  # isort: skip


@dataclass(eq=False)
class Share(Client):
    """A client that holds every `count`-th user of a corpus, from `number` on."""

    number: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        whole = _registered(self.corpus, self.key)
        self._users = np.arange(self.number, len(whole.users), self.count)
        self._sentences = np.flatnonzero(np.isin(whole.sentence_user, self._users))
        self.registration = _part(whole, self._users, self._sentences)

    def prepare(self, terms: RoundTerms) -> None:
        _model(self.of_all(), terms)

    def answer(self, order: Order, terms: RoundTerms) -> Answer:
        rows = order.sentences
        users, values = self._users[order.users], self._sentences[rows.values]
        there = replace(order, users=users, sentences=Rows(rows.offsets, values))
        return replace(_model(self.of_all(), terms).answer(there), users=order.users)

    def of_all(self) -> Client:
        return Client(self.corpus, self.key, self.config)


_models: dict[str, FederatedClient] = {}  # of this process; one for each run


def _model(one: Client, terms: RoundTerms) -> FederatedClient:
    if terms.text not in _models:
        _models.clear()
        _models[terms.text] = one.model(terms)
    return _models[terms.text]


@lru_cache(maxsize=1)
def _registered(corpus: Path, key: bytes) -> ClientRegistration:
    return register(Corpus(corpus), key)


def _part(whole: ClientRegistration, users: Ints, sentences: Ints) -> ClientRegistration:
    """What the owner of some users would register."""
    mentions = np.isin(whole.mention_sentence, sentences)
    entities, named = np.unique(whole.mention_entity[mentions], return_inverse=True)
    return ClientRegistration(
        whole.users[users],
        whole.entities[entities],
        np.searchsorted(users, whole.sentence_user[sentences]).astype(np.int64),
        np.searchsorted(sentences, whole.mention_sentence[mentions]).astype(np.int64),
        named.astype(np.int64),
        whole.detection,
    )


def simulate(server: Server, corpus: Path, key: bytes, *, processes: int = 1) -> Outcome:
    """Train with `server.clients` clients that divide the users of a corpus.

    Args:
        processes: that compute updates, on as many cores.
    """
    count, config = server.clients, server.config
    if count > (users := Corpus(corpus).users):
        raise UserError(f"`clients={count}`: {corpus} has {users:,} users to divide among them")

    def client(context: Context) -> Client:
        return Share(corpus, key, config, int(context.node_config["partition-id"]), count)

    outcomes: list[Outcome] = []
    run_simulation(
        server_app=server_app(server, outcomes.append),
        client_app=client_app(client),
        num_supernodes=count,
        backend_config={
            "init_args": {"num_cpus": processes, "include_dashboard": False},
            "client_resources": {"num_cpus": 1},
        },
    )
    return outcomes[0]
