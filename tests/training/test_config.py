from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from uedp.errors import UserError
from uedp.training import config
from uedp.training.config import Config, load_config, parse_config

BASE = {
    "privacy": {"epsilon": 8},
    "data": {"train": "corpus"},
    "model": {"name": "gpt2"},
}


def changed(**changes):
    """BASE with changes, given as section__field."""
    values = {section: dict(fields) for section, fields in BASE.items()}
    for path, value in changes.items():
        section, field = path.split("__")
        values.setdefault(section, {})[field] = value
    return values


def refusal(values, *changes) -> str:
    with pytest.raises(UserError) as refused:
        parse_config(values, "my.yaml", changes)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_privacy_comes_first():
    assert next(iter(Config.model_fields)) == "privacy"
    assert parse_config(BASE).to_yaml().startswith("privacy:")


def test_a_config_survives_yaml(tmp_path):
    config = parse_config(
        changed(
            privacy__delta=1e-7,
            privacy__seed=2**63 - 1,
            data__evaluate=Path("held/out"),
            model__targets=["q_proj", "v_proj"],
            task__kind="classification",
            task__labels=["b", "a"],
            optimiser__rate=1e-5,
        )
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "config.yaml") == config
    assert config.task.labels == ("b", "a")  # the order means something


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError):
        parse_config(BASE).privacy.rounds = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"privacy__epsilon": 0}, "privacy.epsilon 0: Input should be greater than 0"),
        ({"privacy__epsilon": -1}, "privacy.epsilon -1:"),
        ({"privacy__epsilon": float("inf")}, "privacy.epsilon inf: Input should be a finite"),
        ({"privacy__epsilon": float("nan")}, "privacy.epsilon nan:"),
        ({"privacy__epsilon": "much"}, "privacy.epsilon 'much':"),
        ({"privacy__delta": 1}, "privacy.delta 1:"),
        ({"privacy__delta": 0}, "privacy.delta 0:"),
        ({"privacy__rounds": 0}, "privacy.rounds 0:"),
        ({"privacy__rounds": 2.5}, "privacy.rounds 2.5:"),
        ({"privacy__user_rate": 0}, "privacy.user_rate 0:"),
        ({"privacy__user_rate": 1.1}, "privacy.user_rate 1.1:"),
        ({"privacy__update_clip": float("inf")}, "privacy.update_clip inf:"),
        ({"privacy__entity_share": 2.1}, "privacy.entity_share 2.1:"),
        ({"privacy__seed": -1}, "privacy.seed -1:"),
        (
            {"privacy__method": "magic"},
            "privacy.method 'magic': no method 'magic'; choose deidentified",
        ),
        ({"privacy__noise": 1}, "privacy: give either epsilon or noise"),
        ({"privacy__noise": -1, "privacy__epsilon": None}, "privacy.noise -1:"),
        ({"privacy__epsilon": None}, "privacy: give either epsilon or noise"),
        ({"privacy__method": "noiseless"}, "privacy: noiseless adds no noise; leave out epsilon"),
        ({"privacy__method": "uedp-alg"}, "privacy: uedp-alg takes the paper's z as noise"),
        (
            {
                "privacy__method": "uedp-alg",
                "privacy__epsilon": None,
                "privacy__noise": 1,
                "privacy__sentences_per_user": 3,
            },
            "privacy: uedp-alg uses all sentences it samples; leave out sentences_per_entity",
        ),
        (
            {"privacy__epsilom": 3},
            "privacy.epsilom: no such field; did you mean privacy.epsilon?",
        ),
        ({"optimizer__rate": 3}, "optimizer: no such field; did you mean optimiser?"),
        ({"privacy__user_rat": 3}, "privacy.user_rat: no such field; did you mean privacy.user_r"),
        ({"model__epsilon": 3}, "model.epsilon: no such field; did you mean privacy.epsilon?"),
        ({"data__ruonds": 3}, "data.ruonds: no such field; did you mean privacy.rounds?"),
        ({"epsilon__x": 3}, "epsilon: no such field; did you mean privacy.epsilon?"),
        ({"optimiser__lr": 3}, "optimiser.lr: no such field; did you mean optimiser.rate?"),
        ({"run__time": "soon"}, "run.time 'soon': write a number with s, m, h or d"),
        ({"run__time": "0s"}, "run.time 0.0: Input should be greater than 0"),
        ({"model__train": "last"}, "model.train 'last':"),
        ({"model__max_tokens": 1}, "model.max_tokens 1:"),
        ({"model__dropout": 1}, "model.dropout 1:"),
        ({"task__labels": ["a"]}, "task.labels ['a']: name at least two labels"),
        ({"task__labels": ["a", "a"]}, "task.labels ['a', 'a']: name at least two labels, each"),
        ({"run__checkpoint_seconds": -1}, "run.checkpoint_seconds -1:"),
    ],
)
def test_a_bad_field_is_named_with_its_value(changes, complaint):
    assert refusal(changed(**changes)).startswith(f"my.yaml: {complaint}")


