"""Detection over shards gives what the local engine gives, whatever happens to the shards."""

import csv
import json
import stat
import warnings
from pathlib import Path

import pandas
import pytest

from tests.entities.shard_suite import InProcess, Killed
from uedp import files
from uedp.corpus.readers import SkippedRecords
from uedp.corpus.sentence import Span
from uedp.corpus.store import Corpus
from uedp.entities import build, reading, shards
from uedp.entities.build import build_corpus
from uedp.entities.detectors import register_detector
from uedp.entities.shards import ShardFolder
from uedp.errors import CorpusWarning, UserError

NAMES = ("Ann Lee", "Bob Ray", "Zoë Fox", "Red Sea")


@register_detector("ends-of-batches", version="1")
class _EndsOfBatches:
    """Finds the first word of a batch: tells how sentences were divided into batches."""

    propagates = True

    def __init__(self, argument):
        pass

    def detect(self, texts):
        for number, text in enumerate(texts):
            yield [Span(0, len(text.split()[0]), "PER")] if number in (0, len(texts) - 1) else []


def rows(start, count):
    for number in range(start, start + count):
        name = NAMES[number % 4]
        text = f"{name} wrote to a{number % 7}@x.example. Then {name} left on 12 March 2024."
        yield {"user": f"u{number % 9}", "text": text, "topic": None if number % 3 else "mail"}


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, ["user", "text", "topic"])
            table.writeheader()
            table.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


MAIL = (
    "From x@x.example Mon Jan  1 10:00:00 2024\nFrom: {0}@x.example\n\n{1} met Ann Lee.\n"
    "> quoted by {1}\n\nFrom x@x.example Mon Jan  1 11:00:00 2024\nFrom: b@x.example\n\n> q\n\n"
)


def many_jsonl(folder):
    for number in range(5):
        write(folder / "many" / f"part-{number}.jsonl", rows(40 * number, 10 * number))
    return folder / "many"


def many_mail(folder):
    (folder / "mail").mkdir()
    for number, name in enumerate("abcd"):
        (folder / "mail" / f"{name}.mbox").write_text(MAIL.format(name, NAMES[number]) * number)
    return folder / "mail"


def many_conll(folder):
    (folder / "conll").mkdir()
    for name in "ab":
        text = "-DOCSTART- O\n\nBob B-PER\nRay I-PER\n\n-DOCSTART- O\n\nLee O\n"
        (folder / "conll" / f"{name}.conll").write_text(text)
    return folder / "conll"


def one(name):
    def make(folder):
        write(folder / name, rows(0, 77))
        return folder / name

    return make


SOURCES = {
    "files": (many_jsonl, {"label": "topic"}),
    "large and small files": (many_jsonl, {"split": None}),
    "one file": (one("all.jsonl"), {"label": "topic"}),
    "table": (lambda folder: pandas.DataFrame(rows(0, 77)), {"label": "topic"}),
    "csv": (one("all.csv"), {"normalise": True}),
    "mail": (many_mail, {}),
    "users formed": (many_jsonl, {"assign_users": (3, 1), "seed": 5}),
    "users of files": (many_conll, {"reader": "conll", "detectors": "labels,ends-of-batches"}),
    "users held out": (many_jsonl, {"hold_out_share": 0.4}),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 8)
    monkeypatch.setattr("uedp.entities.parallel.BATCH", 5)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def nothing_but_kept(note):
    assert "finished shards, which are private; the same command continues with them" in note


@pytest.fixture
def detect(tmp_path, monkeypatch):
    def detect(source, out, executor=None, **options):
        """A corpus, or two if `hold_out_share` is given, as bytes by file."""
        if executor is not None:
            monkeypatch.setitem(build.ENGINES, "in process", executor.start)
            options["engine"] = "in process"
        if "hold_out_share" in options:
            options["hold_out"] = tmp_path / f"{out}-others"
        options = {"detectors": "patterns,ends-of-batches", **options}
        options.setdefault("on_note", nothing_but_kept)
        build_corpus(source, tmp_path / out, on_warning=lambda text: None, **options)
        folders = [tmp_path / out, *filter(None, [options.get("hold_out")])]
        for folder in folders:
            Corpus(folder).check_texts()
        return [contents(folder) for folder in folders]

    return detect


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def shards_in(folder):
    return sorted(folder.glob(".*.shards/*.shard"))


