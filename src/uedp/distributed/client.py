"""What the owner of texts does in a federation: register them, and compute updates of its users."""

import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uedp.accounting.ledger import Budget, CorpusLedger
from uedp.corpus.store import Corpus
from uedp.distributed import refuse_shared_masks
from uedp.distributed.federation import HASH_BYTES, Answer, ClientRegistration, Order, Words
from uedp.distributed.terms import RoundTerms, difference, fixed_weights, terms_of
from uedp.errors import UserError
from uedp.files import private_opener, require_new_file
from uedp.mechanism.sampling import Participants
from uedp.methods import ClippedMethod, RoundSettings, method_named
from uedp.training.build import prepare, set_up_for_training
from uedp.training.config import Config
from uedp.training.datasets import read_training_data

KEY_BYTES = 32
# of corpus.json: how entities were found, without anything that was counted or that people typed
_DETECTION = ("detectors", "detector_versions", "categories", "propagated", "public_lists")
_LISTS = ("declared_public", "declared_public_not_met", "declared_sensitive", "aliases")


def make_key(path: Path) -> None:
    """Write a new key for the clients of a federation, readable by its owner only."""
    require_new_file(path)
    with open(path, "x", encoding="ascii", opener=private_opener) as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")


def read_key(path: Path) -> bytes:
    """The key in a file that `make_key` wrote."""
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise UserError(
            f"{path}: holds no key of a federation ({2 * KEY_BYTES} hexadecimal digits); one of "
            "the clients makes it, and gives it to the others and not to the server"
        )
    return key


def register(corpus: Corpus, key: bytes) -> ClientRegistration:
    """What the owner of a corpus tells a server that does not have the key.

    Guarantees:
      - names of users and entities leave as HMAC-SHA256 under the key, cut to 16 bytes; texts not
        at all
    """
    if len(key) != KEY_BYTES:
        raise UserError(f"`key=...`: a key has {KEY_BYTES} bytes, not {len(key)}")
    if len(corpus.epochs) > 1:
        raise UserError(
            f"{corpus.folder}: was extended, and a federation does not count by epochs; detect its "
            "texts anew, into another folder"
        )
    incidence = corpus.incidence
    mentions = incidence.sentence_entities
    return ClientRegistration(
        _hashed(key, b"user", corpus.user_names.to_pylist()),
        _hashed(key, b"entity", corpus.entities["name"].to_pylist()),
        np.asarray(incidence.sentence_user, dtype=np.int64),
        mentions.row_of_value().astype(np.int64),
        np.asarray(mentions.values, dtype=np.int64),
        _detection(corpus.info),
    )


def _hashed(key: bytes, kind: bytes, names: Sequence[str]) -> Words:
    hashes = [
        hmac.new(key, kind + b"|" + name.encode(), sha256).digest()[:HASH_BYTES] for name in names
    ]
    return np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, HASH_BYTES).copy()


def _detection(info: Mapping[str, Any]) -> dict[str, Any]:
    """How entities were found; nothing of it if that depends on lists of people's own."""
    source = info.get("source") or {}
    known = {"assigned_users": bool(source.get("assigned_users"))}
    if any(info.get(name) for name in _LISTS):
        return known
    whole = known | {name: info[name] for name in _DETECTION if name in info}
    if "propagation" in info:
        whole["propagation"] = {"rule": info["propagation"]["rule"]}  # the rest counts hits
    return dict(json.loads(json.dumps(whole)))


