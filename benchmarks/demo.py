"""The numbers of the demo in README, from the run of `make demo`.

    make demo
    python benchmarks/demo.py demo/run > benchmarks/results/demo.json

The noise is fresh each time; README's numbers are those of the committed JSON.
"""

import argparse
import json
from pathlib import Path

STATED = ("statement", "epsilon", "delta", "method", "parameters", "rounds_planned", "rounds_spent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    certificate = json.loads((run / "certificate.json").read_text())
    result = json.loads((run / "result.json").read_text())
    rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shown = {
        "certificate": {name: certificate[name] for name in STATED},
        **result,
        "seconds_of_rounds": sum(row["seconds"] for row in rounds),
    }
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
