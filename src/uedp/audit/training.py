"""Attack a training run: canaries in the corpus, one run of the real loop, a bound on its epsilon.

One-run auditing (Steinke, Nasr and Jagielski 2023). What is bounded: the epsilon of the adjacency
of `docs/privacy.md` section 4, for one canary at a time, the incidence and all other texts held
fixed. A canary *user* has a few sentences of its own; a canary *entity* is a made-up name in
sentences that several users hold. Each is in or out by a fair coin of its own, and out means what
it means there: its texts are emptied, their places in the incidence stay. So the coin of a user
canary is a step of a user alone, that of an entity canary a step of an entity alone, and a proven
epsilon, which is for both at once, must exceed the bounds on either.

The attacker of the *white box* score sees every round's noisy sum, as the proof allows; that of the
*black box* score sees the losses of the model before and after. Neither sees who was drawn.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uedp.accounting.divergence import Floats
from uedp.audit import one_run
from uedp.audit.canaries import FEWEST, KINDS, Canaries, Kind, draw
from uedp.audit.white_box import WhiteBox, sentence_losses
from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.files import write_atomically
from uedp.methods import Gradient
from uedp.methods.base import Rounds
from uedp.progress import SILENT, Progress
from uedp.training import loop, tasks
from uedp.training import run_dir as folder
from uedp.training.build import Assembly
from uedp.training.config import Config
from uedp.training.datasets import Texts, TrainingData, read_training_data
from uedp.training.outcome import Outcome

METHODS = ("rotation", "user-level", "noiseless")

CANARIES, SEEN, AUDIT = "canaries.json", "seen.json", "audit.json"
RUN, LEDGER = "run", "ledger"  # gone when the audit is there

Say = Callable[[str], None]

# --- seeing a run --------------------------------------------------------------------------------


class Onlooker:
    """A method whose rounds are seen, and otherwise left alone.

    Guarantees:
      - a round gives out what the method's own round does
    """

    def __init__(self, method: Rounds, attack: "Attack") -> None:
        self._method, self._attack = method, attack
        self.parameters = method.parameters

    def round(self, number: int) -> Gradient:
        self._attack.before_round(number)
        found = self._method.round(number)
        self._attack.after_round(found)
        return found

    def state(self) -> dict[str, Tensor]:
        return self._method.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._method.restore(state)


class Attack:
    """What the attacker learns in the course of a run; kept on disk, so that a run can go on.

    What was seen of rounds since it was last kept is lost with the process, which weakens the
    attack and changes nothing else.
    """

    def __init__(self, canaries: Canaries, others: Texts, path: Path, every: int | None) -> None:
        self._canaries, self._others, self._path, self._every = canaries, others, path, every
        self._white_box: WhiteBox | None = None
        self.seen: dict[str, Any] = {"rounds": 0, "evidence": [0.0] * len(canaries.canaries)}
        if path.is_file():
            self.seen = json.loads(path.read_text())
        self._evidence = np.array(self.seen["evidence"])

    def watch(self, built: Assembly) -> Rounds:
        """Its method, with rounds that are seen; `built` is as before any round, resumed or not."""
        plan, model = built.plan, built.model
        own, others = self._canaries.texts(), self._others
        task = built.make_task(Texts([*own.texts, *others.texts], [*own.labels, *others.labels]))
        self._white_box = WhiteBox(plan, built.incidence, model, task, self._canaries, self._every)
        self.seen |= {
            "longest": built.max_tokens,
            "before": losses(model, task, len(own.texts)).tolist(),
            "proven": plan.epsilon if math.isfinite(plan.epsilon) else None,
            "noise": plan.noise,
        }
        return Onlooker(built.method, self)

    def before_round(self, number: int) -> None:
        assert self._white_box is not None
        if self._white_box.before_round(number):
            self.keep()

    def after_round(self, found: Gradient) -> None:
        assert self._white_box is not None
        self._evidence += self._white_box.after_round(found.values)
        self.seen["rounds"] += 1

    def keep(self) -> None:
        self.seen["evidence"] = self._evidence.tolist()
        write_atomically(self._path, json.dumps(self.seen) + "\n")


@torch.no_grad()
def losses(model: nn.Module, task: tasks.Task, count: int) -> Floats:
    """The loss of each of the first `count` sentences, without dropout."""
    with evaluating(model):
        parts = [
            sentence_losses(model, task, np.arange(start, min(start + 32, count)))
            for start in range(0, count, 32)
        ]
    found: Floats = torch.cat(parts).double().cpu().numpy()
    return found


# --- the audit -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What guessing one kind of canary by one score proved.

    `epsilon` is the lower bound, and `alarm` the one with a confidence shared among all findings of
    an audit; `most` is what so many canaries prove if all are guessed right, so that no larger
    claim can be refuted. `claim` is what bounds are held against (None: nothing was claimed).
    `scores` and `inside` are of all canaries of the kind, those `shown` to the attacker included.
    """

    kind: Kind
    score: str
    canaries: int
    guesses: int
    correct: int
    epsilon: float
    alarm: float
    most: float
    claim: float | None
    guessed_in_above: float | None
    guessed_out_up_to: float | None
    scores: tuple[float, ...]
    inside: tuple[bool, ...]
    shown: tuple[bool, ...]

    @property
    def refutes(self) -> bool:
        return self.claim is not None and self.alarm > self.claim

    @property
    def verdict(self) -> str:
        if self.claim is None:
            return "nothing is claimed"
        if self.refutes:
            return "REFUTED"
        return "above the claim; repeat" if self.epsilon > self.claim else "not refuted"


