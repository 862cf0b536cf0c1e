"""The numbers of the demo in README, from the run of `make demo`.

    make demo
    python benchmarks/demo.py demo/smollm2-135m demo/run > benchmarks/results/demo.json

The noise is fresh each time; README's numbers are those of the committed JSON.
"""

import argparse
import json
from pathlib import Path

import uedp

STATED = ("statement", "epsilon", "delta", "method", "parameters", "rounds_planned", "rounds_spent")


def texts(folder: Path) -> list[str]:
    """What `make demo` generates."""
    return uedp.generate(folder, "Hi", tokens=30, count=3, temperature=0.7, seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("run", type=Path)
    options = parser.parse_args()
    run = options.run
    certificate = json.loads((run / "certificate.json").read_text())
    result = json.loads((run / "result.json").read_text())
    rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shown = {
        "certificate": {name: certificate[name] for name in STATED},
        **result,
        "seconds_of_rounds": sum(row["seconds"] for row in rounds),
        "texts": {
            name: texts(folder) for name, folder in (("before", options.model), ("after", run))
        },
    }
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