class FederatedClient:
    """A client's copy of the model, and its texts: computes what the server orders.

    Guarantees:
      - an order for a user, a sentence or a part of a share that there is not is refused
    """

    def __init__(
        self, corpus: Path, config: Config, settings: RoundSettings, fixed: str | None = None
    ) -> None:
        data = config.data.model_copy(update={"train": corpus, "evaluate": None, "public": None})
        self._config = config.model_copy(update={"data": data})
        own = read_training_data(self._config)
        self._sentence_user = np.asarray(own.incidence.sentence_user)
        ready = prepare(self._config, own)
        method = method_named(config.privacy.method)
        if not issubclass(method, ClippedMethod):
            raise UserError(f"privacy.method {method.name}: its updates cannot come from clients")
        if settings.half_precision != (ready.precision != "float32"):
            raise UserError(
                f"run.precision: this client computes in {ready.precision}, and the server's noise "
                "is for another precision; set it to the same on both"
            )
        if fixed is not None and fixed_weights(ready.model) != fixed:
            raise UserError(
                f"model.name {config.model.name!r}: its frozen weights are not those of the "
                "server's model; use the same model"
            )
        with set_up_for_training(ready.model, config.task.kind):
            self._method = method(
                replace(settings, seed=None), own.incidence, ready.model, ready.task, ready.autocast
            )
        refuse_shared_masks(ready.model)

    def answer(self, order: Order) -> Answer:
        """The clipped update of each user that the server asks for."""
        method = self._method
        parameters = method.parameters
        sizes = [p.numel() for p in parameters]
        drawn = self._checked(order, sum(sizes))
        with torch.no_grad():
            for parameter, values in zip(parameters, order.weights.split(sizes), strict=True):
                parameter.copy_(values.view(parameter.shape))
        updates = torch.zeros(len(order.users), sum(sizes))
        with set_up_for_training(method.model, self._config.task.kind):
            for place in range(len(order.users)):
                key = sha256(order.mask_key + place.to_bytes(8, "little")).digest()
                part = method.part_of_round(drawn.part(np.array([place])), key)
                updates[place] = part.total.cpu()
        return Answer(order.nonce, order.users, updates)

    def _checked(self, order: Order, size: int) -> Participants:
        sentences, parts = order.sentences, order.parts
        owners = np.asarray(order.users)[sentences.row_of_value()]
        within = (sentences.values >= 0) & (sentences.values < len(self._sentence_user))
        if (
            order.weights.shape != (size,)
            or len(sentences.offsets) != len(order.users) + 1
            or len(parts) != len(sentences.values)
            or not within.all()
            or not (self._sentence_user[sentences.values] == owners).all()
            or not ((parts >= 0) & (parts <= 1)).all()
        ):
            raise UserError("the server ordered what this client does not have; nothing was sent")
        return Participants(order.users, sentences, parts)


@dataclass(eq=False)
class Client:
    """A client of a federation: what it registers, and the updates that it computes.

    Before the first round it makes its model, and enters the run in the ledger of its corpus.

    Guarantees:
      - a run is in the ledger of the corpus, with all its rounds, before anything is computed for
        it; one that the budget of the client's own config does not allow is refused
      - orders for another config than the client's own are refused
    """

    corpus: Path
    key: bytes
    config: Config

    def __post_init__(self) -> None:
        self.registration = register(Corpus(self.corpus), self.key)
        self._terms: str | None = None

    def problem_with(self, terms: Mapping[str, Any]) -> str | None:
        """Why this client does not take part in a run on these terms."""
        return difference(terms, terms_of(self.config))

    def prepare(self, terms: RoundTerms) -> None:
        """Make the model of a run, unless this client has it."""
        if self._terms != terms.text:
            self._model = self.model(terms)
            self._terms = terms.text

    def answer(self, order: Order, terms: RoundTerms) -> Answer:
        """The clipped update of each user that the server asks for."""
        self.prepare(terms)
        return self._model.answer(order)

    def model(self, terms: RoundTerms) -> FederatedClient:
        """What computes the updates of a run, once it is in the ledger of the corpus."""
        planned, most = terms.planned, self.config.privacy.corpus_budget
        budget = None if most is None else Budget(most, planned.delta)
        CorpusLedger(self.corpus).reserve(planned, budget)
        settings = terms.settings(self.config)
        return FederatedClient(self.corpus, self.config, settings, terms.fixed)
