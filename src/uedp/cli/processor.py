"""The threads of a command, set before PyTorch is loaded: later it would be too late."""

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_SPINS = "10000"  # a fraction of a millisecond


def set_up_threads(
    environment: MutableMapping[str, str] = os.environ, cgroup: Path = _CGROUP
) -> None:
    """Let threads sleep soon while they wait; start no more of them than the container may use.

    By default a thread that waits for another one spins for milliseconds. Beside any other busy
    process it takes the core from the thread it waits for, and a round several times as long. To
    sleep at once would slow idle cores down, since threads wait often and briefly.

    Guarantees:
      - what the environment sets already is left alone
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", _SPINS)
    cores = allowed_cores(cgroup)
    if cores is not None and cores < (os.cpu_count() or 1):
        environment.setdefault("OMP_NUM_THREADS", str(cores))


def allowed_cores(cgroup: Path = _CGROUP) -> int | None:
    """The cores' worth of time that a container may use, at least 1; None: no limit is known."""
    try:
        if (both := cgroup / "cpu.max").is_file():
            quota, period = both.read_text().split()
        else:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text()
        share = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
    return max(1, math.ceil(share)) if share > 0 else None