@pytest.mark.parametrize("case", SOURCES)
def test_every_executor_gives_the_local_corpus(case, tmp_path, detect, monkeypatch):
    """Guarantee of `over_shards`: at once, in any order, and for blocks as for files."""
    make, options = SOURCES[case]
    if case == "large and small files":
        monkeypatch.setattr(shards, "FILE_BYTES", 3000)
    source = make(tmp_path)
    expected = detect(source, "local", **options)
    if case == "files":
        assert expected == detect(source, "two", workers=2, **options)
    assert json.loads(expected[0]["corpus.json"])["mentions"] > 1
    for seed, at_once in enumerate((1, 3, 50)):
        executor = InProcess(at_once, seed)
        assert detect(source, f"sharded-{at_once}", executor, **options) == expected
        assert len(executor.ran) > 1
    assert left_in(tmp_path) == []
    if case == "mail":
        dropped = json.loads(expected[0]["corpus.json"])["source"]["dropped"]
        assert dropped == {"quoted lines": 12, "messages without own text": 6}


def test_some_sources_are_divided_into_files_and_some_into_blocks(tmp_path, detect, monkeypatch):
    source = many_jsonl(tmp_path)
    ran = {}
    for limit in (0, 3000, 1 << 20):
        monkeypatch.setattr(shards, "FILE_BYTES", limit)
        executor = InProcess(2)
        detect(source, f"c{limit}", executor)
        ran[limit] = len(executor.ran)
    blocks = [-(-10 * number // 8) for number in range(5)]
    assert ran == {0: 1 + sum(blocks), 3000: 3 + sum(blocks[3:]), 1 << 20: 5}


def test_blocks_end_with_many_characters(tmp_path, detect, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_CHARACTERS", 200)
    source = one("all.jsonl")(tmp_path)
    executor = InProcess(2)
    assert detect(source, "a", executor) == detect(source, "b")
    assert len(executor.ran) == -(-77 // 4)


def test_invalid_records_are_counted_alike(tmp_path, detect, monkeypatch):
    source = many_jsonl(tmp_path)
    for name in ("part-1", "part-4"):
        path = source / f"{name}.jsonl"
        path.write_text(f"oops\n{path.read_text()}[]\n")
    monkeypatch.setattr(shards, "FILE_BYTES", 2000)
    local = SkippedRecords()
    expected = detect(source, "local", skip_invalid=local)
    assert (local.count, local.first[:24]) == (4, f"{source}/part-1.jsonl:1: "[:24])
    for seed in range(3):
        skipped = SkippedRecords()
        executor = InProcess(3, seed)
        assert detect(source, f"c{seed}", executor, skip_invalid=skipped) == expected
        assert (skipped.count, skipped.first) == (local.count, local.first)


# --- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SOURCES)
@pytest.mark.parametrize("dies_after", [0, 1, 3])
def test_finished_shards_are_taken_up(case, dies_after, tmp_path, detect):
    make, options = SOURCES[case]
    source = make(tmp_path)
    expected = detect(source, "local", **options)
    died = InProcess(2, dies_after=dies_after)
    whole = InProcess()
    detect(source, "whole", whole, **options)
    if dies_after >= len(whole.ran):
        return
    with pytest.raises(Killed):
        detect(source, "c", died, **options)
    assert not (tmp_path / "c").exists()
    assert len(shards_in(tmp_path)) == dies_after
    assert left_in(tmp_path) == [".c.shards"] * bool(dies_after)
    second = InProcess(3, seed=dies_after)
    assert detect(source, "c", second, **options) == expected
    assert sorted(died.ran + second.ran) == sorted(whole.ran)
    assert left_in(tmp_path) == []


def test_lists_and_categories_may_differ_when_shards_are_taken_up(tmp_path, detect):
    source = many_jsonl(tmp_path)
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=3))
    executor = InProcess()
    assert detect(source, "c", executor, categories="person") == detect(
        source, "local", categories="person"
    )
    assert len(executor.ran) == 2


def test_a_failure_behind_detection_keeps_all_shards(tmp_path, detect, monkeypatch):
    source = many_jsonl(tmp_path)
    with monkeypatch.context() as patched:

        def fails(*arguments):
            raise Killed

        patched.setattr("uedp.entities.detection._link", fails)
        with pytest.raises(Killed):
            detect(source, "c", InProcess())
    executor = InProcess()
    assert detect(source, "c", executor) == detect(source, "local")
    assert executor.ran == []
    assert left_in(tmp_path) == []


OTHER_SETTINGS = {
    "detectors": {"detectors": "patterns"},
    "language": {"split": "de"},
    "column": {"label": "topic"},
    "skipped records": {"skip_invalid": True},
}


@pytest.mark.parametrize("case", OTHER_SETTINGS)
def test_shards_of_other_settings_are_discarded_and_said_so(case, tmp_path, detect):
    source, said = many_jsonl(tmp_path), []
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=3))
    executor, options = InProcess(), OTHER_SETTINGS[case]
    corpus = detect(source, "c", executor, on_note=said.append, **options)
    assert corpus == detect(source, "local", **options)
    assert len(executor.ran) == 5
    assert len(said) == 1
    assert "3 finished shards are of other settings or detectors; they are discarded" in said[0]


