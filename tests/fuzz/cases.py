"""One case of every kind: make an input from a seed, and use it as the product would."""

import csv
import gzip
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz import values
from uedp.corpus import store
from uedp.corpus.readers import READERS, SkippedRecords, raise_error, read_sentences
from uedp.corpus.records import Columns, blank
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError

CORPUS = "corpus"
KINDS = (*READERS, CORPUS)


def run(kind: str, seed: str, folder: Path) -> str:
    """Make a case in an empty folder and use it: `read` or `refused`; all else is an exception."""
    rng = random.Random(seed)
    if kind == CORPUS:
        return _open(rng, spoiled_corpus(rng, folder))
    path, columns = _MAKERS[kind](rng, folder)
    on_error = rng.choice((raise_error, SkippedRecords()))
    found: list[Sentence] = []
    try:
        for sentence in read_sentences(path, kind, columns, on_error):
            _hold(sentence, columns)
            found.append(sentence)
    except UserError as error:
        _one_line(error)
        return "refused"
    if rng.random() < 0.05:
        try:
            detect(found, folder / "made", Detection(("labels", "patterns")))
            list(Corpus(folder / "made"))
        except UserError as error:
            _one_line(error)
    return "read"


def _hold(sentence: Sentence, columns: Columns) -> None:
    """What `read` guarantees."""
    assert not blank(sentence.text)
    assert columns.user is None or not blank(sentence.user)
    for part in (sentence.user, sentence.text, sentence.label or ""):
        part.encode()
    for mark in sentence.marks:
        assert 0 <= mark.start < mark.end <= len(sentence.text)


def _one_line(error: UserError) -> None:
    assert str(error)
    assert len(str(error).splitlines()) == 1, repr(str(error))


# --- files of text -------------------------------------------------------------------------------


