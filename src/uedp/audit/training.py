"""Attack a training run: canaries in the corpus, one run of the real loop, a bound on its epsilon.

One-run auditing (Steinke, Nasr and Jagielski 2023). It bounds the epsilon of the adjacency of
`docs/privacy.md` section 4, for one canary at a time, the incidence and all other texts held fixed.
The coin of a user canary is a step of one user, that of an entity canary a step of one entity, and
a proven epsilon, which is for both at once, must exceed the bounds on either.

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
from pydantic import TypeAdapter
from torch import nn

from uedp.accounting.divergence import Floats
from uedp.audit import one_run
from uedp.audit.bounds import check_confidence
from uedp.audit.canaries import CANARY_KINDS, FEWEST, Canaries, CanaryKind, draw_canaries
from uedp.audit.white_box import WhiteBox, sentence_losses
from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.files import write_atomically
from uedp.methods import Gradient, SentenceTask, method_named
from uedp.methods.base import UNATTENDED, Attempt, Rounds
from uedp.models.load import LoadedModel
from uedp.progress import SILENT, Progress
from uedp.training import loop
from uedp.training.build import Assembly, Say, task_of_run
from uedp.training.config import Config
from uedp.training.datasets import Texts, TrainingData, read_training_data
from uedp.training.evaluation import costs_on, padded_batches
from uedp.training.outcome import Outcome
from uedp.training.run_dir import IDENTITY

CANARIES, SEEN, AUDIT = "canaries.json", "seen.json", "audit.json"
_SCORED = 1 << 12  # tokens of canaries whose losses are computed at once
RUN, LEDGER = "run", "ledger"  # removed when the audit is finished


class WatchedRounds:
    """The rounds of a method, watched by an attacker and otherwise unchanged.

    Guarantees:
      - a round gives what the method's own round does
    """

    def __init__(self, method: Rounds, white_box: WhiteBox, attack: "RunAttack") -> None:
        self._method, self._white_box, self._attack = method, white_box, attack
        self.parameters = method.parameters
        self.abandonable = False  # what the attacker has seen of a round could not be taken back
        self.state, self.restore = method.state, method.restore

    def round(self, number: int, attempt: Attempt = UNATTENDED) -> Gradient:
        if self._white_box.before_round(number):
            self._attack.keep()
        gradient = self._method.round(number, attempt)
        self._attack.add(self._white_box.after_round(gradient.values))
        return gradient


class RunAttack:
    """What the attacker learns in the course of a run; kept on disk, so that a run can resume.

    Rounds seen since it was last kept are lost if the process is killed, which weakens the attack
    and changes nothing else.
    """

    def __init__(self, canaries: Canaries, others: Texts, path: Path, every: int | None) -> None:
        self._canaries, self._others, self._path, self._every = canaries, others, path, every
        self.seen: dict[str, Any] = {"rounds": 0, "evidence": [0.0] * len(canaries.canaries)}
        if path.is_file():
            self.seen = json.loads(path.read_text())
        self._evidence = np.array(self.seen["evidence"])

    def watch(self, assembly: Assembly) -> Rounds:
        """The rounds of a run, watched; its weights are those before any round."""
        plan, model = assembly.plan, assembly.model
        own, others = self._canaries.texts(), self._others
        task = assembly.make_task(Texts([*own.texts, *others.texts], [*own.labels, *others.labels]))
        box = WhiteBox(plan, assembly.incidence, model, task, self._canaries, self._every)
        self.seen |= {
            "longest": assembly.max_tokens,
            "before": losses(model, task, len(own.texts)).tolist(),
            "proven": plan.epsilon if math.isfinite(plan.epsilon) else None,
            "noise": plan.noise,
            "plan": plan.digest(plan.provenance.precision) if plan.profile else None,
        }
        return WatchedRounds(assembly.method, box, self)

    def add(self, evidence: Floats) -> None:
        """The evidence of one more round."""
        self._evidence += evidence
        self.seen["rounds"] += 1

    def keep(self) -> None:
        self.seen["evidence"] = self._evidence.tolist()
        write_atomically(self._path, json.dumps(self.seen) + "\n")


@torch.no_grad()
def losses(model: nn.Module, task: SentenceTask, count: int) -> Floats:
    """The loss of each of the first `count` sentences, without dropout."""
    costs = costs_on(next(model.parameters()).device)
    plan = padded_batches(task.lengths[:count], _SCORED, costs, serial=False)
    with evaluating(model):
        parts = [sentence_losses(model, task, batch.sentences) for batch in plan]
    values = np.empty(count)
    values[np.concatenate([batch.sentences for batch in plan])] = torch.cat(parts).cpu().numpy()
    return values


@dataclass(frozen=True)
class Finding:
    """The result of guessing one kind of canary by one score.

    `epsilon` is the lower bound, and `alarm` the one with a confidence shared among all findings of
    an audit; `most` is the largest epsilon that so many canaries can prove, if all are guessed
    right. `claim` is the epsilon that bounds are held against, if any. `scores` and `inside` are of
    all canaries of the kind, including those `shown` to the attacker.
    """

    kind: CanaryKind
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


@dataclass(frozen=True)
class TrainingAudit:
    """The result of an attack on a training run. Each bound holds with `confidence` on its own.

    `proven` is the plan's epsilon (None: not finite); with `privacy.seed`, what would hold were the
    seed a secret, as it is to the attacker. `rounds_seen` is below `rounds` if the process was
    killed on the way.
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
    plan: str | None = None  # the digest of the plan, with its precision; None: it has no guarantee

    @property
    def covers(self) -> tuple[CanaryKind, ...]:
        """The kinds of canaries that the proven epsilon covers."""
        return covered_kinds(self.method)

    @property
    def refuted(self) -> bool:
        """Whether a claim was refuted; a false alarm has a probability of `1 - confidence`."""
        return any(finding.refutes for finding in self.findings)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "TrainingAudit":
        return TypeAdapter(cls).validate_json(text)


