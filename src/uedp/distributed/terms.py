"""What a server and its clients must agree on: the config, the settings of a round, the model."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import nn

from uedp.accounting.ledger import PlannedRun
from uedp.errors import UserError
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Sampling
from uedp.methods import ClippedMethod, RoundSettings, method_named
from uedp.training.config import Config

# fields that each side chooses for itself
_OWN = {"privacy": {"seed", "chosen_by", "corpus_budget"}, "model": {"name", "tokenizer"}}


def refuse_unsuited(config: Config) -> None:
    """Refuse a config whose rounds cannot come from clients, before anybody is asked."""
    name = config.privacy.method
    method = method_named(name)
    if not issubclass(method, ClippedMethod) or method.deidentifies:
        raise UserError(
            f"privacy.method {name}: its updates cannot come from clients; choose rotation, "
            "fair-shares or user-level"
        )
    if config.vocabulary.source != "tokenizer":
        raise UserError(
            f"vocabulary.source {config.vocabulary.source}: words are made from texts, which stay "
            "with clients; name a tokenizer"
        )
    if config.data.public is not None or config.model.continued:
        field = "data.public" if config.data.public is not None else "model.continued"
        raise UserError(
            f"{field}: a federation begins with a model that all clients have; train it before, "
            "and give it to them"
        )
    if config.task.kind == "classification" and not config.task.labels:
        raise UserError("task.labels: the server sees no labels; name them")
    for field in ("rounds", "user_rate"):
        if field not in config.privacy.model_fields_set:
            raise UserError(
                f"privacy.{field}: cannot be chosen by the time of a round, which clients take; "
                "set it"
            )


def terms_of(config: Config) -> dict[str, Any]:
    """The fields of a config that both sides must have alike."""
    privacy = config.privacy.model_dump(mode="json", exclude=_OWN["privacy"])
    return {
        "privacy": privacy,
        "task": config.task.model_dump(mode="json"),
        "model": config.model.model_dump(mode="json", exclude=_OWN["model"]),
        "method_options": config.method_options.model_dump(mode="json"),
    }


def difference(theirs: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """The first field in which the server's terms differ from a client's, with both values."""
    for section in sorted({*theirs, *own}):
        there, here = theirs.get(section), own.get(section)
        if not isinstance(there, Mapping) or not isinstance(here, Mapping):
            return f"{section}: is not a section"
        for name in sorted({*there, *here}):
            if there.get(name) != here.get(name):
                said, has = (json.dumps(values.get(name)) for values in (there, here))
                return (
                    f"{section}.{name}: the server has {said[:60]}, this client {has[:60]}; use "
                    "the same config"
                )
    return None


def fixed_weights(model: nn.Module) -> str:
    """A hash of everything in a model that is not trained."""
    whole = sha256()
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    for name, tensor in sorted({**frozen, **dict(model.named_buffers())}.items()):
        raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        whole.update(name.encode() + raw.tobytes())
    return whole.hexdigest()


@dataclass(frozen=True)
class RoundTerms:
    """The settings of a run's rounds as text, which travels with every order."""

    text: str

    @classmethod
    def of(cls, settings: RoundSettings, planned: PlannedRun, model: nn.Module) -> "RoundTerms":
        record = {
            "sampling": asdict(settings.sampling),
            "clips": asdict(settings.clips),
            "noise": settings.noise,
            "users": settings.users,
            "half_precision": settings.half_precision,
            "fixed_passes": settings.fixed_passes,
            "fixed": fixed_weights(model),
            "planned": planned.record(),
        }
        return cls(json.dumps(record, sort_keys=True))

    @cached_property
    def _record(self) -> Mapping[str, Any]:
        record = json.loads(self.text)
        if not isinstance(record, dict):
            raise ValueError("the settings of a round are no object")
        return record

    @property
    def fixed(self) -> str:
        return str(self._record["fixed"])

    @property
    def planned(self) -> PlannedRun:
        return PlannedRun.from_record(self._record["planned"])

    def settings(self, config: Config) -> RoundSettings:
        """The settings for a client, whose own config has the options of the method."""
        record = self._record
        return RoundSettings(
            sampling=Sampling(**record["sampling"]),
            clips=Clips(**record["clips"]),
            noise=float(record["noise"]),
            users=int(record["users"]),
            max_tokens=config.run.tokens_at_once,
            half_precision=bool(record["half_precision"]),
            fixed_passes=bool(record["fixed_passes"]),
            options=config.method_options,
        )
