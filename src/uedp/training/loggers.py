"""TensorBoard, Weights & Biases and MLflow, by the callbacks of Transformers.

They get what `metrics.jsonl` gets, which is computed from the data without noise: for the curator
only. They get no text, no path and nothing of the model.
"""

import importlib
import importlib.util
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.strict import parse_json
from uedp.training.build import Say
from uedp.training.config import Config

if TYPE_CHECKING:
    from transformers import TrainerCallback

FILE = "loggers.json"  # which run of MLflow a resumed run continues
_CALLBACKS = {
    "tensorboard": "TensorBoardCallback",
    "wandb": "WandbCallback",
    "mlflow": "MLflowCallback",
}
_UNPROTECTED = (
    "losses on texts, numbers of users drawn and how far clips reached are not protected by the "
    "guarantee"
)


def loggers_for(config: Config) -> tuple[str, ...]:
    """The loggers of a run: those that were asked for, by default TensorBoard if installed."""
    asked = config.run.report_to
    if asked is None:
        return ("tensorboard",) if _installed("tensorboard") else ()
    return tuple(dict.fromkeys(asked))


def require_loggers(config: Config) -> None:
    """Refuse a logger whose library is not installed, before anything is begun."""
    for name in config.run.report_to or ():
        if not _installed(name):
            raise UserError(
                f"run.report_to {name}: its library is not installed; run "
                f"`pip install 'uedp[{name}]'`, or leave it out"
            )
    if "wandb" in loggers_for(config) and os.environ.get("WANDB_LOG_MODEL", "false") != "false":
        raise UserError(
            "WANDB_LOG_MODEL: a run does not upload its model; unset it, and publish the model "
            "with its card when it is finished"
        )


def warning_for(config: Config) -> str | None:
    """What a person must know before figures of this run go to other programs."""
    away = [words for name in loggers_for(config) if (words := _sent_to(name))]
    if away:
        return f"run.report_to: {' and '.join(away)}; {_UNPROTECTED}"
    if set(loggers_for(config)) - {"tensorboard"}:
        return f"run.report_to: what is logged stays on this machine; {_UNPROTECTED}"
    return None


def _mlflow() -> Any:
    return importlib.import_module("mlflow")


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _sent_to(name: str) -> str | None:
    """Where a logger sends its figures, in words; None if they stay on this machine."""
    if name == "wandb" and os.environ.get("WANDB_MODE") not in ("offline", "disabled"):
        return "Weights & Biases sends figures to its server"
    if name == "mlflow":
        mlflow = _mlflow()
        address = str(mlflow.get_tracking_uri()) if mlflow.is_tracking_uri_set() else ""
        if address.partition(":")[0] not in ("", "file", "sqlite") and ":" in address:
            return "MLflow sends figures to its server"
    return None