def test_another_version_of_a_detector_is_another_setting(tmp_path, detect, monkeypatch):
    source, said = many_jsonl(tmp_path), []
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=2))
    monkeypatch.setattr("uedp.entities.shards.detector_version", lambda name: "newer")
    detect(source, "c", InProcess(), on_note=said.append)
    assert len(said) == 1


def test_a_changed_file_of_a_detector_is_another_setting(tmp_path, detect, monkeypatch):
    source, said = many_jsonl(tmp_path), []
    code = tmp_path / "own.py"
    code.write_text(
        "from uedp.entities.detectors import register_detector\n"
        "@register_detector('own-of-shards')\n"
        "class Own:\n"
        "    propagates = False\n"
        "    def __init__(self, argument): pass\n"
        "    def detect(self, texts): return ([] for _ in texts)\n"
    )
    own = {"detectors": f"{code}:own-of-shards"}
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=2), **own)
    code.write_text(code.read_text() + "# changed\n")
    detect(source, "c", InProcess(), on_note=said.append, **own)
    assert len(said) == 1


@pytest.mark.parametrize("how", ["changed", "renamed", "removed", "added"])
def test_files_that_changed_are_not_mixed(how, tmp_path, detect):
    source, said = many_jsonl(tmp_path), []
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=4))
    path = source / "part-2.jsonl"
    if how == "changed":
        before = path.stat()
        path.write_text(path.read_text().replace("Ann", "Eva"))
        assert path.stat().st_size == before.st_size
    elif how == "renamed":
        path.rename(source / "part-9.jsonl")
    elif how == "removed":
        path.unlink()
    else:
        write(source / "part-11.jsonl", rows(7, 3))
    executor = InProcess()
    assert detect(source, "c", executor, on_note=said.append) == detect(source, "local")
    assert len(executor.ran) == {"changed": 2, "renamed": 2, "removed": 1, "added": 2}[how]
    unused = "1 finished shards are of text that has changed; they are discarded"
    assert [unused in line for line in said] == ([] if how == "added" else [True])


