"""The privacy engine: guards, ledgers and private rounds for any training loop.

`uedp.train` uses it with a config; a custom loop attaches a model:

    engine = uedp.PrivacyEngine(corpus, target_epsilon=8, rounds=200, run_dir="run")
    private = engine.attach(model, tokenizer)
    for step in private.rounds():
        optimizer.step()
        optimizer.zero_grad()
    print(engine.certificate().statement)
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from uedp.accounting.card import write_card
from uedp.accounting.certificate import Certificate, issue, load_certificate
from uedp.accounting.chain import read_chain
from uedp.accounting.ledger import (
    RUN_LEDGER,
    Budget,
    CorpusLedger,
    RunLedger,
    planned_run,
    refuse_another_plan,
)
from uedp.accounting.model_files import model_files
from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.hf_hub import max_tokens
from uedp.mechanism.release import ClipStats
from uedp.methods import Attempt, Gradient
from uedp.models.load import LoadedModel
from uedp.models.trainable import adapter_names, fold_adapters, save_model, trained_names
from uedp.progress import SILENT, Progress
from uedp.training import checkpoint, lineage, run_dir, vocabulary
from uedp.training.build import (
    Assembly,
    Say,
    Watch,
    assemble,
    check_corpus,
    plan_run,
    set_up_for_training,
)
from uedp.training.choose import limit_evaluation, settle
from uedp.training.config import Config, parse_config
from uedp.training.datasets import TrainingData, read_training_data
from uedp.training.outcome import write_result
from uedp.training.plan import Plan
from uedp.training.round_key import FILE, RoundKey, digest_of

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus

# prefixes of a checkpoint's tensors beside the weights
_STATE, _METHOD, _PUBLIC = "optimiser.", "method.", "public."


@dataclass(frozen=True)
class Step:
    """A private round whose noisy gradient lies in `.grad`. `stats` are for the curator only."""

    round: int
    rounds: int
    stats: ClipStats


class PrivacyEngine:
    """Trains a model on a corpus under a stated guarantee.

    Args:
        corpus: a corpus with its incidence, or its folder.
        target_epsilon: the noise is calibrated to it; give `noise=` instead to choose the noise.
        rounds: by default chosen from counts of the corpus, as are other settings that are not
            given (`training.choose`); the time they take does not count.
        run_dir: where ledger, certificate, checkpoints and the trained model go.
        resume: continue the run in `run_dir` with the rounds that it has not spent.
        task: "next-word" or "classification", the latter with `labels`.
        say: gets the guarantee before training, and warnings, line by line.
        privacy: further fields of a config's privacy section, such as `method` and `user_rate`.

    Guarantees:
      - nothing is trained before the guarantee was stated (`say`)
      - a refusal leaves nothing behind, in the run directory or in the ledger of the corpus
      - every round is in the ledger before its noise is drawn, so before anything of it can be seen
      - a round that stopped before that costs nothing and is repeated exactly, with the same
        participants and weights, or else counts as spent; it is never drawn again for free
      - every run is in the ledger of the corpus, one without a guarantee as infinite
      - two processes never work in one run directory
      - a private run does not begin with a model that has learned from the same corpus, in any of
        its epochs, unless its epsilon counts the runs in which it did
      - a run is resumed on the epoch that it began with, and not at all if somebody has left since
      - a run is resumed with the noise source, precision, texts and detection that it began with
      - the files of a finished run's model are in its ledger and its certificate, by their hashes
    """

    def __init__(
        self,
        corpus: "Corpus | str | Path",
        target_epsilon: float | None = None,
        *,
        rounds: int | None = None,
        run_dir: str | Path = "run",
        resume: bool = False,
        task: str = "next-word",
        labels: tuple[str, ...] = (),
        max_tokens: int = 128,
        progress: Progress = SILENT,
        say: Say = print,
        **privacy: Any,
    ) -> None:
        if target_epsilon is not None and "epsilon" in privacy:
            raise UserError("PrivacyEngine: give either target_epsilon or epsilon")
        folder = corpus if isinstance(corpus, str | Path) else corpus.folder
        config = parse_config(
            {
                "privacy": {"epsilon": target_epsilon, "rounds": rounds, **privacy},
                "data": {"train": folder},
                "model": {"name": "attached", "train": "attached", "max_tokens": max_tokens},
                "task": {"kind": task, "labels": labels},
            },
            "PrivacyEngine",
        )
        self._set(config, Path(run_dir), None, resume, progress, say)

    @classmethod
    def from_config(
        cls,
        config: Config,
        out: Path,
        *,
        data: TrainingData | None = None,
        resume: bool = False,
        progress: Progress = SILENT,
        say: Say = lambda line: None,
    ) -> Self:
        """For the run that a config describes; `data` stands in for the corpora that it names."""
        engine = cls.__new__(cls)
        engine._set(config, out, data, resume, progress, say)
        return engine

    def _set(
        self,
        config: Config,
        out: Path,
        data: TrainingData | None,
        resume: bool,
        progress: Progress,
        say: Say,
    ) -> None:
        self.config, self.out = config, out
        self._data, self._resume, self._progress, self._say = data, resume, progress, say
        self._held = ExitStack()  # locks and ledgers, released when the run ends
        self._run: PrivateRun | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release locks and ledgers; what was spent stays spent, and the run can be resumed."""
        self._run = None
        self._held.close()

    def certificate(self) -> Certificate:
        """The guarantee of the run, for all planned rounds.

        The certificate of an unfinished run certifies no model.
        """
        if self._run is not None and not self._run.finished:
            self._run.certify()
        return load_certificate(self.out)

    def attach(
        self, model: nn.Module | None = None, tokenizer: Any = None, *, watch: Watch | None = None
    ) -> "PrivateRun":
        """Check the model, state the guarantee, reserve the rounds and open the ledger.

        Args:
            model: the model to train; frozen parameters have no `requires_grad`. By default the
                model that the config names is loaded.
        """
        if self._run is not None:
            raise UserError(f"{self.out}: this engine has a model; `close()` it, or make another")
        attached = None
        if model is not None:
            self.config = _describe(model, tokenizer, self.config)
            limit = max_tokens(model, tokenizer, self.config.model.max_tokens)
            attached = LoadedModel(model, tokenizer, limit)
        elif self.config.model.train == "attached":
            raise UserError("attach: give the model and its tokenizer")
        try:
            self._run = self._begin(self.config, attached, watch)
            return self._run
        except BaseException:
            self.close()
            raise

    def _begin(
        self, config: Config, attached: LoadedModel | None, watch: Watch | None
    ) -> "PrivateRun":
        out, say = self.out, self._say
        identity = self._held.enter_context(run_dir.lock_run_dir(out))
        if self._resume:
            config = self.config = run_dir.as_planned(config, out)
        name = run_dir.existing_run(identity, out, config, self._resume)
        if (out / run_dir.RESULT).is_file():
            raise FinishedRunError(out)
        config = limit_evaluation(config)
        begun = _begun_with(out) if self._resume else None
        data = self._data or read_training_data(config, self._progress, begun)
        corpus = CorpusLedger(data.ledger)
        trained_on = [] if attached is None else _ancestors(attached.model)
        known = [one for one in trained_on if one.run != name]
        check_corpus(config, data, corpus, known)
        choice, ready = settle(config, data, attached, self._progress)
        config = self.config = choice.config
        plan = plan_run(config, data, corpus, known)
        for line in (*plan.summary, *choice.words):
            say(line)

        def assembled(words: str | None = None) -> Assembly:
            return assemble(
                plan,
                data,
                prepared=ready if words is None else None,
                attached=attached,
                tokenizer=words,
                progress=self._progress,
                say=say,
                watch=watch,
            )

        assembly = assembled()  # every guard, before anything is written
        resumed = name is not None
        name = name or run_dir.name_run(identity)
        planned = plan.planned(name)
        try:
            refuse_another_plan(out, planned)
            # before the reservation: a run that is killed here resumes with the same numbers
            write_atomically(out / run_dir.CONFIG, config.to_yaml())
            corpus.reserve(planned, _budget(config))
        except UserError:
            if not resumed:
                (out / run_dir.CONFIG).unlink(missing_ok=True)
                identity.truncate(0)
            raise
        ancestors = (*plan.provenance.lineage, *lineage.run_as_ancestors(planned))
        lineage.write_lineage(out, ancestors)
        ledger = key = None
        if plan.profile is not None:
            key = RoundKey(out, name)
            if not (out / RUN_LEDGER).is_file():
                key.reset()
            ledger = self._held.enter_context(RunLedger.open(out, planned, data.ledger))
        if config.vocabulary.source != "tokenizer":
            words = vocabulary.make_run_tokenizer(
                config.vocabulary, out, data.train.texts, data.incidence, plan.vocabulary, ledger
            )
            lineage.write_lineage(words, ancestors)  # a copy of the tokenizer keeps it
            assembly = assembled(str(words))
        checkpoint.remove_scratch(out)
        return PrivateRun(assembly, out, name, ancestors, ledger, key, corpus, self._held, say)


