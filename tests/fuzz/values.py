"""Ways to spoil bytes, JSON values and Arrow tables."""

import json
import random
import string
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

STRANGE = (
    "",
    " ",
    "\u200b",
    "bob\u200b",
    "e\u0301",
    "\u00e9",
    "\ufeff",
    "\x00",
    "\x1b[31m",
    "\u202e",
    "\U0001f600",
    "\u0600",
    "\udc80",
    "null",
    "NaN",
    "-DOCSTART-",
    '"',
    "'",
    ",",
    "\t",
    "\n",
    "\r\n",
    "../../etc",
    "x" * 3000,
    "a@b.example",
    "+44 20 7946 0958",
)
TOKENS = (
    b"\xff",
    b"\x00",
    b'"',
    b"'",
    b",",
    b"\n",
    b"\r",
    b"\t",
    b"{",
    b"}",
    b"[" * 2000,
    b"]",
    b":",
    b"\\ud800",
    b"\xef\xbb\xbf",
    b"\xc3\x28",
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"null",
    b"I-PER",
    b"B-",
    b"-DOCSTART- O\n",
    b"PAR1",
    b"ARROW1",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
)


def text(rng: random.Random) -> str:
    """Words, most of them ordinary."""
    words = [
        rng.choice(STRANGE) if rng.random() < 0.1 else _word(rng) for _ in range(rng.randint(1, 8))
    ]
    return " ".join(words)


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_letters, k=rng.randint(1, 9)))


def json_value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can hold."""
    simple: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: rng.choice((True, False)),
        lambda: rng.choice((0, -1, 7, 2**31, 2**63, 2**70, 10**400)),
        lambda: rng.choice((0.5, -0.0, 1e308, float("nan"), float("inf"))),
        lambda: rng.choice(STRANGE),
        lambda: text(rng),
    )
    if depth > 3 or rng.random() < 0.6:
        return rng.choice(simple)()
    if rng.random() < 0.5:
        return [json_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    keys = ("start", "end", "label", "text", "user", rng.choice(STRANGE))
    return {rng.choice(keys): json_value(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a few things wrong."""
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        data = rng.choice(_SPOILERS)(rng, data)
    return data


def _place(rng: random.Random, data: bytes) -> int:
    """Anywhere, though often near an end, where formats keep what matters most."""
    size = len(data)
    where = rng.random()
    if where < 0.2:
        return min(rng.randint(0, 64), size)
    if where < 0.4:
        return max(size - rng.randint(0, 256), 0)
    return rng.randint(0, size)


def _flip(rng: random.Random, data: bytes) -> bytes:
    at = _place(rng, data)
    if at >= len(data):
        return data
    return data[:at] + bytes([data[at] ^ (1 << rng.randint(0, 7))]) + data[at + 1 :]


def _overwrite(rng: random.Random, data: bytes) -> bytes:
    at, token = _place(rng, data), rng.choice(TOKENS)[:8]
    return data[:at] + token + data[at + len(token) :]


def _number(rng: random.Random, data: bytes) -> bytes:
    """A number of four or eight bytes where formats keep lengths and offsets."""
    at, width = _place(rng, data) // 4 * 4, rng.choice((4, 8))
    value = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), rng.randint(-1000, 100_000)))
    return data[:at] + value.to_bytes(width, "little", signed=True) + data[at + width :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.choice((*TOKENS, rng.randbytes(rng.randint(1, 40)))) + data[at:]


def _delete(rng: random.Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + data[at + rng.choice((1, 1, 2, 8, 100)) :]


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: _place(rng, data)]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    at, width = _place(rng, data), rng.randint(1, 200)
    return data[: at + width] + data[at:]


def _swap(rng: random.Random, data: bytes) -> bytes:
    one, other = sorted((_place(rng, data), _place(rng, data)))
    width = rng.randint(1, 64)
    first, second = data[one : one + width], data[other : other + width]
    return data[:one] + second + data[one + width : other] + first + data[other + width :]


_SPOILERS = (
    _flip,
    _flip,
    _overwrite,
    _number,
    _number,
    _insert,
    _delete,
    _truncate,
    _repeat,
    _swap,
)


def with_a_lie(rng: random.Random, data: bytes, table: pa.Table) -> bytes:
    """Arrow data in which an offset or an index of a column points elsewhere.

    It is put into the bytes that Arrow wrote: asked to write it, Arrow would crash here.
    """
    columns = [chunk for column in table.columns for chunk in column.chunks if len(chunk)]
    rng.shuffle(columns)
    for column in columns:
        buffers = [buffer for buffer in column.buffers() if buffer is not None and buffer.size >= 4]
        if not buffers:
            continue
        wanted = rng.choice(buffers).to_pybytes()
        wanted = wanted[: len(wanted) // 4 * 4]
        at = data.find(wanted)
        if at >= 0:
            at += 4 * rng.randrange(len(wanted) // 4)
            lie = rng.choice((-1, 2**31 - 1, 2**20, -(2**31), 3, 0))
            return data[:at] + lie.to_bytes(4, "little", signed=True) + data[at + 4 :]
    return spoiled(rng, data)


def any_array(rng: random.Random, rows: int) -> pa.Array:
    """A valid column of some type."""
    kinds: Sequence[Callable[[], pa.Array]] = (
        lambda: pa.array([text(rng) for _ in range(rows)]),
        lambda: pa.array([rng.randint(-5, 5) for _ in range(rows)]),
        lambda: pa.array([rng.randint(0, 2**63 - 1) for _ in range(rows)]),
        lambda: pa.array([rng.random() for _ in range(rows)]),
        lambda: pa.nulls(rows),
        lambda: pa.array([None, *["x"] * (rows - 1)]),
        lambda: pa.array([b"\xff\x00"] * rows),
        lambda: pa.array([2**62] * rows).cast(pa.timestamp("ns")),
        lambda: pa.array([2**62] * rows).cast(pa.timestamp("s")),
        lambda: pa.array([2**62] * rows).cast(pa.duration("us")),
        lambda: pa.array([2**30] * rows, pa.int32()).cast(pa.date32()),
        lambda: pa.array([["x"]] * rows),
        lambda: pa.array([{"start": 0, "end": 1, "label": "PER"}] * rows),
        lambda: pa.array([[{"start": 0, "end": 1, "label": "PER"}]] * rows),
        lambda: pa.array([[{"start": -1, "end": 99, "label": None}]] * rows),
        lambda: pa.array([text(rng) for _ in range(rows)]).dictionary_encode(),
        lambda: pa.array([text(rng) for _ in range(rows)], pa.large_string()),
        lambda: pa.array([text(rng) for _ in range(rows)], pa.string_view()),
        lambda: pa.array([[("k", "v")]] * rows, pa.map_(pa.string(), pa.string())),
        lambda: pa.array([True] * rows),
    )
    while True:
        try:
            return rng.choice(kinds)()
        except (UnicodeEncodeError, pa.ArrowInvalid):  # half a surrogate pair
            continue


def spoiled_json(rng: random.Random, data: bytes) -> bytes:
    """A JSON text with a value replaced, or none at all."""
    if rng.random() < 0.4:
        return spoiled(rng, data)
    value = json.loads(data)
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            del value[key]
        else:
            value[key] = json_value(rng)
    else:
        value = json_value(rng)
    return json.dumps(value).encode()