def _rows(rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    for _ in range(rng.randint(1, 12)):
        written = values.text(rng)
        end = rng.randint(1, max(len(written), 1))
        row: dict[str, Any] = {
            "user": rng.choice(("ann", "ben", 7, values.text(rng))),
            "text": written,
            "label": rng.choice((None, "a", 1, 2.5)),
            "marks": [{"start": 0, "end": end, "label": "PER"}] * rng.randint(0, 2),
        }
        if rng.random() < 0.1:
            row[rng.choice(list(row))] = values.json_value(rng)
        rows.append(row)
    return rows


def _columns(rng: random.Random) -> Columns:
    return Columns(
        user=None if rng.random() < 0.1 else "user",
        label=rng.choice((None, "label")),
        marks=rng.choice((None, "marks")),
    )


def _write(rng: random.Random, path: Path, data: bytes) -> Path:
    """Most often spoiled, sometimes packed, before or after."""
    if rng.random() < 0.8:
        data = values.spoiled(rng, data)
    if rng.random() < 0.15:
        data = gzip.compress(data, 1)
        if rng.random() < 0.5:
            data = values.spoiled(rng, data)
        path = path.with_name(f"{path.name}.gz")
    path.write_bytes(data)
    return path


def _jsonl(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    lines = [json.dumps(row, ensure_ascii=rng.random() < 0.5) for row in _rows(rng)]
    if rng.random() < 0.2:
        lines.insert(0, json.dumps(values.json_value(rng)))
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return _write(rng, folder / "x.jsonl", data), _columns(rng)


def _txt(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    data = "\n".join(str(row["text"]) for row in _rows(rng)).encode("utf-8", "surrogatepass")
    return _write(rng, folder / "x.txt", data), Columns(user=None)


def _csv(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    suffix = rng.choice(("csv", "tsv"))
    out = io.StringIO()
    delimiter = "\t" if suffix == "tsv" else rng.choice(",,;\t|")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(["user", "text", "label", "marks"])
    for row in _rows(rng):
        writer.writerow([*list(row.values())[:3], json.dumps(row["marks"])])
    data = out.getvalue().encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        data = out.getvalue().encode("utf-16", "replace")
    return _write(rng, folder / f"x.{suffix}", data), _columns(rng)


def _ag(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if rng.random() < 0.5:
        writer.writerow(["Class Index", "Title", "Description"])
    for _ in range(rng.randint(1, 12)):
        writer.writerow([rng.choice((1, 2, "3", "x", "²")), values.text(rng), values.text(rng)])
    data = out.getvalue().encode("utf-8", "surrogatepass")
    return _write(rng, folder / "x.csv", data), Columns(user=None)


def _conll(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    between = rng.choice((" ", "\t"))
    lines: list[str] = []
    for _ in range(rng.randint(1, 5)):
        lines += ["-DOCSTART- -X- O", ""]
        for _ in range(rng.randint(1, 8)):
            tag = rng.choice(("O", "O", "B-PER", "I-PER", "I-", "x", "B-\u200b"))
            lines.append(between.join((values.text(rng).replace(" ", ""), "NN", tag)))
        lines.append("")
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return _write(rng, folder / "x.conll", data), _columns(rng)


def _presidio(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    rows = [
        {
            "full_text": row["text"],
            "spans": [
                {"entity_type": "PER", "start_position": 0, "end_position": rng.randint(-1, 9)}
            ],
        }
        for row in _rows(rng)
    ]
    value: Any = rows if rng.random() < 0.9 else values.json_value(rng)
    return _write(rng, folder / "x.json", json.dumps(value).encode()), _columns(rng)


def _json(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    value: Any = _rows(rng) if rng.random() < 0.9 else values.json_value(rng)
    if rng.random() < 0.4:
        value = {"count": 3, "names": ["a"], "messages": value, "done": {"at": [{}]}}
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2)))
    encoding = rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32"))
    return _write(rng, folder / "x.json", text.encode(encoding, "surrogatepass")), _columns(rng)


def _message(rng: random.Random) -> bytes:
    lines = [
        f"From: {rng.choice(('ann@a.example', values.text(rng), 'B <b@b.example>', ''))}",
        f"Subject: {values.text(rng)}",
        f"Content-Type: {rng.choice(('text/plain', 'text/html', 'multipart/mixed; boundary=x'))}"
        f"; charset={rng.choice(('utf-8', 'latin-1', 'none-such'))}",
        f"Content-Transfer-Encoding: {rng.choice(('8bit', 'base64', 'quoted-printable', 'x'))}",
        "",
        rng.choice(("", "--x", "<p>Hi<blockquote>", "On Monday, Ann wrote:", "> quoted")),
        values.text(rng),
        rng.choice(("", "-- ", "From here", ">From there")),
        values.text(rng),
    ]
    return "\n".join(lines).encode("utf-8", "replace")


def _mbox(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    messages = [
        b"From a@b.example Sat Jan  3 01:05:34 1996\n" + _message(rng) + b"\n\n"
        for _ in range(rng.randint(1, 6))
    ]
    return _write(rng, folder / "x.mbox", b"".join(messages)), Columns(label="subject")


def _eml(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    path = folder / "mail"
    for number in range(rng.randint(1, 6)):
        place = path / rng.choice((".", "deep/er", "box/cur"))
        place.mkdir(parents=True, exist_ok=True)
        data = _message(rng)
        data = data if rng.random() < 0.5 else values.spoiled(rng, data)
        (place / f"{number}.eml").write_bytes(data)
    return path, Columns()


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:30_000]  # a cell holds no more


def _xlsx(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    import openpyxl
    from openpyxl.utils.exceptions import IllegalCharacterError

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["user", "text", "label", "marks"])
    for row in _rows(rng):
        cells = [*list(row.values())[:3], json.dumps(row["marks"])]
        cells = [
            cell if isinstance(cell, float | None) or cell == 7 else _writable(str(cell))
            for cell in cells
        ]
        with suppress(IllegalCharacterError, ValueError):  # what no workbook can hold
            sheet.append(cells)
    out = io.BytesIO()
    book.save(out)
    data = out.getvalue()
    data = data if rng.random() < 0.3 else values.spoiled(rng, data)
    path = folder / "x.xlsx"
    path.write_bytes(data)
    return path, _columns(rng)


# --- tables --------------------------------------------------------------------------------------


def _table(rng: random.Random) -> pa.Table:
    """A table that fits, or one with columns of other types."""
    rows = rng.randint(1, 12)
    marks = [[{"start": 0, "end": 1, "label": "PER"}] * rng.randint(0, 1) for _ in range(rows)]
    columns = {
        "user": pa.array([rng.choice(("ann", "ben")) for _ in range(rows)]),
        "text": pa.array([f"text {number}" for number in range(rows)]),
        "label": pa.array([rng.choice((None, "a")) for _ in range(rows)], pa.string()),
        "marks": pa.array(marks, store.SENTENCES.field("marks").type),
    }
    for name in columns:
        if rng.random() < 0.15:
            columns[name] = values.any_array(rng, rows)
    if rng.random() < 0.05:
        columns.pop(rng.choice(list(columns)))
    return pa.table(columns)


def _parquet(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    out = io.BytesIO()
    while True:
        try:
            pq.write_table(
                _table(rng),
                out,
                compression=rng.choice(("none", "snappy", "zstd", "gzip")),
                use_dictionary=rng.random() < 0.5,
                row_group_size=rng.choice((1, 5, 100)),
            )
        except (pa.ArrowException, pa.ArrowNotImplementedError):
            out = io.BytesIO()
            continue
        break
    return _write(rng, folder / "x.parquet", out.getvalue()), _columns(rng)


def _stream(rng: random.Random, table: pa.Table) -> bytes:
    out = io.BytesIO()
    compression = rng.choice((None, None, "lz4", "zstd"))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rng.choice((1, 5, 100)))
    return out.getvalue()


def _hf(rng: random.Random, folder: Path) -> tuple[Path, Columns]:
    """A folder as `save_to_disk` writes it."""
    path = folder / "set"
    path.mkdir()
    names = [f"data-{n:05d}-of-00002.arrow" for n in range(rng.choice((1, 1, 2)))]
    for name in names:
        table = _table(rng)
        data = _stream(rng, table)
        if rng.random() < 0.3:
            data = values.with_a_lie(rng, data, table)
        (path / name).write_bytes(data)
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0123456789abcdef",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (path / "state.json").write_text(json.dumps(state, indent=2))
    (path / "dataset_info.json").write_text("{}")
    if rng.random() < 0.6:
        victim = path / rng.choice((*names, *names, "state.json"))
        _spoil_file(rng, path, victim)
    return path, _columns(rng)


_MAKERS: dict[str, Callable[[random.Random, Path], tuple[Path, Columns]]] = {
    "jsonl": _jsonl,
    "txt": _txt,
    "csv": _csv,
    "parquet": _parquet,
    "hf": _hf,
    "conll": _conll,
    "ag": _ag,
    "presidio-research": _presidio,
    "json": _json,
    "mbox": _mbox,
    "eml": _eml,
    "xlsx": _xlsx,
}


def _spoil_file(rng: random.Random, folder: Path, victim: Path) -> None:
    others = sorted(path for path in folder.rglob("*") if path.is_file() and path != victim)
    how = rng.random()
    if how < 0.03:
        victim.unlink()
    elif how < 0.05:
        victim.unlink()
        victim.mkdir()
    elif how < 0.07:
        victim.unlink()
        victim.symlink_to(victim.name)  # to itself
    elif how < 0.12 and others:
        shutil.copyfile(rng.choice(others), victim)
    elif victim.suffix == ".json":
        victim.write_bytes(values.spoiled_json(rng, victim.read_bytes()))
    else:
        victim.write_bytes(values.spoiled(rng, victim.read_bytes()))


# --- the corpus ----------------------------------------------------------------------------------


def _sentences() -> Iterator[Sentence]:
    rng = random.Random(0)
    for number in range(40):
        name = rng.choice(("Ann", "Bob", "Zoë"))
        text = f"{name} wrote mail {number} to a{number % 3}@b.example"
        label = rng.choice(("x", "y", None))
        yield Sentence(f"user {number % 7}", text, label, (Span(0, len(name), "PER"),))


def base_corpora(folder: Path) -> list[Path]:
    """A few whole corpora, made once."""
    found = []
    for number, normalised in enumerate((False, True)):
        path = folder / f"corpus-{number}"
        if not path.exists():
            detection = Detection(("labels", "patterns"), normalised=normalised)
            before = store.BATCH
            store.BATCH = (8192, 16)[number]  # one with several batches
            try:
                detect(_sentences(), path, detection)
            finally:
                store.BATCH = before
        found.append(path)
    return found


_bases: list[Path] = []


def spoiled_corpus(rng: random.Random, folder: Path) -> Path:
    if not _bases:
        _bases.extend(base_corpora(folder.parent))
    one, other = rng.sample(_bases, 2)
    path = folder / "corpus"
    shutil.copytree(one, path)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    for victim in rng.sample(files, rng.choice((1, 1, 1, 2))):
        how = rng.random()
        if how < 0.2 and victim.suffix == ".npy":
            _rewrite_array(rng, victim)
        elif how < 0.5 and victim.suffix == ".arrow":
            _rewrite_table(rng, victim)
        elif how < 0.6 and (other / victim.relative_to(path)).exists():
            shutil.copyfile(other / victim.relative_to(path), victim)
        else:
            _spoil_file(rng, path, victim)
    return path


def _rewrite_array(rng: random.Random, path: Path) -> None:
    array = np.load(path)
    how = rng.randrange(6)
    if how == 0 and array.size:
        array[rng.randrange(array.size)] = rng.choice((-1, 0, 1, 5, 2**31 - 1, 10**6))
    elif how == 1:
        np.random.default_rng(rng.randrange(2**32)).shuffle(array)
    elif how == 2:
        array = array.astype(rng.choice(("int64", "float32", ">i4", "U3", "bool")))
    elif how == 3:
        array = array[: rng.randint(0, len(array))]
    elif how == 4:
        array = array.reshape(1, -1)
    else:
        array = np.full_like(array, rng.choice((0, -1, 3)))
    np.save(path, array)


def _rewrite_table(rng: random.Random, path: Path) -> None:
    """A file that is Arrow, but not what a corpus holds."""
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    for _ in range(rng.choice((1, 1, 2))):
        number = rng.randrange(table.num_columns)
        name, kind, rows = table.column_names[number], table.schema.types[number], table.num_rows
        how = rng.randrange(6)
        if how == 0:
            table = table.set_column(number, name, values.any_array(rng, rows))
        elif how == 1:
            table = table.set_column(number, table.schema.field(number), pa.nulls(rows, kind))
        elif how == 2 and pa.types.is_integer(kind):
            changed = table.column(number).to_pylist()
            limit = 2 ** (kind.bit_width - 1)
            changed[rng.randrange(rows)] = rng.choice((-1, -limit, limit - 1, 99, 0))
            field = table.schema.field(number)
            table = table.set_column(number, field, pa.array(changed, kind))
        elif how == 3:
            break  # the same, and a lie in it
        elif how == 4:
            order = list(range(rows))
            rng.shuffle(order)
            with suppress(pa.ArrowNotImplementedError):  # of a few types
                table = table.take(pa.array(order))
        else:
            table = table.slice(rng.randint(0, rows))
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rng.choice((7, 1000)))
    if rng.random() < 0.4:
        path.write_bytes(values.with_a_lie(rng, path.read_bytes(), table))


def _open(rng: random.Random, path: Path) -> str:
    """Whatever commands do with a corpus; each starts anew, as a command would."""
    from uedp.entities.breakdown import breakdown, widest_entities
    from uedp.entities.coverage import coverage
    from uedp.entities.detection import relink
    from uedp.entities.review import EntityTable
    from uedp.training.config import parse_config
    from uedp.training.datasets import read_training_data

    def material(method: str) -> None:
        privacy = {"method": method} | ({"epsilon": 1} if method == "rotation" else {})
        sections = {"privacy": privacy, "data": {"train": str(path)}, "model": {"name": "gpt2"}}
        read_training_data(parse_config(sections))

    uses: tuple[Callable[[], Any], ...] = (
        lambda: breakdown(Corpus(path)),
        lambda: widest_entities(Corpus(path)),
        lambda: (list(Corpus(path)), list(Corpus(path).spans())),
        lambda: Corpus(path).texts([rng.randrange(40), 0]),
        lambda: Corpus(path).user_names.to_pylist(),
        lambda: coverage(Corpus(path)),
        lambda: (table := EntityTable(Corpus(path))).rows(table.select(doubtful=True)),
        lambda: relink(Corpus(path), path.parent / "linked", overwrite=True),
        lambda: material("rotation"),
        lambda: material("deidentified"),
    )
    refused = False
    for use in uses:
        try:
            use()
        except UserError as error:
            _one_line(error)
            refused = True
    return "refused" if refused else "read"