def covers(method: str) -> tuple[Kind, ...]:
    """User-level privacy says nothing of an entity that several users mention."""
    return ("user",) if method == "user-level" else KINDS


@dataclass(frozen=True)
class TrainingAudit:
    """What an attack on a training run found. Each bound holds with `confidence` on its own.

    `proven` is the plan's epsilon (None: there is none that is finite); with `privacy.seed`, what
    would hold were the seed a secret, as it is to the attacker. `rounds_seen` falls short of
    `rounds` where the process was killed on the way.
    """

    method: str
    rounds: int
    rounds_seen: int
    delta: float
    confidence: float
    noise: float
    proven: float | None
    claimed: float | None
    copies: int
    mentions: int
    holders: int
    findings: tuple[Finding, ...]

    @property
    def covers(self) -> tuple[Kind, ...]:
        """Of which canaries the proven epsilon speaks."""
        return covers(self.method)

    @property
    def refuted(self) -> bool:
        """Whether a claim was seen to be wrong; a false alarm has a chance of `1 - confidence`."""
        return any(finding.refutes for finding in self.findings)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "TrainingAudit":
        values = json.loads(text)
        rows: list[dict[str, Any]] = [
            {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
            for row in values.pop("findings")
        ]
        return cls(findings=tuple(Finding(**row) for row in rows), **values)


def audit(
    config: Config,
    out: Path,
    *,
    material: TrainingData | None = None,
    users: int = 200,
    entities: int = 100,
    holders: int = 3,
    claimed: float | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    references: int = 512,
    refresh: int | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
    say: Say = lambda line: None,
) -> TrainingAudit | None:
    """Train once by a config with canaries in the corpus, and bound the epsilon of the run.

    `claimed` is the epsilon to hold the bounds against; by default that of the plan. `references`
    is of how many texts of the corpus the white box knows the gradients: the more, the better it
    tells canaries from the others. `refresh` is after how many rounds gradients are computed anew,
    by default a twentieth of them. Both cost time and nothing else.
    None is returned if the run was stopped (Ctrl-C); `resume` goes on with it. `seed` decides over
    canaries and coins; the run has `privacy.seed`.

    Guarantees:
      - the rounds are those of `loop.run` on the corpus with the canaries in it
      - if the plan's epsilon holds, each bound exceeds it with a chance of `1 - confidence` at
        most, and with that chance at most any claim is refuted
      - nothing is entered in the ledger of the corpus, and in the end the model is removed: it was
        trained on the corpus beside its ledger
      - resuming a finished audit does nothing
    """
    _check(config, users, entities, holders, claimed, confidence)
    if (out / AUDIT).is_file():
        if not resume:
            raise UserError(f"{out}: holds an audit already; choose another --out")
        say("this audit is finished; nothing is left to do")
        _clear(out)
        return TrainingAudit.from_json((out / AUDIT).read_text())
    begun = (out / CANARIES).is_file()
    if begun and not resume:
        raise UserError(f"{out}: holds an audit already; add --resume to go on with it")
    if resume and not begun:
        raise UserError(f"{out}: holds no audit to resume; leave out --resume")
    material = material or read_training_data(config)
    rng = np.random.default_rng(seed)
    if begun:
        canaries = Canaries.from_json((out / CANARIES).read_text())
    else:
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out}: exists and is not an audit; choose another --out")
        canaries = draw(config, material, users, entities, holders, rng)
    others = _references(material.train, references, rng)
    attack = Attack(canaries, others, out / SEEN, refresh)
    planted = canaries.plant(material, out / LEDGER)
    planted.ledger.mkdir(parents=True, exist_ok=True)
    write_atomically(out / CANARIES, canaries.to_json())
    try:
        outcome = loop.run(
            config,
            out / RUN,
            data=planted,
            resume=resume and (out / RUN / folder.IDENTITY).is_file(),
            progress=progress,
            say=say,
            watch=attack.watch,
        )
    except UserError:
        if not begun:  # what is refused leaves nothing behind
            _remove(out)
        raise
    attack.keep()
    if not outcome.finished:
        return None
    found = _findings(config, canaries, attack.seen, outcome, claimed, confidence)
    write_atomically(out / AUDIT, found.to_json())
    _clear(out)
    return found


