"""Federated training over Flower: the same run centrally, clients that fail, a thousand clients.

    python benchmarks/federated.py --data DATA [--parts real failing simulation] [--out FILE]

CoNLL's documents are users; eight clients divide them. A small GPT-2 over bytes is trained from
scratch, to epsilon 8. Each part takes some minutes on two cores, and keeps the others' results:

- real: a SuperLink and eight SuperNodes, each a process, on this machine; and the same rounds by
  one owner of all texts, with the same seeds. The weights must agree up to rounding.
- failing: the same without a seed, and in each round each client fails by a chance of 30%: it
  crashes, is late, or sends NaN or too long an update. Beside it, with nobody failing.
- simulation: a thousand clients in Flower's simulation, with the users of the bundled sample.

The file beside OUT, with .txt, has the same as a table.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.distributed import save_model

OUT = Path(__file__).with_name("results") / "federated.json"
CLIENTS, CHANCE = 8, 0.3
KINDS = ("crash", "late", "nan", "long")
PATIENCE = 20.0  # seconds: a round with a late client takes as long
PARTS = ("real", "failing", "simulation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder with conll2003")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--clients", type=int, default=1000, help="of the simulation")
    parser.add_argument("--simulated-rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--be-client", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be_client:
        failing_client(*given.be_client)
        return
    result: dict[str, Any] = {}
    if given.out.is_file():
        result = json.loads(given.out.read_text())
    for part in given.parts:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            result[part] = {"real": real, "failing": failing, "simulation": simulation}[part](
                Path(name), given
            )
        result[part]["seconds"] = time.monotonic() - began
        result |= {"cores": len(os.sched_getaffinity(0))}
        given.out.write_text(json.dumps(result, indent=2) + "\n")
        given.out.with_suffix(".txt").write_text(table(result) + "\n")
    print(table(result))


# --- real ----------------------------------------------------------------------------------------


def real(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    from safetensors.torch import load_file

    from uedp.training import loop

    prepare_conll(work, given.data)
    runs = [(f"federated-{seed}", config(work, given.rounds, seed)) for seed in given.seeds]
    outcomes = federated(work, runs)
    rows = []
    for seed, (_, settings), outcome in zip(given.seeds, runs, outcomes, strict=True):
        print(f"seed {seed}, centrally", flush=True)
        own = loop.run(settings, work / f"central-{seed}", data=joined(work))
        there, here = (load_file(one.folder / "model.safetensors") for one in (outcome, own))
        rows.append(
            {
                "seed": seed,
                "federated": outcome.after["perplexity"],
                "central": own.after["perplexity"],
                "largest_difference_of_weights": max(
                    float((there[name] - here[name]).abs().max()) for name in here
                ),
                "largest_weight": max(float(value.abs().max()) for value in here.values()),
                **rounds_of(outcome.folder),
            }
        )
    return {
        "clients": CLIENTS,
        "rounds": given.rounds,
        "before": outcomes[0].before["perplexity"],
        "rows": rows,
        "spread": {
            kind: stdev(row[kind] for row in rows) if len(rows) > 1 else None
            for kind in ("federated", "central")
        },
    }


def joined(work: Path) -> Any:
    """All texts of the clients, for one owner who numbers users and entities as the server does."""
    from uedp.corpus.store import Corpus
    from uedp.distributed.client import read_key, register
    from uedp.distributed.federation import Federation
    from uedp.distributed.registrations import load_registrations
    from uedp.training.datasets import Texts, TrainingData, read_texts

    key = read_key(work / "key")
    corpora = {register(one, key).name: one for one in map(Corpus, client_folders(work))}
    whole = Federation.of(load_registrations(work / "federation"))
    texts = [t for name in whole.clients for t in corpora[name].sentences["text"].to_pylist()]
    folder = work / "owner"
    folder.mkdir(exist_ok=True)
    return TrainingData(
        Texts(texts, [None] * len(texts)), whole.incidence, folder, read_texts(work / "held-out")
    )


# --- failing -------------------------------------------------------------------------------------


def failing(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    from uedp.accounting.certificate import verify

    prepare_conll(work, given.data)
    rows = {}
    for name, fails in (("nobody fails", False), ("30% fail", True)):
        settings = config(work, given.rounds, None)
        (outcome,) = federated(work, [(name.replace(" ", "-"), settings)], fails=fails)
        found = verify(outcome.folder, corpus=work / "federation")
        said = [line for line in _said if "without an update" in line]
        rows[name] = {
            "epsilon": found.epsilon,
            "private": found.private,
            "before": outcome.before["perplexity"],
            "after": outcome.after["perplexity"],
            "rounds_with_missing_users": len(said),
            "missing_share": missing_share(said, outcome.folder),
            **rounds_of(outcome.folder),
        }
    assert rows["30% fail"]["epsilon"] == rows["nobody fails"]["epsilon"]
    return {"clients": CLIENTS, "rounds": given.rounds, "chance": CHANCE, "rows": rows}


def missing_share(said: list[str], run: Path) -> float:
    """Of the drawn users, those whose update is missing."""
    missing = [int(line.split(" of ")[0].replace(",", "")) for line in said]
    drawn = sum(line["users"] for line in metrics(run))
    return sum(missing) / max(drawn, 1)


def failing_client(config_file: str, corpus: str, key: str, server: str, seed: str) -> None:
    """A client that fails in some rounds."""
    import torch
    from flwr.app import Context, Message

    from uedp.distributed import wire
    from uedp.distributed.client import Client, read_key
    from uedp.distributed.federation import Answer
    from uedp.distributed.flower import client_app
    from uedp.distributed.nodes import run_client
    from uedp.training.config import load_config

    one = Client(Path(corpus), read_key(Path(key)), load_config(Path(config_file)))
    app, chance = client_app(lambda context: one), random.Random(seed)

    def unreliable(message: Message, context: Context) -> Message:
        if message.metadata.message_type != wire.UPDATES or chance.random() >= CHANCE:
            return app(message, context)
        order, _ = wire.read_order(message.content)
        kind = chance.choice(KINDS)
        updates = torch.zeros(len(order.users), len(order.weights) + (kind == "long"))
        if kind == "crash":
            raise RuntimeError("as if")
        if kind == "late":
            time.sleep(PATIENCE + 2)
        if kind == "nan":
            updates[0] = float("nan")
        answer = wire.answer(Answer(order.nonce, order.users, updates))
        return Message(answer, reply_to=message)

    run_client(unreliable, server)


# --- simulation ----------------------------------------------------------------------------------


def simulation(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    import torch

    import uedp
    from uedp.accounting.certificate import verify
    from uedp.distributed.client import make_key, read_key
    from uedp.distributed.flower import Server
    from uedp.distributed.simulation import simulate
    from uedp.sample.generate import sample_sentences

    sentences = list(sample_sentences(people=2 * given.clients))
    uedp.detect(sentences, work / "corpus", uedp.Detection(("labels", "patterns")))
    make_key(work / "key")
    save_model(work / "model", width=64, layers=2, heads=2)
    settings = config(work, given.simulated_rounds, None, held_out=False, user_rate=0.05)
    cores, peaks = len(os.sched_getaffinity(0)), Peak()
    said: list[tuple[float, str]] = []
    server = Server(
        settings,
        work / "run",
        work / "federation",
        clients=given.clients,
        wait=300,
        patience=120,
        say=lambda line: said.append((time.monotonic(), line)),
    )
    began = time.monotonic()
    with peaks:
        outcome = simulate(server, work / "corpus", read_key(work / "key"), processes=cores)
    joined_at = next(at for at, line in said if " clients with " in line)
    found = verify(outcome.folder, corpus=work / "federation")
    return {
        "clients": given.clients,
        "users": found.incidence.users,
        "sentences": found.incidence.sentences,
        "rounds": given.simulated_rounds,
        "processes": cores,
        "parameters": sum(p.numel() for p in outcome.model.parameters()),
        "seconds_to_register": joined_at - began,
        "peak_memory_gb": peaks.highest / 2**30,
        "server_peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "epsilon": found.epsilon,
        "torch": torch.__version__,
        **rounds_of(outcome.folder),
    }


class Peak:
    """The most memory of this process and all below it, what they share counted once."""

    def __enter__(self) -> "Peak":
        import threading

        self.highest, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self.highest = max(self.highest, sum(map(own_memory, below(os.getpid()))))


def below(root: int) -> Iterator[int]:
    """A process and its descendants; Ray's are started by this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = path.read_text().split(" (", 1)
            children.setdefault(int(rest.rpartition(") ")[2].split()[1]), []).append(int(number))
        except (OSError, ValueError):
            continue
    found = [root]
    while found:
        yield (one := found.pop())
        found += children.get(one, [])


