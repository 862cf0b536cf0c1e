"""Train a model with the noise of the paper's released code, and bound its epsilon from below.

    python -m research.audit_released NAME --datasets FOLDER --model PART=PATH... --out FILE

NAME is one of `MODELS`. Canary users and canary entities are planted in CoNLL-2003 as `uedp audit
train` plants them, each by a coin; the model is trained once, its perplexity is measured, and the
coins are guessed from the noisy updates (white box) and from the model (black box). FOLDER is that
of `benchmarks/utility.py prepare`; `--model words=PATH` is a public tokenizer or a list of words,
`--model gpt=PATH` a saved model. With `--stated` the noise is that of the paper's text.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from research import paper, released_noise
from research.base import source_digest
from research.datasets import load_incidence, load_texts
from research.runs import Config, TrainingTrial, Workspace, override, resolve_config
from research.settings import FINE_TUNING, LSTM, SMALL_LSTM, released_config
from uedp.accounting import published
from uedp.accounting.published import PublishedMethod, PublishedSetting
from uedp.errors import UserError

DATA = "conll"
MODELS: dict[str, Config] = {
    "lstm": released_config(LSTM, optimiser__rate=8e-3),
    "small-lstm": released_config(SMALL_LSTM, optimiser__rate=8e-3),
    "gpt": released_config(FINE_TUNING, optimiser__rate=4e-3),
}
_SCORES = ("scores", "inside", "shown")  # one value per canary: not kept


def stated_config(config: Config) -> dict[str, dict[str, Any]]:
    """The same training with the noise of the paper's text."""
    options = dict(config["method_options"])
    stated = override(config, privacy__method="uedp-alg", privacy__noise=options.pop("z"))
    return stated | {"method_options": options}


def measure(
    name: str,
    config: Config,
    workspace: Workspace,
    *,
    users: int,
    entities: int,
    references: int,
    audited: bool = True,
    seed: int | None = None,
) -> dict[str, Any]:
    """Train once with canaries (or without), evaluate, and guess."""
    from uedp.audit.training import audit
    from uedp.training import loop
    from uedp.training.build import task_of_run
    from uedp.training.config import parse_config
    from uedp.training.datasets import TrainingData
    from uedp.training.outcome import Outcome

    start, measured = time.time(), {}
    parsed = parse_config(resolve_config(TrainingTrial(name, DATA, config), workspace))
    data = workspace.datasets / DATA
    texts, incidence = load_texts(data, "train"), load_incidence(data)

    def evaluate(outcome: Outcome) -> None:
        from uedp.models.load import LoadedModel

        trained = LoadedModel(outcome.model, outcome.tokenizer, parsed.model.max_tokens)
        for part in ("validation", "test"):
            task = task_of_run(parsed, trained, load_texts(data, part))
            measured[part] = task.evaluate(outcome.model, nullcontext)

    folder = workspace.out / name
    natural = TrainingData(texts, incidence, workspace.out / f"{name}.ledger")
    say = lambda line: print(f"{name}: {line}", flush=True)  # noqa: E731
    findings: list[dict[str, Any]] = []
    if audited:
        rounds = parsed.privacy.rounds
        result = audit(
            parsed,
            folder,
            data=natural,
            users=users,
            entities=entities,
            seed=seed,
            references=references,
            refresh=max(1, rounds // 4),
            inspect=evaluate,
            say=say,
        )
        if result is None:
            raise UserError(f"{folder}: the run was stopped; remove it and start again")
        findings = [
            {key: value for key, value in one.items() if key not in _SCORES}
            for one in json.loads(result.to_json())["findings"]
        ]
    else:
        natural.ledger.mkdir(parents=True)
        evaluate(loop.run(parsed, folder, data=natural, say=say))
    return {
        "name": name,
        "data": DATA,
        "config": parsed.model_dump(
            mode="json", exclude={"data": True, "model": {"name"}, "vocabulary": {"path"}}
        ),
        "vocabulary": _words(parsed, workspace),
        **measured,
        "noise": noise_of(config, incidence),
        "published": _published(config),
        "canaries": {"users": users, "entities": entities} if audited else None,
        "findings": findings,
        "seconds": time.time() - start,
        "mechanism": source_digest("uedp.mechanism"),
    }


def noise_of(config: Config, incidence: Any) -> dict[str, float]:
    """The stated and the released standard deviation on a corpus, and how far they are apart."""
    from uedp.mechanism.estimators import Weights, f_e_plus
    from uedp.mechanism.sampling import Sampling

    privacy, options = config["privacy"], config["method_options"]
    sampling = Sampling(privacy["user_rate"], privacy["entity_rate"])
    z = options.get("z", privacy.get("noise"))
    stated = f_e_plus(sampling, Weights.of(incidence), privacy["update_clip"], z)
    return {
        "stated": stated.deviation,
        "released": stated.deviation**2,
        "too_small": released_noise.too_small(stated),
    }


def _published(config: Config) -> float:
    """What the paper's accountant says of such a run, with the counts of the paper."""
    counts, privacy = paper.COUNTS[DATA], config["privacy"]
    sensitive = counts["sensitive"]["all"]
    setting = PublishedSetting(1, 1, privacy["entity_rate"], sensitive, counts["sentences"])
    rate = privacy["user_rate"] * setting.rate(PublishedMethod.f_e_plus)
    z = config["method_options"].get("z", privacy.get("noise"))
    return published.epsilon(rate, z, privacy["rounds"], privacy["delta"])


def _words(parsed: Any, workspace: Workspace) -> int | None:
    from uedp.training.vocabulary import _public_words

    if parsed.vocabulary.source != "public":
        return None
    return len(_public_words(workspace.models["words"], parsed.vocabulary.lowercase))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[], metavar="PART=PATH")
    parser.add_argument("--out", type=Path, required=True, help="save the result as JSON")
    parser.add_argument("--stated", action="store_true", help="the noise of the paper's text")
    parser.add_argument("--no-canaries", action="store_true", help="only train and evaluate")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--users", type=int, default=400)
    parser.add_argument("--entities", type=int, default=100)
    parser.add_argument("--references", type=int, default=128)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args(arguments)
    config = MODELS[given.name]
    if given.rounds is not None:
        config = override(config, privacy__rounds=given.rounds)
    if given.stated:
        config = stated_config(config)
    models = dict(one.split("=", 1) for one in given.model)
    with tempfile.TemporaryDirectory(prefix="uedp-released-") as folder:
        workspace = Workspace(given.datasets, models, Path(folder))
        result = measure(
            given.name,
            config,
            workspace,
            users=given.users,
            entities=given.entities,
            references=given.references,
            audited=not given.no_canaries,
            seed=given.seed,
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    for part in ("validation", "test"):
        print(f"{part}: {next(iter(result[part].items()))}")
    for one in result["findings"]:
        print(
            f"{one['kind']}, {one['score']}: {one['correct']} of {one['guesses']} guesses correct, "
            f"epsilon at least {one['epsilon']:.2f} (of at most {one['most']:.2f} provable); "
            f"published {result['published']:.2f}"
        )


if __name__ == "__main__":
    main()
