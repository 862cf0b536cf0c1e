"""What `uedp doctor` checks about the installation and the machine."""

import fcntl
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import uedp
from uedp.cli.processor import allowed_cores
from uedp.cli.version import installed

if TYPE_CHECKING:
    from torch import Tensor

# extras that a person may want: what each is for, and the distributions that provide it
EXTRAS = {
    "spacy": ("detectors spacy:NAME", ("spacy",)),
    "presidio": ("the detector presidio", ("presidio-analyzer",)),
    "stanza": ("detectors stanza:LANG", ("stanza",)),
    "ray": ("detection with --engine ray", ("ray",)),
    "xlsx": ("reading .xlsx files", ("openpyxl",)),
    "quantize": ("frozen weights of four bits", ("bitsandbytes",)),
    "federated": ("texts that stay with clients", ("flwr",)),
    "tensorboard": ("logging to TensorBoard", ("tensorboard",)),
    "wandb": ("logging to Weights & Biases", ("wandb",)),
    "mlflow": ("logging to MLflow", ("mlflow-skinny", "mlflow")),
}
_GIB = 1 << 30
_LITTLE_MEMORY, _LITTLE_DISK, _NO_DISK = 2 * _GIB, 5 * _GIB, _GIB // 4
_HUB_SECONDS = 5.0


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and what to do about it unless it is fine."""

    name: str
    status: Literal["ok", "warning", "problem"]
    found: str
    remedy: str | None = None


Checker = Callable[[], Iterator[Diagnosis]]


def run_check(name: str, checker: Checker) -> Iterator[Diagnosis]:
    """The results of a checker; what it raises is a problem, too."""
    try:
        yield from checker()
    except Exception as error:  # whatever is wrong with this machine, the other checks go on
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"
        yield Diagnosis(name, "problem", found, "reinstall uedp; if it stays, report it as a bug")


def python() -> Iterator[Diagnosis]:
    system = f"{platform.system()} {platform.machine()}"
    yield Diagnosis(
        "python", "ok", f"{platform.python_version()} on {system}; uedp {uedp.__version__}"
    )


def libraries() -> Iterator[Diagnosis]:
    """Required libraries, against the ranges that the package declares."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(line) for line in metadata.requires("uedp") or ()]
    except metadata.PackageNotFoundError:
        found = "uedp runs from its source, not installed; versions are not compared"
        yield Diagnosis("libraries", "warning", found, "pip install uedp")
        return
    needed = [one for one in required if one.marker is None]
    wrong = 0
    for one in needed:
        version = installed(one.name)
        if version is None or not one.specifier.contains(version, prereleases=True):
            wrong += 1
            yield Diagnosis(
                one.name,
                "problem",
                f"{version or 'not installed'}; needed: {one.specifier or 'any'}",
                f"pip install '{one}'",
            )
    shown = ", ".join(f"{name} {installed(name)}" for name in ("torch", "transformers", "peft"))
    if not wrong:
        yield Diagnosis("libraries", "ok", f"all {len(needed)} in range; {shown}")


def extras() -> Iterator[Diagnosis]:
    for extra, (purpose, names) in EXTRAS.items():
        version = next(filter(None, map(installed, names)), None)
        if version is not None:
            yield Diagnosis(extra, "ok", f"{version}, for {purpose}")
        else:
            found = f"not installed, optional, for {purpose}"
            yield Diagnosis(extra, "ok", found, f"pip install 'uedp[{extra}]'")
    if installed("spacy") is not None:
        models = [each.name for each in metadata.entry_points(group="spacy_models")]
        if models:
            yield Diagnosis("spacy models", "ok", ", ".join(sorted(models)))
        else:
            remedy = "python -m spacy download en_core_web_sm, or name the folder of a model"
            yield Diagnosis("spacy models", "warning", "none installed", remedy)


