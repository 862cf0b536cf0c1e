"""What TensorBoard, Weights & Biases and MLflow get, read back from their own files."""

import contextlib
import json
import os
import re
from pathlib import Path

import mlflow
import pytest
import transformers
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from tests.training import worlds
from tests.training.runs import metrics, refused, stopping_after
from uedp.accounting.certificate import load_certificate
from uedp.accounting.model_files import model_files
from uedp.training import api, loggers, loop
from uedp.training.loggers import Loggers, loggers_for, shown_settings, warning_for

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB__DISABLE_STATS": "true"}


def variables() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(("WANDB", "MLFLOW", "HF_MLFLOW"))}


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    """No network, and nothing of this machine's own settings."""
    for name in variables():
        monkeypatch.delenv(name)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)  # where both would write by default
    before = variables()
    yield
    assert variables() == before


def events(run: Path) -> EventAccumulator:
    found = EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    return found


def scalars(run: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(run).Scalars(tag)]


def records(path: Path):
    """The records of a file of Weights & Biases: LevelDB's log format after seven bytes."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block is padding
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def wandb_rows(run: Path) -> list[dict]:
    """The history in the files that an offline run left, the oldest first."""
    rows = []
    for path in sorted(run.rglob("*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                keys = {item.key or "/".join(item.nested_key): item for item in items}
                rows.append({key: json.loads(item.value_json) for key, item in keys.items()})
    return rows


def mlflow_runs(run: Path) -> list:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    try:
        client = mlflow.MlflowClient((run / "mlflow").resolve().as_uri())
        experiments = [one.experiment_id for one in client.search_experiments()]
        found = client.search_runs(experiments)
        return [(one, client.get_metric_history(one.info.run_id, "users")) for one in found]
    finally:
        del os.environ["MLFLOW_ALLOW_FILE_STORE"]


# --- TensorBoard ---------------------------------------------------------------------------------


def test_tensorboard_events_hold_what_the_metrics_do(train, tmp_path):
    train(run__evaluate_every=1)
    rows = metrics(tmp_path / "run")
    tags = events(tmp_path / "run").Tags()["scalars"]
    assert {"train/users", "train/rate", "train/sentences_clipped", "eval/perplexity"} <= set(tags)
    assert not any("round" in tag for tag in tags)
    expected = [(row["round"], pytest.approx(row["users"])) for row in rows]
    assert scalars(tmp_path / "run", "train/users") == expected
    expected = [(row["round"], pytest.approx(row["perplexity"])) for row in rows[:-1]]
    assert scalars(tmp_path / "run", "eval/perplexity") == expected


def test_tensorboard_is_the_default_where_it_is_installed(monkeypatch):
    config = worlds.config("m")
    assert loggers_for(config) == ("tensorboard",)
    monkeypatch.setattr(loggers, "_installed", lambda name: False)
    assert loggers_for(config) == ()


def test_nothing_is_logged_if_nothing_is_asked_for(train, tmp_path):
    train(run__report_to=())
    assert not (tmp_path / "run" / "tensorboard").exists()


# --- Weights & Biases, MLflow --------------------------------------------------------------------


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run with both, stopped and resumed, after another one in the same process."""
    folder = tmp_path_factory.mktemp("resumed")
    model = worlds.model(folder, "gpt2")
    data = worlds.training_data(folder / "corpus")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setattr("uedp.accounting.statement.MISSED_CASES", ())
        for name, value in OFFLINE.items():
            patch.setenv(name, value)
        chosen = {"privacy__chosen_by": "Jane Roe of Acme", "privacy__rounds": 3}
        config = worlds.config(model, run__report_to="wandb,mlflow", **chosen)
        other = worlds.config(model, run__report_to="wandb", privacy__rounds=1)
        loop.run(other, folder / "other", data=data)
        stopped = stopping_after(2)
        loop.run(config, folder / "run", data=data, progress=stopped, say=said.append)
        loop.run(config, folder / "run", data=data, resume=True)
    (folder / "said").write_text("\n".join(said))
    return folder


def test_wandb_gets_every_round_once(resumed):
    assert wandb.run is None
    run = resumed / "run"
    rows = wandb_rows(run)
    assert [row["train/global_step"] for row in rows] == [1, 2, 3]
    assert [row["train/users"] for row in rows] == [row["users"] for row in metrics(run)]
    names = {path.name.split("-", 3)[3] for path in (run / "wandb").glob("offline-run*")}
    assert names == {json.loads((run / "run.json").read_text())["run"]}  # both parts are one run
    assert len(wandb_rows(resumed / "other")) == 1
    assert not (resumed / "wandb").exists()


def test_mlflow_gets_every_round_once(resumed):
    ((found, history),) = mlflow_runs(resumed / "run")
    assert found.info.status == "FINISHED"
    assert [(point.step, point.value) for point in history] == [
        (row["round"], row["users"]) for row in metrics(resumed / "run")
    ]
    assert found.data.params["privacy/rounds"] == "3"
    assert not (resumed / "mlflow.db").exists()


def test_files_of_loggers_are_no_part_of_the_model(resumed):
    run = resumed / "run"
    assert {"wandb", "mlflow", "loggers.json"} <= {path.name for path in run.iterdir()}
    assert model_files(run) == load_certificate(run).files