@pytest.mark.parametrize("how", ["cut", "flipped", "emptied", "exchanged", "partial"])
def test_a_damaged_shard_is_made_again(how, tmp_path, detect):
    source, said = many_jsonl(tmp_path), []
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=4))
    kept = shards_in(tmp_path)
    path, content = kept[1], kept[1].read_bytes()
    damaged = {
        "cut": content[:-1],
        "flipped": content[:200] + bytes([content[200] ^ 1]) + content[201:],
        "emptied": b"",
        "exchanged": kept[2].read_bytes(),
    }
    if how == "partial":
        path.rename(files.partial_path(path))
    else:
        path.write_bytes(damaged[how])
    executor = InProcess()
    assert detect(source, "c", executor, on_note=said.append) == detect(source, "local")
    assert len(executor.ran) == 2
    assert len(said) == (how != "partial")
    assert all("a finished shard is damaged; it is made again" in line for line in said)


def test_by_default_notes_are_warnings(tmp_path, detect):
    source = many_jsonl(tmp_path)
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=2))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        detect(source, "c", InProcess(), split=None, on_note=None)
    assert [w.category for w in heard if "discarded" in str(w.message)] == [CorpusWarning]


# --- privacy -------------------------------------------------------------------------------------


def test_only_the_owner_can_read_shards(tmp_path, detect):
    source = many_jsonl(tmp_path)
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=2))
    (folder,) = tmp_path.glob(".*.shards")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_two_processes_do_not_write_the_same_shards(tmp_path):
    with (
        ShardFolder(tmp_path / "c", "0" * 64, pytest.fail).opened(),
        pytest.raises(UserError, match="another process is writing shards of it"),
        ShardFolder(tmp_path / "c", "0" * 64, pytest.fail).opened(),
    ):
        pass
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("how", ["link", "other owner"])
def test_a_folder_of_somebody_else_is_not_used(how, tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious.shard").touch()
    if how == "link":
        (tmp_path / ".c.shards").symlink_to(mine)
    else:
        mine.rename(tmp_path / ".c.shards")
        monkeypatch.setattr("os.getuid", lambda: 12345)
    with (
        pytest.raises(UserError, match="is not a folder of yours; remove it"),
        ShardFolder(tmp_path / "c", "0" * 64, pytest.fail).opened(),
    ):
        pass
    assert (tmp_path / ".c.shards" / "precious.shard").exists()


def test_other_files_are_left_alone(tmp_path, detect):
    (tmp_path / ".c.shards").mkdir()
    (tmp_path / ".c.shards" / "precious").touch()
    with pytest.raises(Killed):
        detect(many_jsonl(tmp_path), "c", InProcess(dies_after=0))
    assert (tmp_path / ".c.shards" / "precious").exists()


def test_what_is_kept_is_said(tmp_path, detect):
    said = []
    with pytest.raises(Killed):
        detect(many_jsonl(tmp_path), "c", InProcess(dies_after=3), on_note=said.append)
    assert [f"{tmp_path}/.c.shards: keeps 3 finished shards" in line for line in said] == [True]


def test_long_names_and_links_have_folders_of_their_own(tmp_path):
    long = [tmp_path / ("n" * 250 + end) for end in "ab"]
    one, two = (ShardFolder(path, "0" * 64, pytest.fail).folder for path in long)
    assert one != two
    assert len(one.name) < 80
    (tmp_path / "link").symlink_to(tmp_path / "c")
    link, target = (
        ShardFolder(tmp_path / name, "0" * 64, pytest.fail).folder for name in ("link", "c")
    )
    assert link == target


def test_a_refused_command_leaves_shards_as_they_are(tmp_path, detect):
    source = many_jsonl(tmp_path)
    detect(source, "c")
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=2), overwrite=True)
    with pytest.raises(UserError, match="exists already"):
        detect(source, "c", InProcess())
    executor = InProcess()
    detect(source, "c", executor, overwrite=True)
    assert len(executor.ran) == 3
    assert left_in(tmp_path) == []


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 3000, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_the_first_error_is_raised_as_the_local_engine_does(
    limit, seed, tmp_path, detect, monkeypatch
):
    monkeypatch.setattr(shards, "FILE_BYTES", limit)
    source = many_jsonl(tmp_path)
    for name in ("part-3", "part-4"):
        path = source / f"{name}.jsonl"
        path.write_text(path.read_text() + "{\n")
    with pytest.raises(UserError) as expected:
        detect(source, "c")
    assert f"{source}/part-3.jsonl:31: broken JSON" in str(expected.value)
    with pytest.raises(UserError) as raised:
        detect(source, "c", InProcess(4, seed))
    assert str(raised.value) == str(expected.value)
    assert not (tmp_path / "c").exists()
    assert shards_in(tmp_path)
    write(source / "part-3.jsonl", rows(120, 30))
    write(source / "part-4.jsonl", rows(160, 40))
    again = InProcess()
    assert detect(source, "c", again, on_note=lambda note: None) == detect(source, "local")
    assert len(again.ran) < len(set(again.ran)) + 3


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("a.csv", "user,text\nann,hi\n", {"user": "author"}),
        ("a.jsonl", '{"user": "ann", "text": 3}\n', {}),
        ("a.jsonl", "\n", {}),
        ("a.csv", "user;text\nann;hi\n", {"delimiter": ","}),
        ("a.jsonl", "{}\n", {"encoding": "utf-16"}),
    ],
)
def test_mistakes_in_a_file_of_a_folder_read_alike(name, text, options, tmp_path, detect):
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / name).write_text(text)
    messages = []
    for executor in (None, InProcess(2)):
        with pytest.raises(UserError) as raised:
            detect(tmp_path / "many", "c", executor, **options)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "many" in messages[0]
    assert not (tmp_path / "c").exists()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, detect, monkeypatch):
    source = many_jsonl(tmp_path)
    run = shards.run_detectors

    def changing(detectors, batch):
        (source / "part-1.jsonl").write_text('{"user": "eve", "text": "other"}\n')
        return run(detectors, batch)

    monkeypatch.setattr(shards, "run_detectors", changing)
    with pytest.raises(UserError, match=r"part-1\.jsonl: changed while it was read; run it again"):
        detect(source, "c", InProcess())