def accelerator() -> Iterator[Diagnosis]:
    import torch

    build = f"torch {torch.__version__}"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            half = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
            memory = f"{properties.total_memory / _GIB:.0f} GiB"
            yield Diagnosis("accelerator", "ok", f"{properties.name}, {memory}, {half}; {build}")
    elif torch.backends.mps.is_available():
        yield Diagnosis("accelerator", "ok", f"Apple GPU, float32 only; {build}")
    elif shutil.which("nvidia-smi"):
        remedy = "install a build of PyTorch for your driver; see pytorch.org/get-started"
        found = f"nvidia-smi is installed, but PyTorch sees no GPU; {build}"
        yield Diagnosis("accelerator", "warning", found, remedy)
    else:
        yield Diagnosis("accelerator", "ok", f"none, models train on the CPU; {build}")


def processor() -> Iterator[Diagnosis]:
    import torch

    cores, quota, threads = os.cpu_count() or 1, allowed_cores(), torch.get_num_threads()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    allowed = min(usable, quota or usable)
    found = f"{cores} cores, {allowed} usable, {threads} threads"
    if threads > allowed:
        yield Diagnosis("processor", "warning", found, f"set OMP_NUM_THREADS={allowed}")
    else:
        yield Diagnosis("processor", "ok", found)


def memory() -> Iterator[Diagnosis]:
    free = _free_memory()
    if free is None:
        return
    found = f"{free / _GIB:.1f} GiB free"
    if free < _LITTLE_MEMORY:
        remedy = "close other programs, or train a smaller model"
        yield Diagnosis("memory", "warning", found, remedy)
    else:
        yield Diagnosis("memory", "ok", found)


def disk(folder: Path) -> Iterator[Diagnosis]:
    free = shutil.disk_usage(folder).free
    found = f"{free / _GIB:.1f} GiB free in {folder.resolve()}"
    status: Literal["ok", "warning", "problem"] = "ok"
    if free < _LITTLE_DISK:
        status = "problem" if free < _NO_DISK else "warning"
    yield Diagnosis(
        "disk", status, found, None if status == "ok" else "free space, or use another disk"
    )


def temporary() -> Iterator[Diagnosis]:
    """Token ids of a corpus go to an unnamed file there."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"0" * 4096)
            file.flush()
    except OSError as error:
        remedy = "set TMPDIR to a folder that you can write to"
        yield Diagnosis(
            "temporary files", "problem", f"cannot be written: {error.strerror}", remedy
        )
        return
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    found = f"{folder} is writable, {free / _GIB:.1f} GiB free"
    if free < _LITTLE_DISK // 5:
        larger = "set TMPDIR to a folder on a larger disk"
        yield Diagnosis("temporary files", "warning", found, larger)
    else:
        yield Diagnosis("temporary files", "ok", found)


def locking(folder: Path) -> Iterator[Diagnosis]:
    """Ledgers must not be written by two processes at a time."""
    try:
        with (
            tempfile.NamedTemporaryFile(dir=folder, prefix=".uedp-doctor-") as first,
            Path(first.name).open("rb") as second,
        ):
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield Diagnosis("file locks", "ok", f"work in {folder.resolve()}")
                return
    except PermissionError:
        found = f"{folder.resolve()} is not writable"
        yield Diagnosis("file locks", "warning", found, "change to a folder that you can write to")
        return
    except OSError as error:
        found = f"{folder.resolve()}: {error.strerror}"
    else:
        found = f"{folder.resolve()}: two processes can lock one file"
    remedy = "keep corpora and runs on a local disk: ledgers are not safe here"
    yield Diagnosis("file locks", "problem", found, remedy)


def randomness() -> Iterator[Diagnosis]:
    """All noise starts at the system's random source."""
    import torch

    from uedp.mechanism.noise import SecureNoise

    drawn = {os.urandom(32) for _ in range(64)}
    total = torch.zeros(50_000)
    SecureNoise().add_([total], 1.0)
    deviation, mean = float(total.std()), float(total.mean())
    # six standard errors: a false alarm in a hundred million
    if len(drawn) < 64 or abs(deviation - 1) > 0.019 or abs(mean) > 0.027:
        found = f"noise has deviation {deviation:.3f} and mean {mean:.3f}, not 1 and 0"
        yield Diagnosis("randomness", "problem", found, "do not train on this machine")
    else:
        yield Diagnosis("randomness", "ok", f"system source; noise has deviation {deviation:.3f}")


