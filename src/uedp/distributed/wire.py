"""Registrations, orders and answers as records of Flower messages, and back.

Arrays travel as their bytes, with a type and a shape that are checked before anything is read. A
message that is damaged, or made by somebody else, raises ValueError.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from uedp.distributed import require_flower

require_flower()

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict  # noqa: E402

from uedp.distributed.federation import ARRAYS, Answer, ClientRegistration, Order  # noqa: E402
from uedp.distributed.terms import RoundTerms  # noqa: E402
from uedp.incidence import Rows  # noqa: E402

REGISTER, PREPARE, UPDATES = "query.register", "query.prepare", "train.updates"
"""The types of messages that a client knows."""
_PROTOCOL = 1
_WORDS, _ARRAYS = "uedp", "arrays"
_RAW = "uedp.raw"
_LONGEST = 500  # characters that a client may say about a problem


def invitation(terms: Mapping[str, Any]) -> RecordDict:
    """Asks a client to register for a run on these terms."""
    return _records({"terms": json.dumps(terms, sort_keys=True)})


def read_invitation(records: RecordDict) -> Mapping[str, Any]:
    return _json_object(_word(records, "terms", str))


def registration(one: ClientRegistration) -> RecordDict:
    arrays = {name: getattr(one, name) for name in ARRAYS}
    return _records({"detection": json.dumps(one.detection, sort_keys=True)}, arrays)


def read_registration(records: RecordDict) -> ClientRegistration:
    tables = {name: _array(records, name, "uint8", 2) for name in ARRAYS[:2]}
    columns = {name: _array(records, name, "int64", 1) for name in ARRAYS[2:]}
    detection = _json_object(_word(records, "detection", str))
    one = ClientRegistration(**tables, **columns, detection=dict(detection))
    one.check()
    return one


def preparation(terms: RoundTerms) -> RecordDict:
    """Asks a client to make its model for a run."""
    return _records({"terms": terms.text})


def read_preparation(records: RecordDict) -> RoundTerms:
    return RoundTerms(_word(records, "terms", str))


def ready() -> RecordDict:
    """What a client says once it has its model."""
    return _records({})


def problem(words: str) -> RecordDict:
    """What a client says instead of a registration or an answer."""
    return _records({"problem": words[:_LONGEST]})


def read_problem(records: RecordDict) -> str | None:
    """Why a client did not do what it was asked for, in its own words; None if it did."""
    found = _words(records).get("problem")
    if found is None:
        return None
    return " ".join(str(found)[:_LONGEST].split()) or "no reason given"


def order(one: Order, terms: RoundTerms) -> RecordDict:
    words = {"nonce": one.nonce, "mask_key": one.mask_key, "terms": terms.text}
    arrays = {
        "weights": one.weights.numpy(),
        "users": one.users.astype(np.int64),
        "offsets": one.sentences.offsets.astype(np.int64),
        "sentences": one.sentences.values.astype(np.int64),
        "parts": one.parts.astype(np.float64),
    }
    return _records(words, arrays)


def read_order(records: RecordDict) -> tuple[Order, RoundTerms]:
    offsets = _array(records, "offsets", "int64", 1)
    sentences = _array(records, "sentences", "int64", 1)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(sentences):
        raise ValueError("sentences of no user")
    if (np.diff(offsets) < 0).any():
        raise ValueError("users with fewer sentences than none")
    one = Order(
        nonce=_word(records, "nonce", str),
        weights=torch.from_numpy(_array(records, "weights", "float32", 1)),
        users=_array(records, "users", "int64", 1),
        sentences=Rows(offsets, sentences),
        parts=_array(records, "parts", "float64", 1),
        mask_key=_word(records, "mask_key", bytes),
    )
    return one, RoundTerms(_word(records, "terms", str))


def answer(one: Answer) -> RecordDict:
    arrays = {"users": one.users.astype(np.int64), "updates": one.updates.float().numpy()}
    return _records({"nonce": one.nonce}, arrays)


def read_answer(records: RecordDict) -> Answer:
    return Answer(
        nonce=_word(records, "nonce", str),
        users=_array(records, "users", "int64", 1),
        updates=torch.from_numpy(_array(records, "updates", "float32", 2)),
    )


# --- records -------------------------------------------------------------------------------------


def _records(words: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> RecordDict:
    records = RecordDict({_WORDS: ConfigRecord({"protocol": _PROTOCOL, **words})})
    if arrays is not None:
        records[_ARRAYS] = ArrayRecord({name: _raw(values) for name, values in arrays.items()})
    return records


def _raw(values: Any) -> Array:
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return Array(values.dtype.name, tuple(map(int, values.shape)), _RAW, little.tobytes())


def _words(records: RecordDict) -> Any:
    words = records.get(_WORDS)
    if not isinstance(words, ConfigRecord):
        raise ValueError("not a message of uedp")
    if words.get("protocol") != _PROTOCOL:
        raise ValueError("a message of another release of uedp; use the same on all machines")
    return words


def _word(records: RecordDict, name: str, kind: type) -> Any:
    found = _words(records).get(name)
    if type(found) is not kind:
        raise ValueError(f"{name}: missing, or of another kind")
    return found


def _array(records: RecordDict, name: str, dtype: str, dimensions: int) -> Any:
    arrays = records.get(_ARRAYS)
    array = arrays.get(name) if isinstance(arrays, ArrayRecord) else None
    if array is None or array.stype != _RAW or array.dtype != dtype:
        raise ValueError(f"{name}: missing, or of another type")
    shape = tuple(array.shape)
    if len(shape) != dimensions or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{name}: of another shape")
    if len(array.data) != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"{name}: has not as many bytes as its shape says")
    read = np.frombuffer(array.data, dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape)
    return read.astype(dtype)


def _json_object(text: str) -> Mapping[str, Any]:
    from uedp.strict import parse_json

    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found