def own_memory(process: int) -> int:
    """Its memory, with what it shares divided among those who share it."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


# --- common --------------------------------------------------------------------------------------

_said: list[str] = []


def federated(work: Path, runs: list[tuple[str, Any]], fails: bool = False) -> list[Any]:
    """Train runs one after another, with the same clients in processes of their own."""
    from uedp.distributed.flower import Server
    from uedp.distributed.nodes import free_port, run_server

    port, outcomes = free_port(), []
    (work / "config.yaml").write_text(runs[0][1].to_yaml())

    def say(line: str) -> None:
        _said.append(line)
        if "client" in line and not line.startswith("Caveat"):
            print(f"  {line[:300]}", flush=True)

    def train(grid: Any) -> None:
        for name, settings in runs:
            print(f"{name}, {settings.privacy.rounds} rounds", flush=True)
            _said.clear()
            server = Server(
                settings,
                work / name,
                work / "federation",
                clients=CLIENTS,
                wait=240,
                patience=PATIENCE if fails else 120.0,
                say=say,
            )
            outcomes.append(server.train(grid))

    with ExitStack() as stack:
        for number, folder in enumerate(client_folders(work)):
            stack.enter_context(client(work, folder, port, number if fails else None))
        run_server(train, port=port)
    return outcomes


@contextmanager
def client(work: Path, corpus: Path, port: int, seed: int | None) -> Iterator[None]:
    where = f"127.0.0.1:{port}"
    files = [str(work / "config.yaml"), str(corpus), str(work / "key")]
    command = [sys.executable, __file__, "--be-client", *files, where, str(seed)]
    if seed is None:
        command = [sys.executable, "-m", "uedp", "federate", "client", files[0]]
        command += ["--corpus", files[1], "--key", files[2], "--server", where]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (work / f"{corpus.name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def client_folders(work: Path) -> list[Path]:
    return [work / f"client-{number}" for number in range(CLIENTS)]


def prepare_conll(work: Path, data: Path | None) -> None:
    """The corpora of eight clients, who divide the documents, and one to measure on."""
    import uedp
    from research.datasets import TRAINING_SETS
    from uedp.distributed.client import make_key

    if data is None:
        raise SystemExit("--data: name the folder with conll2003")
    conll, marks = TRAINING_SETS["conll"], uedp.Detection(("labels",))
    sentences = list(conll.sentences(data, "train", None))
    users = {user: place for place, user in enumerate(dict.fromkeys(s.user for s in sentences))}
    for number, folder in enumerate(client_folders(work)):
        own = [s for s in sentences if users[s.user] * CLIENTS // len(users) == number]
        uedp.detect(own, folder, marks)
    uedp.detect(conll.sentences(data, "validation", 1000), work / "held-out", marks)
    make_key(work / "key")
    save_model(work / "model", width=64, layers=2, heads=2)


def config(
    work: Path, rounds: int, seed: int | None, held_out: bool = True, user_rate: float = 0.1
) -> Any:
    from uedp.training.config import parse_config

    return parse_config(
        {
            "privacy": {
                "method": "rotation",
                "epsilon": 8,
                "rounds": rounds,
                "user_rate": user_rate,
                "entity_share": 0.3,
                "update_clip": 1.0,
                "seed": seed,
            },
            "data": {
                "train": str(work / "federation"),
                "evaluate": str(work / "held-out") if held_out else None,
            },
            "model": {"name": str(work / "model"), "train": "full", "max_tokens": 128},
            "optimiser": {"rate": 0.01},
            "run": {"device": "cpu", "evaluate_every": 10_000},
        }
    )


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def rounds_of(run: Path) -> dict[str, float]:
    """Of rounds after the first, in which clients load their model."""
    lines = metrics(run)
    later = lines[1:] or lines
    return {
        "seconds_a_round": median(line["seconds"] for line in later),
        "users_a_round": mean(line["users"] for line in later),
    }


def table(result: dict[str, Any]) -> str:
    lines: list[str] = []
    if part := result.get("real"):
        lines += [
            f"{part['clients']} SuperNodes, {part['rounds']} rounds; perplexity of held-out text, "
            f"{part['before']:.1f} before",
            "seed  federated  central  weights differ by  seconds a round",
        ]
        for row in part["rows"]:
            lines.append(
                f"{row['seed']:>4}  {row['federated']:>9.3f}  {row['central']:>7.3f}  "
                f"{row['largest_difference_of_weights']:>17.1e}  {row['seconds_a_round']:>15.2f}"
            )
        spread = part["spread"]["federated"]
        if spread is not None:
            lines.append(f"standard deviation over seeds, which is the noise: {spread:.2f}")
    if part := result.get("failing"):
        lines += [
            "",
            f"{part['clients']} SuperNodes, {part['rounds']} rounds, no seed",
            "              epsilon  drawn users missing  perplexity before, after  seconds a round",
        ]
        for name, row in part["rows"].items():
            lines.append(
                f"{name:<12}  {row['epsilon']:>7.4f}  {row['missing_share']:>19.1%}  "
                f"{row['before']:>12.1f} {row['after']:>12.2f}  {row['seconds_a_round']:>14.2f}"
            )
    if part := result.get("simulation"):
        lines += [
            "",
            f"simulation of {part['clients']:,} clients ({part['users']:,} users, "
            f"{part['sentences']:,} sentences) in {part['processes']} processes: "
            f"{part['seconds_to_register']:.0f} s to register, {part['seconds_a_round']:.1f} s a "
            f"round of {part['users_a_round']:.0f} users, {part['peak_memory_gb']:.1f} GB at most",
        ]
    return "\n".join(lines).strip("\n")


if __name__ == "__main__":
    main()