def _begun_with(out: Path) -> str | None:
    """The digest of the incidence that the run in a folder was planned on, None if it has none."""
    path = out / RUN_LEDGER
    return planned_run(path, read_chain(path)[0]).shape.digest if path.is_file() else None


_RUNS = "_uedp_runs"  # on every module of a trained model, so that wrapped ones and copies have it


def _ancestors(model: nn.Module) -> list[lineage.Ancestor]:
    """The runs that parts of a model in memory went through, or were loaded from."""
    marks = {run for module in model.modules() for run in getattr(module, _RUNS, ())}
    trained = {lineage.Ancestor(**dict(run)) for run in marks}
    names = {str(getattr(module, "name_or_path", "")) for module in model.modules()} - {""}
    loaded = {ancestor for name in names for ancestor in lineage.model_ancestors(name)}
    return sorted(trained | loaded, key=lambda ancestor: ancestor.run)


def _describe(model: nn.Module, tokenizer: Any, config: Config) -> Config:
    """The config of a run with an attached model: its names, device and precision."""
    parameters = list(model.parameters())
    if not parameters:
        raise UserError(f"{type(model).__name__}: has no parameters to train")
    update: dict[str, str] = {"device": parameters[0].device.type}
    if any(p.dtype not in (torch.float32, torch.float64) for p in parameters):  # or quantised
        update["precision"] = "bfloat16"  # whatever was asked for: its passes round more coarsely
    names = {
        "name": str(getattr(model, "name_or_path", "") or type(model).__name__),
        # what a tokenizer was made from is recorded beside it
        "tokenizer": str(getattr(tokenizer, "name_or_path", "")) or None,
    }
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=names),
            "run": config.run.model_copy(update=update),
        }
    )


