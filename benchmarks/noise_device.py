"""Time of a noisy release on an accelerator: Triton kernel, PyTorch operations, or host cipher.

  python benchmarks/noise_device.py [--entries 5000000 135000000] [--out FILE]

kernel       ChaCha20, transform, grid and addition in one Triton kernel
operations   the same one after the other in PyTorch's integer operations
host         copy to the CPU, AES there, and back: for devices without double precision
PyTorch      PyTorch's generator, 32-bit values, no grid: not private
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from uedp.mechanism import noise
from uedp.mechanism.noise import SecureNoise, SeededNoise

DEVIATION, RUNS = 0.7, 5
ENTRIES = (5_000_000, 135_000_000)


def milliseconds(work: Callable[[], object]) -> float:
    times = []
    for number in range(RUNS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if number:  # the first compiles
            times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def by_operations(total: torch.Tensor) -> None:
    stream = noise._OnDevice(total.device)
    stream._kernel = None
    grid = noise.grid_of(DEVIATION)
    stream.add_(total, DEVIATION / grid, grid)


def by_host(total: torch.Tensor) -> None:
    host = total.cpu()
    SecureNoise().add_([host], DEVIATION)
    total.copy_(host)


def measure(entries: int, device: torch.device) -> dict[str, float]:
    total = torch.zeros(entries, device=device)
    times = {}
    if noise._kernel(device):
        times["kernel"] = milliseconds(lambda: SecureNoise().add_([total], DEVIATION))
    times["operations"] = milliseconds(lambda: by_operations(total))
    if entries <= ENTRIES[0]:
        times["host"] = milliseconds(lambda: by_host(total))
    times["PyTorch"] = milliseconds(lambda: SeededNoise(0).add_([total], DEVIATION))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=ENTRIES)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no accelerator here")
    device = torch.device("cuda", torch.cuda.current_device())
    result: dict[str, object] = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "kernel": noise._kernel(device) is not None,
        "unit": f"milliseconds a release of float32 values, median of {RUNS}",
    }
    print(f"{result['device']}, torch {torch.__version__}, kernel: {result['kernel']}")
    for entries in arguments.entries:
        times = measure(entries, device)
        result[str(entries)] = times
        print(f"{entries:>12,}", *(f"{name} {value:.2f} ms" for name, value in times.items()))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
