"""Detection by the local engine and by Ray on the same generated files: speed, memory, digests.

    python benchmarks/detect_engines.py [--files 16] [--people 300] [--detector NAME] [--out FOLDER]

Whole commands are timed, with imports and Ray's own start, which is also reported apart: as what
a tiny source takes. Memory is the largest sum, over all processes of a command, of what is in
memory (pages that processes share are divided among them), looked at ten times a second. A source
is many files, which workers read, or one file with the same records, which the command reads.
Engines take turns, the order rotated; medians. All corpora must be the same to the byte.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uedp.corpus.store import Corpus
from uedp.sample.generate import write_sample

ENGINES = {
    "local, 1 process": ("local", 1),
    "local, 2 processes": ("local", 2),
    "ray, 2 workers": ("ray", 2),
}
_EACH = 0.1  # seconds between two looks at the memory


def descendants(process: int) -> set[int]:
    """A process and all that it started, as long as they are not orphans."""
    try:
        direct = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return set()
    return {process}.union(*map(descendants, map(int, direct)))


def memory(process: int) -> int:
    """The proportional set size, in bytes."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def timed(source: Path, out: Path, engine: str, workers: int, detector: str) -> tuple[float, int]:
    """Seconds and bytes of one command; the corpus stays in `out`."""
    options = ["--engine", engine, "--workers", str(workers), "--detector", detector]
    began = time.perf_counter()
    command = subprocess.Popen(
        [sys.executable, "-m", "uedp", "detect", str(source), "--out", str(out), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    most = 0
    ended = threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.wait(_EACH):
            most = max(most, sum(map(memory, descendants(command.pid))))

    watch = threading.Thread(target=look)
    watch.start()
    code = command.wait()
    seconds = time.perf_counter() - began
    ended.set()
    watch.join()
    if code:
        raise SystemExit(f"{engine} on {source}: exit code {code}")
    return seconds, most


def digest(folder: Path) -> str:
    """Of all files of a corpus but the name of its source."""
    state = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.name == "corpus.json":
            info = json.loads(content)
            info["source"].pop("file")
            content = json.dumps(info).encode()
        state.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return state.hexdigest()


def generated(place: Path, files: int, people: int) -> dict[str, Path]:
    """The same records as many files, as one file, and a tiny part of them."""
    many, one, tiny = place / "many", place / "one.jsonl", place / "tiny"
    many.mkdir()
    tiny.mkdir()
    with one.open("wb") as whole:
        for number in range(files):
            path = many / f"part-{number:04d}.jsonl"
            write_sample(path, number, people)
            whole.write(path.read_bytes())
    write_sample(tiny / "part.jsonl", 0, 10)
    return {"many files": many, "one file": one, "a tiny file": tiny}


def measure(
    sources: dict[str, Path], place: Path, detector: str, repeats: int, say: Callable[[str], None]
) -> dict[str, Any]:
    cases = [(name, engine) for name in sources for engine in ENGINES]
    seconds: dict[Any, list[float]] = {case: [] for case in cases}
    peaks: dict[Any, int] = dict.fromkeys(cases, 0)
    digests: dict[str, set[str]] = {name: set() for name in sources}
    sentences = 0
    for turn in range(repeats):
        shift = turn % len(cases)
        for name, engine in cases[shift:] + cases[:shift]:
            out = place / "corpus"
            taken, peak = timed(sources[name], out, *ENGINES[engine], detector)
            seconds[name, engine].append(taken)
            peaks[name, engine] = max(peaks[name, engine], peak)
            digests[name].add(digest(out))
            if name != "a tiny file":
                sentences = len(Corpus(out))
            shutil.rmtree(out)
            say(f"{turn + 1}/{repeats} {name}, {engine}: {taken:.1f} s")
    same = len(digests["many files"] | digests["one file"]) == 1 == len(digests["a tiny file"])
    rows = {
        name: {
            engine: {
                "seconds": statistics.median(seconds[name, engine]),
                "peak_bytes": peaks[name, engine],
            }
            for engine in ENGINES
        }
        for name in sources
    }
    return {"sentences": sentences, "same_corpora": same, "rows": rows}


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['records']:,} records, {result['sentences']:,} sentences, "
        f"detector {result['detector']}, median of {result['repeats']}, {result['machine']}",
        f"{'source':12} {'engine':20} {'seconds':>9} {'records/s':>10} {'memory':>9}",
    ]
    for name, rows in result["rows"].items():
        for engine, row in rows.items():
            rate = f"{result['records'] / row['seconds']:,.0f}" if name != "a tiny file" else ""
            lines.append(
                f"{name:12} {engine:20} {row['seconds']:9.1f} {rate:>10} "
                f"{row['peak_bytes'] / 1e9:6.2f} GB"
            )
    lines.append(f"the same corpora to the byte: {'yes' if result['same_corpora'] else 'NO'}")
    many, tiny = result["rows"]["many files"], result["rows"]["a tiny file"]
    two, ray = many["local, 2 processes"]["seconds"], many["ray, 2 workers"]["seconds"]
    start = tiny["ray, 2 workers"]["seconds"] - tiny["local, 2 processes"]["seconds"]
    lines.append(f"ray takes {ray / two:.2f} x the time of two processes; {start:.1f} s to start")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--people", type=int, default=300, help="authors in each file")
    parser.add_argument("--detector", default="labels,patterns")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        sources = generated(place, options.files, options.people)
        records = sum(1 for _ in sources["one file"].open("rb"))
        say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
        measured = measure(sources, place, options.detector, options.repeats, say)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "files": options.files,
        "records": records,
        "detector": options.detector,
        "repeats": options.repeats,
        **measured,
    }
    text = table(result)
    print(text, end="")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "detect_engines.json").write_text(json.dumps(result, indent=2) + "\n")
    (options.out / "detect_engines.txt").write_text(text)


if __name__ == "__main__":
    main()