def covered_kinds(method: str) -> tuple[CanaryKind, ...]:
    """A guarantee for users only says nothing of an entity that several users mention."""
    profile = method_named(method).profile_type
    return ("user",) if profile is not None and not profile.protects_entities else CANARY_KINDS


def audit(
    config: Config,
    out: Path,
    *,
    data: TrainingData | None = None,
    users: int = 200,
    entities: int = 100,
    holders: int = 3,
    claimed: float | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    references: int = 512,
    refresh: int | None = None,
    resume: bool = False,
    inspect: Callable[[Outcome], None] = lambda outcome: None,
    progress: Progress = SILENT,
    say: Say = lambda line: None,
) -> TrainingAudit | None:
    """Train once by a config with canaries in the corpus, and bound the epsilon of the run.

    Returns None if the run was stopped (Ctrl-C); `resume=True` continues it.

    Args:
        data: stands in for the corpora that the config names.
        claimed: the epsilon to hold the bounds against; by default that of the plan.
        seed: of canaries and coins; the run has `privacy.seed`.
        references: how many texts of the corpus the white box computes gradients of. More of them
            tell canaries from the others better, and take longer.
        refresh: after how many rounds gradients are recomputed; by default a twentieth of them.
        inspect: called with the finished run before its model is removed, to measure it.

    Guarantees:
      - the rounds are those of `loop.run` on the corpus with the canaries in it
      - if the plan's epsilon holds, each bound exceeds it with a probability of `1 - confidence`
        at most, and with that probability at most any claim is refuted
      - nothing is entered in the ledger of the corpus, and in the end the model is removed: it was
        trained on the corpus without an entry in its ledger
      - resuming a finished audit does nothing
    """
    _check(config, users, entities, holders, claimed)
    check_confidence(confidence)
    if (out / AUDIT).is_file():
        if not resume:
            raise UserError(f"{out}: holds a finished audit; choose another `out=...`")
        say("this audit is finished; nothing is left to do")
        _remove_run(out)
        return TrainingAudit.from_json((out / AUDIT).read_text())
    started = (out / CANARIES).is_file()
    if started and not resume:
        raise UserError(f"{out}: holds an audit already; continue it with `resume=True`")
    if resume and not started:
        raise UserError(f"{out}: holds no audit to resume; leave out `resume=True`")
    data = data or read_training_data(config)
    rng = np.random.default_rng(seed)
    if started:
        canaries = Canaries.from_json((out / CANARIES).read_text())
    else:
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out}: exists and is not an audit; choose another `out=...`")
        canaries = draw_canaries(config, data, users, entities, holders, rng)
    attack = RunAttack(canaries, _references(data.train, references, rng), out / SEEN, refresh)
    planted = canaries.plant(data, out / LEDGER)
    planted.ledger.mkdir(parents=True, exist_ok=True)
    write_atomically(out / CANARIES, canaries.to_json())
    try:
        outcome = loop.run(
            config,
            out / RUN,
            data=planted,
            resume=resume and (out / RUN / IDENTITY).is_file(),
            progress=progress,
            say=say,
            watch=attack.watch,
        )
    except UserError:
        if not started:  # a refused run leaves nothing behind
            _remove_all(out)
        raise
    attack.keep()
    if not outcome.finished:
        return None
    inspect(outcome)
    result = _result(config, canaries, attack.seen, outcome, claimed, confidence)
    write_atomically(out / AUDIT, result.to_json())
    _remove_run(out)
    return result