class Loggers:
    """The loggers of a run, from its first round to its last.

    Args:
        run: the name of the run, for the programs that show several.
        done: rounds done before; `logged`: the last round that was logged already.

    Guarantees:
      - no round is logged twice, also after a process was killed
      - a logger that fails is switched off with a warning; training goes on
      - variables of the environment are as before when it is closed
    """

    def __init__(
        self, config: Config, out: Path, run: str, done: int, logged: int, say: Say
    ) -> None:
        self._say, self._logged, self._purged = say, max(done, logged), done
        self._names, self._out = loggers_for(config), out
        self._callbacks: dict[str, TrainerCallback] = {}
        self._held = ExitStack()
        if not self._names:
            return
        from transformers import TrainerControl, TrainerState, TrainingArguments

        rounds = config.privacy.rounds
        self._args: Any = TrainingArguments(
            output_dir="uedp", run_name=run, max_steps=rounds, report_to=[], use_cpu=True
        )
        # shown as the settings of a run: its own, in place of the Trainer's
        shown = shown_settings(config)
        self._args.to_dict = lambda: dict(shown)
        self._args.to_json_string = lambda: json.dumps(shown, indent=2)
        self._state = TrainerState(max_steps=rounds, global_step=done)
        self._control = TrainerControl()
        try:
            for name in self._names:
                self._begin(name, run)
        except BaseException:
            self.close()
            raise

    def log(self, row: Mapping[str, float], measures: Mapping[str, float]) -> None:
        """Log a round, and measures on other users, if any."""
        number = int(row["round"])
        self._logged_or_not(number, row, measures)
        self._logged = max(self._logged, number)

    def _logged_or_not(
        self, number: int, row: Mapping[str, float], measures: Mapping[str, float]
    ) -> None:
        values = {name: value for name, value in row.items() if name != "round"}
        values |= {f"eval_{name}": value for name, value in measures.items()}
        for name, callback in list(self._callbacks.items()):
            if number <= self._logged and name != "tensorboard":  # whose old events are purged
                continue
            self._state.global_step = number
            try:
                callback.on_log(self._args, self._state, self._control, logs=dict(values))
            except Exception as error:  # of the library, its server or the disk
                del self._callbacks[name]
                self._say(f"warning: {name} failed and is switched off: {_brief(error)}")

    def close(self) -> None:
        for name, callback in self._callbacks.items():
            with suppress(Exception):  # the figures are in metrics.jsonl
                if name == "mlflow":
                    _mlflow().flush_async_logging()
                callback.on_train_end(self._args, self._state, self._control)
        self._callbacks.clear()
        self._held.close()

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self, name: str, run: str) -> None:
        from transformers import integrations

        options: dict[str, Any] = {}
        try:
            if name == "tensorboard":
                from torch.utils.tensorboard import SummaryWriter

                folder = str(self._out / "tensorboard")
                options["tb_writer"] = SummaryWriter(folder, purge_step=self._purged + 1)
            elif name == "wandb":
                self._begin_wandb(run)
            else:
                self._prepare_mlflow()
            callback = getattr(integrations, _CALLBACKS[name])(**options)
            callback.on_train_begin(self._args, self._state, self._control)
        except Exception as error:  # of the library or its server
            raise UserError(
                f"run.report_to {name}: cannot begin ({_brief(error)}); no round is lost: mend it, "
                "or leave it out, and continue with `resume=True`"
            ) from error
        self._callbacks[name] = callback
        if name == "mlflow" and (active := _mlflow().active_run()) is not None:
            told = json.dumps({"mlflow": active.info.run_id})
            write_atomically(self._out / FILE, f"{told}\n")

    def _begin_wandb(self, run: str) -> None:
        """One run there for one run here; without the console, the code and the machine's name.

        The callback takes a run that there is. It would begin one by the environment, which is
        read once in a process.
        """
        wandb: Any = importlib.import_module("wandb")
        if wandb.run is not None:  # the caller's
            return
        off = ("disable_git", "disable_code", "x_disable_meta", "x_disable_machine_info")
        begun = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "uedp"),
            id=os.environ.get("WANDB_RUN_ID", run),
            name=os.environ.get("WANDB_NAME", run),
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(self._out)),
            settings=wandb.Settings(console="off", **dict.fromkeys(off, True)),
        )
        self._held.callback(begun.finish)

    def _prepare_mlflow(self) -> None:
        """Set the variables that the callback reads, where a person has not set them."""
        mlflow = _mlflow()
        before = {name: os.environ.get(name) for name in _mlflow_variables()}
        self._held.callback(_restore_mlflow_variables, before)
        tags = {"mlflow.source.name": "uedp", "mlflow.user": "uedp"}  # not a path and a login
        variables = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_EXPERIMENT_NAME": "uedp",
            "MLFLOW_RUN_CONTEXT": json.dumps(tags),
        }
        if not mlflow.is_tracking_uri_set():
            # a folder of the run; the default of MLflow needs a database
            variables["MLFLOW_TRACKING_URI"] = (self._out / "mlflow").resolve().as_uri()
            variables["MLFLOW_ALLOW_FILE_STORE"] = "true"
        with suppress(OSError, ValueError, KeyError, TypeError):
            variables["MLFLOW_RUN_ID"] = str(parse_json((self._out / FILE).read_bytes())["mlflow"])
        for name, value in variables.items():
            os.environ.setdefault(name, value)


def _mlflow_variables() -> list[str]:
    return [name for name in os.environ if name.startswith(("MLFLOW_", "_MLFLOW_"))]


def _restore_mlflow_variables(before: Mapping[str, str | None]) -> None:
    """As they were: MLflow also sets some by itself, for programs that it may start."""
    for name in _mlflow_variables():
        if name not in before:
            del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if value is not None})


def shown_settings(config: Config) -> dict[str, Any]:
    """The settings of a run without paths and words that people typed."""
    privacy = config.privacy.model_dump(mode="json", exclude={"chosen_by", "seed"})
    return {
        **{f"privacy/{name}": value for name, value in privacy.items()},
        **{f"optimiser/{k}": v for k, v in config.optimiser.model_dump(mode="json").items()},
    }


def _brief(error: Exception) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 200 else words[:197] + "..."