def test_an_option_of_a_method_is_suggested():
    values = changed(privacy__method="uedp-alg", privacy__epsilon=None, privacy__noise=1)
    assert "method_options.estimater: no such field; did you mean estimator?" in refusal(
        values, "method_options.estimater=f_E"
    )


def test_what_resembles_nothing_gets_no_suggestion():
    assert refusal(changed(model__qqq=3)) == "my.yaml: model.qqq: no such field"
    assert refusal({**BASE, "more": {}}) == "my.yaml: more: no such field"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1.5 h", 5400), (45, 45), ("7", 7)],
)
def test_a_duration_has_a_unit(text, seconds):
    assert parse_config(changed(run__time=text)).run.time == seconds


def test_a_config_knows_which_fields_were_set():
    assert parse_config(BASE).privacy.model_fields_set == {"epsilon"}
    given = changed(privacy__rounds=None, privacy__delta=1e-5)
    assert parse_config(given).privacy.model_fields_set == {"epsilon", "delta"}
    assert parse_config(BASE, "", ["privacy.user_rate="]).privacy.user_rate == 0.1


def test_a_missing_field_is_named():
    assert refusal({"privacy": {"epsilon": 8}, "data": {"train": "c"}}) == (
        "my.yaml: model: is missing"
    )
    assert "model.name: is missing" in refusal({**BASE, "model": None})
    assert refusal({**BASE, "model": "gpt2"}).startswith("my.yaml: model 'gpt2':")
    assert "no such field" in refusal({**BASE, "more": {}})


def test_changes_override_fields():
    changes = ["privacy.epsilon=4", "optimiser.rate=1e-4", "model.targets=[a, b]", "run.device=cpu"]
    config = parse_config(BASE, "my.yaml", changes)
    assert config.privacy.epsilon == 4
    assert config.optimiser.rate == 1e-4  # to YAML this is a text
    assert config.model.targets == ("a", "b")
    assert config.run.device == "cpu"
    assert BASE["privacy"] == {"epsilon": 8}  # what was handed in is left alone
    method = parse_config(BASE, "", ["privacy.epsilon=", "privacy.method=noiseless"]).privacy.method
    assert method == "noiseless"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("epsilon=4", "change 'epsilon=4': write section.field=value, as privacy.epsilon=4"),
        ("privacy.epsilon", "change 'privacy.epsilon': write section.field=value"),
        ("privacy.=4", "change 'privacy.=4': write"),
        ("privacy.epsilon=[", "change 'privacy.epsilon=[': the value cannot be read"),
        ("privacy.epsilon=0", "my.yaml: privacy.epsilon 0:"),
        ("privacies.epsilon=0", "my.yaml: privacies: no such field"),
    ],
)
def test_a_bad_change_is_named(change, complaint):
    assert refusal(BASE, change).startswith(complaint)