def _check(
    config: Config,
    users: int,
    entities: int,
    holders: int,
    claimed: float | None,
    confidence: float,
) -> None:
    method = config.privacy.method
    if method not in METHODS:
        raise UserError(f"privacy.method {method}: this audit attacks {', '.join(METHODS)}")
    if config.vocabulary.source == "corpus":
        raise UserError(
            "vocabulary.source corpus: no guarantee covers the words, so none can be audited"
        )
    for name, count in (("users", users), ("entities", entities)):
        if count and count < FEWEST:
            raise UserError(f"{name} {count}: fewer than {FEWEST} canaries prove nothing")
    if not users + entities:
        raise UserError("users 0, entities 0: there is nothing to guess; plant some canaries")
    if holders < 1:
        raise UserError(f"holders {holders}: someone has to mention an entity")
    if claimed is not None and not claimed >= 0:
        raise UserError(f"claimed {claimed}: an epsilon is not negative")
    if not 0 < confidence < 1:
        raise UserError(f"confidence {confidence}: must lie between 0 and 1")


def _references(train: Texts, count: int, rng: np.random.Generator) -> Texts:
    """Some texts of the corpus, each once."""
    labels = {text: train.labels[place] for place, text in enumerate(train.texts) if text.strip()}
    texts = sorted(labels)
    chosen = [texts[place] for place in rng.permutation(len(texts))[:count]]
    chosen.sort(key=len)  # those computed together need little padding
    return Texts(chosen, [labels[text] for text in chosen])


def _clear(out: Path) -> None:
    """Remove the run and its ledger."""
    for name in (RUN, LEDGER):
        shutil.rmtree(out / name, ignore_errors=True)


def _remove(out: Path) -> None:
    """Remove all of an audit, and the folder if nothing else is in it."""
    _clear(out)
    for name in (CANARIES, SEEN):
        (out / name).unlink(missing_ok=True)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()


def _findings(
    config: Config,
    canaries: Canaries,
    seen: Mapping[str, Any],
    outcome: Outcome,
    claimed: float | None,
    confidence: float,
) -> TrainingAudit:
    meaning = getattr(outcome.model.config, "id2label", None) or {}
    own = canaries.texts()
    task = tasks.build_task(
        config.task.kind,
        own.texts,
        own.labels,
        [meaning[number] for number in sorted(meaning)],
        outcome.tokenizer,
        int(seen["longest"]),
    )
    after = losses(outcome.model, task, len(own.texts))
    scores = {
        "white box": np.array(seen["evidence"]),
        "black box": np.nan_to_num(np.array(seen["before"]) - after),
    }
    proven, delta = seen["proven"], config.privacy.delta
    claim = proven if claimed is None else claimed
    inside = np.array([canary.inside for canary in canaries.canaries])
    shown = np.array([canary.shown for canary in canaries.canaries])
    kinds = [kind for kind in KINDS if len(canaries.of(kind))]
    shared = len(kinds) * len(scores)
    findings = []
    for kind in kinds:
        rows = canaries.of(kind)
        told, asked = rows[shown[rows]], rows[~shown[rows]]
        for name, values in scores.items():
            how = one_run.choose_cuts(values[told], inside[told], len(asked), confidence)
            bound, strict = (
                one_run.prove(how, values[asked], inside[asked], delta, level)
                for level in (confidence, 1 - (1 - confidence) / shared)
            )
            findings.append(
                Finding(
                    kind=kind,
                    score=name,
                    **asdict(bound),
                    alarm=strict.epsilon,
                    most=one_run.lower_bound(
                        len(asked), len(asked), len(asked), delta, confidence, number_fixed=False
                    ),
                    claim=claim if kind in covers(config.privacy.method) else None,
                    guessed_in_above=how.high if math.isfinite(how.high) else None,
                    guessed_out_up_to=how.low if math.isfinite(how.low) else None,
                    scores=tuple(values[rows].tolist()),
                    inside=tuple(inside[rows].tolist()),
                    shown=tuple(shown[rows].tolist()),
                )
            )
    return TrainingAudit(
        method=config.privacy.method,
        rounds=config.privacy.rounds,
        rounds_seen=seen["rounds"],
        delta=delta,
        confidence=confidence,
        noise=seen["noise"],
        proven=proven,
        claimed=claimed,
        copies=canaries.copies,
        mentions=canaries.mentions,
        holders=canaries.holders,
        findings=tuple(findings),
    )
