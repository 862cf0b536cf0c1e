"""Gaussian values per second on one core: secure noise, its parts, and PyTorch's generator.

    python benchmarks/secure_noise.py [--entries 50000000] [--sweeps 5] [--out FILE]

  AES            only the key stream, 8 bytes per value
  transform      only the Box-Muller transform, on words in the cache
  inversion      only torch.special.ndtri, the other exact map from words to Gaussians
  SecureNoise    key stream, transform, grid and addition into a float32 tensor
  PyTorch        its own generator and addition into the same tensor: 32 bits of seed, no grid

Target: SecureNoise at 50 million values per second. The floor is AES and transform one after the
other, `1 / (1/AES + 1/transform)`; the rest is rounding and memory traffic. Parts are timed in
turn, several times per sweep; the result is the best of the sweeps' medians, since other load on
the machine only slows it down. All medians are in the JSON.
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
    """The functions to time; each makes about `entries` values."""
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
    """The name of the processor, if the system reports it."""
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
    best = {name: max(values) for name, values in medians.items()}
    floor = 1 / (1 / best["AES"] + 1 / best["transform"])
    print(
        f"{machine()}, no accelerator, one thread, torch {torch.__version__}, "
        f"{arguments.entries:,} float32 entries\n"
        f"million values per second: best of {arguments.sweeps} medians of {RUNS} runs, "
        "and the worst of them\n\n"
        f"{'':12}{'best':>8}{'worst':>8}"
    )
    for name, values in medians.items():
        print(f"{name:12}{max(values):8.0f}{min(values):8.0f}")
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