class FinishedRunError(UserError):
    """The run directory holds a finished run."""

    def __init__(self, out: Path) -> None:
        super().__init__(f"{out}: this run is finished; there is nothing to do")


def _budget(config: Config) -> Budget | None:
    budget = config.privacy.corpus_budget
    return None if budget is None else Budget(budget, config.privacy.delta)


class PrivateRun:
    """A model attached to an engine: its private rounds, its checkpoints, its certificate."""

    def __init__(
        self,
        assembly: Assembly,
        out: Path,
        name: str,
        ancestors: tuple[lineage.Ancestor, ...],
        ledger: RunLedger | None,
        key: RoundKey | None,
        corpus: CorpusLedger,
        held: ExitStack,
        say: Say,
    ) -> None:
        self.assembly, self.out, self.name = assembly, out, name
        # plain values: a module that is pickled must not need this package
        self._mark = tuple(tuple(asdict(ancestor).items()) for ancestor in ancestors)
        self._ledger, self._corpus, self._held, self._say = ledger, corpus, held, say
        self._key = key
        self.finished = False
        # what adapters learned from public text, once it is part of the frozen weights
        self._learned: Mapping[str, Tensor] = {}
        self.public_left = assembly.public is not None
        """Whether public text is still to be trained on, before the first round."""
        self.abandonable = False
        """Whether a round is being computed that can be abandoned, here and now, for free."""
        self._next: int | None = None

    @property
    def plan(self) -> Plan:
        return self.assembly.plan

    @property
    def model(self) -> nn.Module:
        return self.assembly.model

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters, in the order of gradients."""
        return self.assembly.method.parameters

    def rounds(self, optimizer: torch.optim.Optimizer | None = None) -> Iterator[Step]:
        """Spend the remaining rounds, one per iteration; finish the run after the last.

        In the body of the loop, every trained parameter has its noisy gradient in `.grad`. With
        `optimizer`, checkpoints include its state.

        Ctrl-C in a round that is not in the ledger yet leaves a checkpoint: when the run is
        resumed, that round is repeated, and it has cost nothing.
        """
        if self._next is None:
            self._next, state, _ = self.restore()
            if optimizer is not None:
                _restore_optimizer(optimizer, state)
        saved = time.monotonic()
        while not self.finished and self._next < self.plan.rounds:
            number = self._next
            try:
                gradient = self.round(number)
            except UserError:  # refused before it began
                raise
            except BaseException:
                if self.repeatable(number):
                    self.save_checkpoint(number, _optimizer_state(optimizer))
                elif self._ledger is not None:
                    self._next = max(number, self._ledger.spent)  # it is lost if it was entered
                raise
            self._next = number + 1
            for parameter in self.model.parameters():
                parameter.grad = None  # an optimizer of all parameters must find no other gradient
            for parameter, value in zip(self.parameters, gradient.values, strict=True):
                parameter.grad = value.to(parameter.dtype)
            yield Step(number + 1, self.plan.rounds, gradient.stats)
            last = number + 1 == self.plan.rounds
            if last or time.monotonic() - saved >= self.plan.config.run.checkpoint_seconds:
                self.save_checkpoint(number + 1, _optimizer_state(optimizer))
                saved = time.monotonic()
        if not self.finished:
            self.finish()
            write_result(self.out, {}, {}, self.plan.rounds)
            self._held.close()

    def repeatable(self, number: int) -> bool:
        """Whether this round has left no trace: the weights are those that it began with."""
        spent = number if self._ledger is None else self._ledger.spent
        return self.assembly.method.abandonable and spent == number

    def round(
        self, number: int, batch_done: Callable[[int, int], None] = lambda done, total: None
    ) -> Gradient:
        """Spend one round, and return its noisy gradient.

        Args:
            batch_done: called with the batches done and their number.

        Guarantees:
          - an exception while `abandonable` is set spends nothing; the next attempt at the round
            has the same participants, in another process too
        """
        if self.public_left:
            raise UserError(
                "data.public: this run is planned to train on public text before its first round; "
                "train it by `uedp.train`, or leave data.public out"
            )
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if [id(p) for p in trained] != [id(p) for p in self.parameters]:
            raise UserError(
                "the trained parameters are not those that were attached: one that was unfrozen "
                "since would get a gradient without clipping and noise; attach the model again"
            )
        unmarked = [m for m in self.model.modules() if getattr(m, _RUNS, ()) is not self._mark]
        known = {dict(run)["run"] for run in self._mark}
        marks = {run for module in unmarked for run in getattr(module, _RUNS, ())}
        if others := sorted({dict(run)["run"] for run in marks} - known):
            raise UserError(
                f"the model was trained in run {others[0]} since it was attached, which this run's "
                "epsilon does not cover; attach a model to one run at a time"
            )
        method, ledger, key = self.assembly.method, self._ledger, self._key
        entered = False

        def enter() -> None:
            nonlocal entered
            self.abandonable = False  # first: from here on, an interrupt must wait
            if ledger is not None and key is not None and not entered:
                ledger.spend()
                key.end(ledger.spent - 1)
            entered = True

        secret, taken = None, False

        def take_key() -> bytes | None:
            nonlocal taken
            taken = True
            return secret

        if ledger is not None and key is not None:
            ledger.require()
            secret = key.begin(ledger.spent)
            if ledger.begun not in (None, digest_of(secret)):
                raise UserError(f"{self.out / FILE}: not as this run left it; resume the run")
            ledger.begin(digest_of(secret))
        if not self.model.training:  # a model of many modules takes milliseconds to change
            self.model.train()
        with set_up_for_training(self.model, self.plan.config.task.kind):
            try:
                self.abandonable = method.abandonable
                gradient = method.round(number, Attempt(take_key, enter, batch_done))
            finally:
                self.abandonable = False
        name = self.plan.config.privacy.method
        if not entered:
            enter()
            raise UserError(
                f"{name}: its round added noise before `enter()`; call it when the sum is "
                "complete, so that no noisy sum exists outside the ledger"
            )
        if ledger is not None and not taken:
            raise UserError(
                f"{name}: its round was not drawn by the key of the attempt, so that one that is "
                "interrupted would be drawn anew; pass `take_key()` to `Randomness`"
            )
        for module in unmarked:
            setattr(module, _RUNS, self._mark)
        return gradient

    def finish(self) -> Certificate | None:
        """Save the model, enter its files in the ledger, close the run, issue the certificate.

        A privacy card for publication goes beside it.
        """
        if self._ledger is None:
            self._save_model()
            self._corpus.close(self.name, self.plan.rounds)
            self.finished = True
            write_card(self.out)  # which says that there is no guarantee
            return None
        if self._ledger.left:  # before a model is written that nothing certifies
            raise UserError(f"{self.out}: {self._ledger.left} rounds are left; spend them first")
        written = self._save_model()
        # only files written here: `verify` must report any other file
        files = model_files(self.out).items()
        self._ledger.record_saved({name: digest for name, digest in files if name in written})
        self._corpus.close(self.name, self._ledger.spent, self._ledger.vocabulary_spent)
        self.finished = True
        if self._key is not None:
            self._key.remove()
        certificate = self.certify()
        write_card(self.out, verified=True)
        return certificate

    def _save_model(self) -> frozenset[str]:
        return save_model(self.model, self.out, self.assembly.tokenizer, self._learned)

    def certify(self) -> Certificate | None:
        """Issue the certificate of the run as it stands."""
        if self._ledger is None:
            return None
        self._ledger.record_corpus(self._corpus.total(self.plan.config.privacy.delta))
        return issue(self.out, warn=self._say)

    # --- public text -----------------------------------------------------------------------------

    def end_public(self, initial: Mapping[str, Tensor]) -> None:
        """Fix what was learned from public text; the rounds start with adapters as they were.

        A new adapter is at first the same as none, and so is noise on its first half: noise on an
        adapter that has learned something would disturb the model from the first round on.

        Args:
            initial: the trained parameters before it, by their names.
        """
        current = dict(self.model.named_parameters())
        names = adapter_names(self.model)
        self._learned = {name: current[name].detach().clone() for name in names}
        with torch.no_grad():
            for name in names:
                current[name].copy_(initial[name])
        fold_adapters(self.model, self._learned)
        self.public_left = False
        if self._ledger is not None and (text := self.plan.setup().public) is not None:
            self._ledger.record_public(text.steps)

    # --- checkpoints -----------------------------------------------------------------------------

    def save_checkpoint(
        self, done: int, state: Mapping[str, Tensor], info: Mapping[str, Any] | None = None
    ) -> None:
        """Save weights, the method's state and the optimiser's after `done` rounds."""
        tensors = dict(zip(trained_names(self.model), self.parameters, strict=True))
        method = {f"{_METHOD}{name}": value for name, value in self.assembly.method.state().items()}
        optimiser = {f"{_STATE}{name}": value for name, value in state.items()}
        public = {f"{_PUBLIC}{name}": value for name, value in self._learned.items()}
        whole = {**tensors, **method, **optimiser, **public}
        checkpoint.write_checkpoint(self.out, done, whole, info or {})

    def restore(self) -> tuple[int, dict[str, Tensor], Mapping[str, Any] | None]:
        """Restore the newest checkpoint.

        Returns:
            The rounds done, which are those that the ledger has; the optimiser's state; and what
            was saved beside them, None if there is no checkpoint.
        """
        newest = checkpoint.load_newest_checkpoint(self.out)
        spent = self._settled(None if newest is None else int(newest[1]["done"]))
        if newest is None:
            if spent:
                self._say(f"{spent} rounds were spent, but there is no checkpoint: they are lost")
            return spent, {}, None
        tensors, info = newest
        done = int(info["done"])
        self.public_left = False  # or there would be no checkpoint
        try:
            self._learned = _under(_PUBLIC, tensors)
            fold_adapters(self.model, self._learned)
            self.set_weights([tensors[name] for name in trained_names(self.model)])
            self.assembly.method.restore(_under(_METHOD, tensors))
        except (KeyError, RuntimeError) as error:
            raise UserError(
                f"{self.out}: its checkpoint does not fit model "
                f"{self.plan.config.model.name!r} ({error}); was the model changed?"
            ) from None
        if spent > done:
            self._say(
                f"{spent - done} rounds were spent after the last checkpoint; they count but are "
                "lost"
            )
        return max(spent, done), _under(_STATE, tensors), info

    def _settled(self, done: int | None) -> int:
        """The rounds spent, with one that was begun and cannot be repeated as it began.

        `done` are those of the newest checkpoint, None if nothing says what weights there were.
        """
        if self._ledger is None or self._key is None:
            return 0
        spent = self._ledger.spent
        if done is not None and spent < done:
            raise UserError(
                f"{self.out}: {done} rounds were done, but its ledger has {spent}; restore the "
                "ledger from a copy, or start a new run"
            )
        state = self._key.state(spent, self._ledger.begun) if self._ledger.left else "not begun"
        if state == "begun" and done == spent:
            self._say(
                f"round {spent + 1} was interrupted before anything of it was released: it is done "
                "again with the same participants, and costs nothing more"
            )
        elif state != "not begun" and self.plan.config.privacy.seed is None:
            why = "the weights that it began with are lost"
            if state == "unknown":  # then it may have been begun
                why = f"{FILE} is not as this run left it"
            self._ledger.spend()
            self._key.end(spent)
            self._say(
                f"round {spent + 1} was begun and cannot be repeated ({why}): it counts as spent"
            )
        return self._ledger.spent

    @torch.no_grad()
    def set_weights(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _optimizer_state(optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    """The tensors of a PyTorch optimizer's state, by parameter and name."""
    if optimizer is None:
        return {}
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, values in state.items()
        for name, value in values.items()
        if value is not None
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    values: dict[int, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        number, _, name = key.partition(".")
        values.setdefault(int(number), {})[name] = tensor
    if values:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": values})
