"""Gaussian values per second on one core: the parts of secure noise, the whole, and its rival.

    python benchmarks/secure_noise.py [--entries 50000000] [--sweeps 5] [--out FILE]

  AES            the key stream alone, 8 bytes per value
  transform      Box and Muller's transform alone, on words that lie in the cache
  inversion      torch.special.ndtri alone, the other exact way from words to Gaussians
  SecureNoise    key stream, transform, grid and addition into a float32 tensor
  PyTorch        its own generator and addition into the same tensor: 32 bits of seed, no grid

Target: SecureNoise at 50 million values per second. The floor is AES and transform one after the
other, `1 / (1/AES + 1/transform)`; the rest is rounding and the tensor's way through memory.
Each part is timed in turn, several times a sweep; a part's number is the best of the sweeps'
medians, for other work on the machine only ever makes it slower. All medians are in the JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from uedp.mechanism.noise import SecureNoise, SeededNoise, gaussians
from uedp.mechanism.secret import KeyStream

DEVIATION, RUNS = 0.7, 3


def parts(entries: int) -> dict[str, Callable[[], object]]:
    """What is timed, each making about `entries` values."""
    blocks = range(entries // KeyStream.BLOCK)
    stream = KeyStream()
    words = KeyStream().words(KeyStream.BLOCK)
    uniform = torch.rand(KeyStream.BLOCK, dtype=torch.float64)
    inverted = torch.empty_like(uniform)
    total = torch.randn(entries)

    def cipher() -> None:
        for _ in blocks:
            stream.words(KeyStream.BLOCK)

    def transform() -> None:
        for _ in blocks:
            gaussians(words, DEVIATION)

    def inversion() -> None:
        for _ in blocks:
            torch.special.ndtri(uniform, out=inverted)

    return {
        "AES": cipher,
        "transform": transform,
        "inversion": inversion,
        "SecureNoise": lambda: SecureNoise().add_([total], DEVIATION),
        "PyTorch": lambda: SeededNoise(0).add_([total], DEVIATION),
    }


def millions_per_second(work: Callable[[], object], entries: int) -> float:
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return entries / statistics.median(seconds) / 1e6


def machine() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} CPU cores ({names[0]})" if names else "unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=50_000_000)
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    medians: dict[str, list[float]] = {}
    for _ in range(arguments.sweeps):
        for name, work in parts(arguments.entries).items():
            medians.setdefault(name, []).append(millions_per_second(work, arguments.entries))
    best = {name: max(found) for name, found in medians.items()}
    floor = 1 / (1 / best["AES"] + 1 / best["transform"])
    print(
        f"{machine()}, no accelerator, one thread, torch {torch.__version__}, "
        f"{arguments.entries:,} float32 entries\n"
        f"million values per second: best of {arguments.sweeps} medians of {RUNS} runs, "
        "and the worst of them\n\n"
        f"{'':12}{'best':>8}{'worst':>8}"
    )
    for name, found in medians.items():
        print(f"{name:12}{max(found):8.0f}{min(found):8.0f}")
    ratio = best["SecureNoise"] / best["PyTorch"]
    print(f"\nAES then transform, the floor: {floor:.0f}; SecureNoise {best['SecureNoise']:.0f}")
    print(f"SecureNoise / PyTorch: {ratio:.2f}")
    if arguments.out:
        result = {
            "machine": machine(),
            "torch": torch.__version__,
            "entries": arguments.entries,
            "unit": "million values per second, one thread",
            "best": best,
            "medians": medians,
            "floor": floor,
            "secure_over_pytorch": ratio,
        }
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