HOSTILE = {
    "a section twice": ("privacy: {epsilon: 1}\nprivacy: {epsilon: 9}\n", "'privacy' stands twice"),
    "a field twice": ("privacy:\n  epsilon: 1\n  epsilon: 9\n", "'epsilon' stands twice"),
    "a key twice in JSON": ('{"privacy": {"seed": 1, "seed": 2}}', "'seed' stands twice"),
    "a number twice": ("privacy: {1: a, 1.0: b}", "stands twice"),
    "an alias": ("data: &a {train: x}\nmodel: *a\n", "line 1: an anchor or alias"),
    "a merged mapping": ("data: {train: x}\nmodel: {<<: {name: y}}\n", "line 2: << is not known"),
    "aliases of aliases": (
        "a: &a [x, x, x]\n" + "".join(f"{c}: &{c} [*{b}, *{b}]\n" for b, c in pairwise("abcdefgh")),
        "an anchor or alias",
    ),
    "endless nesting": ("privacy: " + "[" * 100_000, "nested too deeply"),
    "nesting by indent": ("".join(f"{' ' * n}a:\n" for n in range(5000)), "nested too deeply"),
    "a date that is none": ("privacy: {epsilon: 2001-02-31}", "day is out of range"),
    "a tag that does not fit": ("privacy: {epsilon: !!float x}", "could not convert"),
    "a truth that is none": ("privacy: {epsilon: !!bool 3}", "'3'"),
    "an object of Python": ("privacy: !!python/object/apply:os.system [x]", "could not determine"),
    "a key that is a list": ("? [a, b]\n: c\n", "key"),
    "a key that is a mapping": ("? {a: b}\n: c\n", "key"),
    "a control character": ("privacy: \x00", "not YAML"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_in_one_line(case, tmp_path):
    text, complaint = HOSTILE[case]
    path = tmp_path / "my.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        load_config(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert complaint in message
    assert "\n" not in message


def test_changed_values_are_parsed_strictly(tmp_path):
    for text in ("{a: 1, a: 2}", "[" * 1000, "&x [*x]", "2001-02-31"):
        with pytest.raises(UserError, match=r"change '.*': the value cannot be read"):
            parse_config({}, changes=[f"privacy.epsilon={text}"])


def test_files_that_are_not_configs_are_refused(tmp_path):
    path = tmp_path / "my.yaml"
    for text, complaint in [
        ("", "must have sections"),
        ("- a\n- b", "must have sections"),
        ("privacy: [", "not YAML"),
        ("1: 2", "my.yaml: "),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=complaint) as refused:
            load_config(path)
        assert "\n" not in str(refused.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not YAML"):
        load_config(path)
    with pytest.raises(UserError, match=r"nowhere.yaml: cannot be read: No such file"):
        load_config(tmp_path / "nowhere.yaml")


def test_an_empty_section_has_its_defaults(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(parse_config(BASE).to_yaml().split("optimiser:")[0] + "optimiser:\n")
    assert load_config(path) == parse_config(BASE)


def test_numbers_can_be_labels():
    assert parse_config(changed(task__labels=[1, 2])).task.labels == ("1", "2")


@pytest.mark.parametrize("path", sorted(config.PRESETS.glob("*.yaml")), ids=lambda p: p.stem)
def test_presets_need_only_data(path):
    """The paper's settings: clip .1, users .05, entities .5, extended 1."""
    assert config.preset_path(path.stem) == path
    found = config.load_config(path, ["data.train=corpus"])
    assert found.privacy.method == "uedp-alg"
    assert (found.privacy.update_clip, found.privacy.user_rate) == (0.1, 0.05)
    assert (found.privacy.entity_rate, found.privacy.extended_rate) == (0.5, 1.0)
    assert config.preset_path("no such preset") is None


def test_probes_have_their_own_defaults():
    probe = {"name": "bert", "train": "probe"}
    values = {
        "privacy": {"epsilon": 8},
        "data": {"train": "a", "evaluate": "b"},
        "task": {"kind": "classification"},
        "model": probe,
    }
    suited = parse_config(values)
    plain = parse_config({**values, "model": {"name": "bert", "train": "full"}})
    assert (suited.privacy.update_clip, suited.optimiser.rate) == (0.1, 0.1)
    assert (suited.optimiser.decay, suited.optimiser.average) == ("none", 0.98)
    assert (plain.privacy.update_clip, plain.optimiser.decay) == (1.0, "linear")
    told = parse_config({**values, "optimiser": {"rate": 0.2}}, changes=["privacy.update_clip=2"])
    assert (told.privacy.update_clip, told.optimiser.rate) == (2.0, 0.2)
    assert told.optimiser.decay == "none"
    again = parse_config(yaml.safe_load(suited.to_yaml()))
    assert again == suited


def test_noisy_adapters_have_their_own_defaults():
    values = {"privacy": {"epsilon": 8}, "data": {"train": "a"}, "model": {"name": "gpt2"}}
    for method in ("rotation", "user-level"):
        found = parse_config({**values, "privacy": {"epsilon": 8, "method": method}}).optimiser
        assert (found.rate, found.decay, found.warm_up, found.average) == (3e-3, "none", 0, 0.95)
    assert parse_config(values) == parse_config(
        {**values, "privacy": {"epsilon": 8, "method": "rotation"}}
    )
    others = (
        {"privacy": {"method": "noiseless"}},
        {"privacy": {"method": "uedp-alg", "noise": 2.5}},
        {"model": {"name": "gpt2", "train": "full"}},
        {"model": {"name": "awd-lstm", "tokenizer": "bytes"}},
        {"task": {"kind": "classification"}},
    )
    for other in others:
        assert parse_config({**values, **other}).optimiser == config.OptimiserSettings()
    told = parse_config({**values, "optimiser": {"rate": 1e-3, "decay": "cosine"}}).optimiser
    assert (told.rate, told.decay, told.average) == (1e-3, "cosine", 0.95)
    assert parse_config({**values, "optimiser": {"name": "sgd"}}).optimiser.rate == 1e-3
    assert parse_config(yaml.safe_load(parse_config(values).to_yaml())) == parse_config(values)


@pytest.mark.parametrize("train", ["lora", "lora-b", "probe", "full"])
def test_sections_may_be_objects(train):
    model, privacy = {"name": "gpt2", "train": train}, {"epsilon": 8}
    plain = parse_config({"privacy": privacy, "data": {"train": "a"}, "model": model})
    objects = config.Config(
        privacy=privacy,
        data=config.DataSettings(train="a"),
        model=config.ModelSettings(**model),
    )
    assert objects == plain
    stated = config.Config(
        privacy=config.PrivacySettings(**privacy),
        data={"train": "a"},
        model=config.ModelSettings(**model),
    )
    assert stated.optimiser == plain.optimiser