def _check(config: Config, users: int, entities: int, holders: int, claimed: float | None) -> None:
    method = method_named(config.privacy.method)
    local_updates = method.profile_type is not None and not method.noises_gradients
    if local_updates or method.deidentifies:
        raise UserError(
            f"privacy.method {method.name}: this audit attacks gradients of the corpus as it is, "
            "not local updates or replaced texts"
        )
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
        raise UserError(f"holders {holders}: an entity needs at least one holder")
    if claimed is not None and not claimed >= 0:
        raise UserError(f"claimed {claimed}: an epsilon is not negative")


def _references(train: Texts, count: int, rng: np.random.Generator) -> Texts:
    """Some distinct texts of the corpus."""
    labels = {text: train.labels[place] for place, text in enumerate(train.texts) if text.strip()}
    texts = sorted(labels)
    chosen = [texts[place] for place in rng.permutation(len(texts))[:count]]
    chosen.sort(key=len)  # those of a batch need little padding
    return Texts(chosen, [labels[text] for text in chosen])


def _remove_run(out: Path) -> None:
    """Remove the run and its ledger."""
    for name in (RUN, LEDGER):
        shutil.rmtree(out / name, ignore_errors=True)


def _remove_all(out: Path) -> None:
    """Remove an audit, and its directory if nothing else is in it."""
    _remove_run(out)
    for name in (CANARIES, SEEN):
        (out / name).unlink(missing_ok=True)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()


def _result(
    config: Config,
    canaries: Canaries,
    seen: Mapping[str, Any],
    outcome: Outcome,
    claimed: float | None,
    confidence: float,
) -> TrainingAudit:
    trained = LoadedModel(outcome.model, outcome.tokenizer, int(seen["longest"]))
    task = task_of_run(config, trained, canaries.texts())
    after = losses(outcome.model, task, len(canaries.canaries))
    scores = {
        "white box": np.array(seen["evidence"]),
        "black box": np.nan_to_num(np.array(seen["before"]) - after),
    }
    method, delta, proven = config.privacy.method, config.privacy.delta, seen["proven"]
    claim = proven if claimed is None else claimed
    inside = np.array([canary.inside for canary in canaries.canaries])
    shown = np.array([canary.shown for canary in canaries.canaries])
    kinds = [kind for kind in CANARY_KINDS if len(canaries.of(kind))]
    among = len(kinds) * len(scores)
    findings = []
    for kind in kinds:
        rows = canaries.of(kind)
        tuned, guessed = rows[shown[rows]], rows[~shown[rows]]
        for name, values in scores.items():
            cuts = one_run.choose_cuts(values[tuned], inside[tuned], len(guessed), confidence)
            bound, strict = (
                one_run.prove(cuts, values[guessed], inside[guessed], delta, level)
                for level in (confidence, 1 - (1 - confidence) / among)
            )
            number = len(guessed)
            findings.append(
                Finding(
                    kind=kind,
                    score=name,
                    **asdict(bound),
                    alarm=strict.epsilon,
                    most=one_run.lower_bound(number, number, number, delta, confidence),
                    claim=claim if kind in covered_kinds(method) else None,
                    guessed_in_above=cuts.high if math.isfinite(cuts.high) else None,
                    guessed_out_up_to=cuts.low if math.isfinite(cuts.low) else None,
                    scores=tuple(values[rows].tolist()),
                    inside=tuple(inside[rows].tolist()),
                    shown=tuple(shown[rows].tolist()),
                )
            )
    return TrainingAudit(
        method=method,
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
        plan=seen["plan"],
    )
