"""Numbers of docs/privacy.md: the noise of lending and of fair shares, epsilons of UeDP-Alg.

python benchmarks/noise.py [--out benchmarks/results]
"""

import argparse
import json
from pathlib import Path

from uedp.accounting.calibrate import noise_for
from uedp.accounting.missed import MISSED_CASES, missed_epsilon
from uedp.accounting.profile import Profile
from uedp.accounting.proven import (
    FairSharesProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    epsilon,
)

DELTA, RATE, ROUNDS = 1e-5, 0.05, 200
EPSILONS, SHARES = (8.0, 2.0, 1.0), (0.1, 0.2, 0.33, 0.5)
HOLDERS = (0, 10, 12, 112, 945)
DIVIDED = ((0.02, 0.3, 100), (0.05, 0.33, 200), (0.1, 0.4, 200), (0.2, 0.4, 200))  # at epsilon 8


def needed(target: float, share: float, reveal: bool) -> float:
    def profile(noise: float) -> Profile:
        if share == 0:
            return UserLevelProfile(noise, RATE)
        return RotationProfile(noise, RATE, share, reveal_draw=reveal)

    return noise_for(target, DELTA, ROUNDS, profile)


def divided(rate: float, share: float, rounds: int) -> dict[str, object]:
    """The noise of both rules at epsilon 8, and what missed mentions cost with it."""
    row: dict[str, object] = {"user_rate": rate, "share": share, "rounds": rounds}
    for kind in (RotationProfile, FairSharesProfile):

        def profile(noise: float, kind: type[Profile] = kind) -> Profile:
            return kind(noise, rate, share)  # type: ignore[call-arg]

        noise = noise_for(8.0, DELTA, rounds, profile)
        missed = [missed_epsilon(profile(noise), rounds, DELTA, *case) for case in MISSED_CASES]
        row[kind.method] = {"noise": noise, "missed": missed}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out: Path = parser.parse_args().out
    rows = []
    for target in EPSILONS:
        user = needed(target, 0.0, False)
        cells = []
        for share in SHARES:
            hidden, revealed = needed(target, share, False), needed(target, share, True)
            rows.append({"epsilon": target, "share": share, "hidden": hidden, "revealed": revealed})
            cells.append(f"{hidden:.3f} ({revealed:.3f})")
        rows.append({"epsilon": target, "share": 0.0, "hidden": user, "revealed": user})
        print(f"| {target:g} | {user:.3f} | {' | '.join(cells)} |", flush=True)
    alg = {h: epsilon(UedpAlgProfile(2.0, 50 / 946, 946, h), 50, DELTA) for h in HOLDERS}
    print("UeDP-Alg on CoNLL, by holders:", {h: round(e, 3) for h, e in alg.items()})
    shared = [divided(*setting) for setting in DIVIDED]
    for row in shared:
        print(row, flush=True)
    setting = {"delta": DELTA, "user_rate": RATE, "rounds": ROUNDS}
    result = {"setting": setting, "noise": rows, "uedp_alg_conll": alg, "fair_shares": shared}
    (out / "noise.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