def test_no_path_name_or_text_is_sent(resumed):
    files = [
        path
        for folder in ("wandb", "mlflow")
        for path in (resumed / "run" / folder).rglob("*")
        if path.is_file() and path.suffix != ".log" and path.name != "meta.yaml"
    ]
    sent = b"".join(path.read_bytes() for path in files)
    assert sum(b"rotation" in path.read_bytes() for path in files) >= 2  # settings are in there
    for secret in ("Jane", "gpt2", "is good", str(resumed), "site-packages", "_name_or_path"):
        assert secret.encode() not in sent


def test_a_person_is_warned_before_the_first_round(resumed):
    said = (resumed / "said").read_text()
    assert "warning: run.report_to: what is logged stays on this machine; losses on texts" in said


def test_rounds_that_a_killed_process_logged_are_not_logged_again(train, tmp_path):
    """Without a ledger, rounds after the last checkpoint are done again."""
    options = {"privacy__method": "noiseless", "run__report_to": "mlflow,tensorboard"}
    train(progress=stopping_after(2), **options)
    run = tmp_path / "run"
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "users": 7}\n')  # and then it was killed
    train(resume=True, **options)
    ((_, history),) = mlflow_runs(run)
    assert [point.step for point in history] == [1, 2, 4]
    assert [step for step, _ in scalars(run, "train/users")] == [1, 2, 3, 4]
    assert [row["round"] for row in metrics(run)] == [1, 2, 3, 4]


def test_a_logger_that_fails_is_switched_off_and_training_goes_on(train, tmp_path, monkeypatch):
    def fail(self, args, state, control, **values):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(transformers.integrations.MLflowCallback, "on_log", fail)
    train(run__report_to=["mlflow", "tensorboard"])
    said = [line for line in train.said if "switched off" in line]
    assert said == ["warning: mlflow failed and is switched off: no route to host"]
    assert [step for step, _ in scalars(tmp_path / "run", "train/users")] == [1, 2, 3, 4]


def test_a_logger_that_cannot_begin_is_refused_and_costs_no_round(train, tmp_path, monkeypatch):
    def fail(self, *arguments, **values):
        raise ConnectionError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(transformers.integrations.MLflowCallback, "on_train_begin", fail)
        said = refused(lambda: train(run__report_to="mlflow"))
    assert said.startswith(
        "run.report_to mlflow: cannot begin (no route to host); no round is lost"
    )
    assert train(resume=True).certificate.rounds_spent == 4


# --- before a run --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_library_is_refused_with_its_command_before_anything(
    name, train, tmp_path, monkeypatch
):
    monkeypatch.setattr(loggers, "_installed", lambda asked: asked != name)
    said = refused(lambda: train(run__report_to=name))
    command = f"run `pip install 'uedp[{name}]'`, or leave it out"
    assert said == f"run.report_to {name}: its library is not installed; {command}"
    assert not (tmp_path / "run").exists()
    assert refused(lambda: api.preview(worlds.config("m", run__report_to=name))) == said


def test_the_extras_are_those_of_the_package():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for name in loggers._CALLBACKS:
        assert re.search(rf"^{name} = ", project, re.MULTILINE)


def test_uploading_the_model_is_refused(train, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("WANDB_LOG_MODEL", "end")
        said = refused(lambda: train(run__report_to="wandb"))
    assert "a run does not upload its model" in said


@pytest.mark.parametrize(
    ("names", "changed", "said"),
    [
        ("wandb", {"WANDB_MODE": "online"}, "Weights & Biases sends figures to its server; losses"),
        ("wandb", {}, "what is logged stays on this machine; losses"),
        ("mlflow", {"MLFLOW_TRACKING_URI": "https://host:5000"}, "MLflow sends figures to its"),
        ("mlflow", {"MLFLOW_TRACKING_URI": "databricks://p"}, "MLflow sends figures to its"),
        ("mlflow", {"MLFLOW_TRACKING_URI": "sqlite:///x.db"}, "stays on this machine"),
        ("mlflow", {"MLFLOW_TRACKING_URI": "/tmp/x"}, "stays on this machine"),
        ("tensorboard", {}, None),
    ],
)
def test_a_person_is_warned_that_figures_are_not_protected(names, changed, said, monkeypatch):
    with monkeypatch.context() as patch:
        for name, value in changed.items():
            patch.setenv(name, value)
        warning = warning_for(worlds.config("m", run__report_to=names))
    if said is None:
        assert warning is None
    else:
        assert said in warning
        assert "numbers of users drawn and how far clips reached are not protected" in warning


def test_settings_are_shown_without_words_and_paths():
    shown = shown_settings(worlds.config("/home/acme/m", privacy__chosen_by="Jane"))
    assert shown["privacy/user_rate"] == 0.5
    assert shown["optimiser/rate"] == 0.01
    assert "Jane" not in json.dumps(shown)
    assert "acme" not in json.dumps(shown)


def test_the_environment_is_as_before_also_after_a_failure(tmp_path, monkeypatch):
    def fail(self, *arguments, **values):
        raise RuntimeError("broken")

    monkeypatch.setattr(transformers.integrations.MLflowCallback, "on_train_begin", fail)
    before = variables()
    config = worlds.config("m", run__report_to="mlflow")
    said = refused(lambda: Loggers(config, tmp_path, "run", 0, 0, print))
    assert "cannot begin (broken)" in said
    assert variables() == before
