"""The numbers and texts of the demo in README, from the run of `make demo`.

    time make demo
    python benchmarks/demo.py demo/smollm2-135m demo/run --seconds 230 > FILE

The noise is fresh each time; README's numbers are those of the committed JSON.
"""

import argparse
import json
from pathlib import Path

import uedp

STATED = ("statement", "missed_mentions", "epsilon", "delta", "method", "parameters")
STATED += ("rounds_planned", "rounds_spent")


def texts(folder: Path) -> list[str]:
    """What `make demo` generates."""
    return uedp.generate(folder, "Hi", tokens=30, count=3, temperature=0.7, seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, help="What `time make demo` said.")
    options = parser.parse_args()
    run = options.run
    certificate = json.loads((run / "certificate.json").read_text())
    result = json.loads((run / "result.json").read_text())
    rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shown = {
        "certificate": {name: certificate[name] for name in STATED},
        **result,
        "seconds_of_rounds": sum(row["seconds"] for row in rounds),
        "seconds_in_all": options.seconds,
        "texts": {"before": texts(options.model), "after": texts(run)},
    }
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