def test_a_bug_is_raised_as_it_is(tmp_path, detect, monkeypatch):
    def broken(detectors, batch):
        raise ZeroDivisionError

    monkeypatch.setattr(shards, "run_detectors", broken)
    with pytest.raises(ZeroDivisionError):
        detect(many_jsonl(tmp_path), "c", InProcess(2))
    assert not (tmp_path / "c").exists()


def test_an_unknown_engine_is_refused(tmp_path):
    with pytest.raises(UserError, match="`engine='spark'`: unknown; choose among local, ray"):
        build_corpus(many_jsonl(tmp_path), tmp_path / "c", engine="spark")
    assert left_in(tmp_path) == []


def test_few_shards_are_held_and_progress_passes_through_the_source(tmp_path, detect):
    source, said = many_jsonl(tmp_path), []

    class Meter:
        def advance(self, items, position=None):
            said.append((items, position))

        def note(self, text):
            said.append(text)

    class Shown:
        def stage(self, name, total, unit):
            from contextlib import nullcontext

            assert name != "detecting" or total == sum(p.stat().st_size for p in source.iterdir())
            return nullcontext(Meter() if name == "detecting" else build.SILENT)

    executor = InProcess(2)
    with pytest.raises(Killed):
        detect(source, "c", InProcess(dies_after=2), progress=Shown())
    said.clear()
    detect(source, "c", executor, progress=Shown())
    assert executor.most == 2
    assert "2 shards were finished before" in said
    steps = [each for each in said if isinstance(each, tuple)]
    assert sum(items for items, _ in steps) == len(Corpus(tmp_path / "c"))
    positions = [position for _, position in steps]
    assert positions == sorted(positions)
    assert positions[-1] == sum(p.stat().st_size for p in Path(source).iterdir())