def accountant() -> Iterator[Diagnosis]:
    """Rounds without sampling are one Gaussian, whose epsilon has a formula."""
    from uedp.accounting.proven import UserLevelProfile, epsilon
    from uedp.audit.bounds import gaussian_epsilon

    noise, rounds, delta = 10.0, 25, 1e-5
    proven = epsilon(UserLevelProfile(noise, 1.0), rounds, delta)
    exact = gaussian_epsilon(math.sqrt(rounds) / noise, delta)
    found = f"epsilon {proven:.4f} of {rounds} Gaussian rounds; by the formula {exact:.4f}"
    if exact - 1e-6 <= proven <= 1.01 * exact:
        yield Diagnosis("accountant", "ok", found)
    else:
        yield Diagnosis("accountant", "problem", found, "reinstall numpy and scipy; do not train")


def private_round() -> Iterator[Diagnosis]:
    """Two clips of a tiny model's gradients, against one sentence at a time in double precision."""
    import copy

    import torch
    from torch import nn

    from uedp.mechanism.clip.engine import Engine
    from uedp.mechanism.clip.reference import clipped_sum

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 20, (6, 5), generator=generator)
    owners, clips, update_clip = [0, 0, 1, 1, 1, 2], [0.2, 0.4, 0.2, 0.4, 9.0, 9.0], 0.5
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 20))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    exact = copy.deepcopy(model).double()

    def losses(network: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        predicted = network(rows[:, :-1]).transpose(1, 2)
        return nn.functional.cross_entropy(predicted, rows[:, 1:], reduction="none").mean(1)

    expected, _ = clipped_sum(
        exact, lambda one: losses(exact, ids[[one]])[0], owners, clips, update_clip
    )
    model, rows = model.to(device), ids.to(device)
    sums = Engine(model).clipped_sum(
        lambda order: losses(model, rows[list(order)]), owners, torch.tensor(clips), update_clip
    )
    found = [sums.gradients[parameter].double().cpu() for parameter in model.parameters()]
    total = _norm(expected)
    error = _norm([a - b for a, b in zip(found, expected, strict=True)]) / total
    words = f"a clipped sum on {device.type} differs from the reference by {error:.1e} of its norm"
    if error < 5e-3:
        yield Diagnosis("private round", "ok", words)
    else:
        yield Diagnosis("private round", "problem", words, "reinstall torch; do not train")


def hub(network: bool) -> Iterator[Diagnosis]:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    cached = f"{models} models in the local cache"
    if constants.HF_HUB_OFFLINE:
        yield Diagnosis("model hub", "ok", f"offline by HF_HUB_OFFLINE; {cached}")
    elif not network:
        yield Diagnosis("model hub", "ok", f"{cached}; not asked for without --network")
    else:
        yield _asked(constants.ENDPOINT, cached)


def _asked(endpoint: str, cached: str) -> Diagnosis:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=_HUB_SECONDS):
            pass
    except HTTPError:  # it answered
        pass
    except OSError as error:
        remedy = "name the folder of a saved model, or get one with `uedp unpack`"
        reason = " ".join(str(getattr(error, "reason", error)).split())
        return Diagnosis(
            "model hub", "warning", f"{endpoint} not reached ({reason}); {cached}", remedy
        )
    return Diagnosis("model hub", "ok", f"{endpoint} reached; {cached}")


def _norm(parts: "Iterable[Tensor]") -> float:
    return math.sqrt(sum(float((part**2).sum()) for part in parts))


def _free_memory() -> int | None:
    """Memory that a process may still take, in bytes; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
        free = 1024 * fields["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:  # a container may have less
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, limit - used)
