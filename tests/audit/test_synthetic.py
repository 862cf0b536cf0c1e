"""The audit of synthetic text: copies raise an alarm, text by other people does not."""

import json
import random
import shutil
from pathlib import Path

import pytest

import uedp
from tests.models import tiny
from uedp.audit import synthetic
from uedp.audit.secrets import Secret
from uedp.audit.synthetic import audit_texts, read_texts
from uedp.errors import UserError
from uedp.sample.generate import sample_sentences
from uedp.training.decoding import TokenSampling
from uedp.training.synthetic import write_texts

TEXTS = 150


class World:
    """People of one kind in three parts: trained on, held out, and never seen."""

    def __init__(self, folder: Path) -> None:
        sentences = list(sample_sentences(7, 320))
        users = sorted({sentence.user for sentence in sentences})
        random.Random(7).shuffle(users)
        cuts = {user: 0 if i < 160 else 1 if i < 240 else 2 for i, user in enumerate(users)}
        self.parts = [[s for s in sentences if cuts[s.user] == part] for part in range(3)]
        self.train, self.others = folder / "train", folder / "others"
        for part, out in enumerate((self.train, self.others)):
            uedp.detect(self.parts[part], out, uedp.Detection(("labels",)))

    def texts(self, copied: int, seed: int = 0) -> list[str]:
        """Text by people who were never seen, and copies of training text."""
        rng = random.Random(seed)
        copies = rng.sample([s.text for s in self.parts[0]], copied)
        return copies + rng.sample([s.text for s in self.parts[2]], TEXTS - copied)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def write(path: Path, texts: list[str]) -> Path:
    rows = ({"id": i, "text": text, "prompt": ""} for i, text in enumerate(texts))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def audit(world: World, folder: Path, texts: list[str], **options):
    return audit_texts(write(folder / "t.jsonl", texts), world.train, world.others, **options)


def test_text_by_other_people_raises_no_alarm(world, tmp_path):
    """An alarm has a chance of at most 5%; benchmarks/synthetic.py measures it."""
    found = audit(world, tmp_path, world.texts(0))
    assert found.alarms == ()
    assert min(found.p_values.values()) > found.level
    assert "no proof" in found.verdict


def test_copies_of_training_text_raise_an_alarm(world, tmp_path):
    found = audit(world, tmp_path, world.texts(60))
    assert "own runs: whole" in found.alarms
    assert found.runs.own["whole"][0] > 30
    assert found.runs.people["whole"].held_out <= 1
    assert "ALARM" in found.verdict
    every = audit(world, tmp_path, world.texts(TEXTS))
    assert set(every.alarms) == set(every.p_values)
    assert every.nearest.share > every.nearest.high
    assert every.runs.words.low > 0
    assert every.names.alone["low"] > every.names.alone_held_out["high"]


def test_copies_of_held_out_text_raise_no_alarm(world, tmp_path):
    texts = random.Random(1).sample([s.text for s in world.parts[1]], TEXTS)
    found = audit(world, tmp_path, texts)
    assert found.alarms == ()
    assert found.runs.people["whole"].held_out > 30
    assert found.runs.words.excess < 0


def test_the_closest_texts_are_shown_but_never_saved(world, tmp_path):
    copied = max((s.text for s in world.parts[0]), key=lambda text: len(text.split()))
    found = audit(world, tmp_path, [*world.texts(0), copied])
    id_, words, run = found.closest[0]
    assert id_ == TEXTS
    assert words == len(run.split()) >= 16
    saved = json.dumps(found.to_json())
    assert "closest" not in saved
    for row in found.closest:
        if row[1] >= 4:
            assert row[2] not in saved
    for name in world.parts[0][0].user, "Kovacs":
        assert f'"{name}"' not in saved


SECRETS = [
    Secret("Call Ann at", f"212-555-{number:04d}", "212-555-####", repeats, repeats > 0)
    for number, repeats in [(i, 1 + i % 2) for i in range(20)] + [(5000 + i, 0) for i in range(20)]
]


def test_planted_secrets_are_held_against_those_left_out(world, tmp_path):
    told = [f"You can call me at {secret.secret}!" for secret in SECRETS[:12]]
    found = audit(world, tmp_path, [*world.texts(0), *told], secrets=SECRETS).secrets
    assert (found.planted, found.left_out) == (20, 20)
    assert found.emitted["emitted"] == 12
    assert found.emitted["low"] < 12 / 20 < found.emitted["high"]
    assert found.left_out_emitted["emitted"] == 0
    assert 0 < found.left_out_emitted["high"] < 0.2
    assert found.by_users == {"1": (6, 10), "2": (6, 10)}
    assert found.p_value < 1e-4
    mixed = [f"at {secret.secret}" for secret in SECRETS[::4]]
    fair = audit(world, tmp_path, [*world.texts(0), *mixed], secrets=SECRETS)
    assert fair.secrets.p_value > 0.5
    with pytest.raises(UserError, match="all planted, or none is"):
        audit(world, tmp_path, told, secrets=SECRETS[:5])


def test_quality_is_that_of_as_many_texts_each(world, tmp_path):
    quality = audit(world, tmp_path, world.texts(0)).quality
    assert {side.texts for side in quality.diversity.values()} == {TEXTS}
    assert list(quality.diversity) == ["synthetic", "training", "held out"]
    dull = audit(world, tmp_path, ["the same words all over again"] * TEXTS).quality
    assert dull.diversity["synthetic"].duplicates > 0.99
    assert dull.diversity["synthetic"].distinct_2 < quality.diversity["synthetic"].distinct_2
    assert dull.word_divergence["synthetic"] > 2 * quality.word_divergence["synthetic"]
    assert dull.pair_perplexity["synthetic"] > 2 * quality.pair_perplexity["synthetic"]
    assert quality.pair_perplexity["synthetic"] < 1.5 * quality.pair_perplexity["training"]


def test_perplexity_under_another_model_is_measured_on_request(world, tmp_path):
    model = tiny.saved(tmp_path / "model", tiny.gpt2(layers=1))
    texts = [text[:40] for text in world.texts(0)[:8]]
    found = audit(world, tmp_path, texts, reference=str(model)).quality.perplexity
    assert list(found) == ["synthetic", "training", "held out"]
    assert all(value > 1 for value in found.values())


def test_without_held_out_people_nothing_is_tested(world, tmp_path):
    path = write(tmp_path / "t.jsonl", world.texts(60))
    found = audit_texts(path, world.train)
    assert found.p_values == {}
    assert found.alarms == ()
    assert "No test" in found.verdict
    assert "`held_out=...`" in found.remarks[0]
    assert found.runs.own["whole"][0] > 30
    assert found.runs.longest >= 16
    secret = audit_texts(path, world.train, secrets=SECRETS)
    assert list(secret.p_values) == ["secrets"]


def test_blocks_outside_of_groups_are_compared_too(world, tmp_path, monkeypatch):
    whole = audit(world, tmp_path, world.texts(60))
    monkeypatch.setattr(synthetic, "_TRAIN_GROUPS", 2)
    monkeypatch.setattr(synthetic, "_REST", 500)
    parts = audit(world, tmp_path, world.texts(60))
    assert parts.runs.own == whole.runs.own
    assert parts.runs.people == whole.runs.people
    assert parts.runs.longest == whole.runs.longest
    assert parts.nearest.share == whole.nearest.share
    assert parts.runs.words.groups == (2, whole.runs.words.groups[1])


def test_more_texts_than_are_compared_are_sampled(world, tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "_TEXTS", 100)
    monkeypatch.setattr(synthetic, "_NEAREST", 50)
    found = audit(world, tmp_path, world.texts(TEXTS))
    assert (found.texts, found.compared) == (TEXTS, 100)
    assert "100 texts drawn at random" in found.remarks[0]
    assert "own runs: whole" in found.alarms


def test_texts_are_read_line_by_line_and_errors_name_the_line(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": 7, "text": "a"}\n\n{"text": "b\\u2028"}\n')
    assert read_texts(path) == ([7, 2], ["a", "b\u2028"])
    for bad in ('"a"', "{", '{"id": 1}', '{"text": 3}'):
        path.write_text(f'{{"text": "a"}}\n{bad}\n')
        with pytest.raises(UserError, match="line 2"):
            read_texts(path)
    path.write_text('{"text": " "}\n')
    with pytest.raises(UserError, match="no texts"):
        read_texts(path)


# --- what covers the texts -----------------------------------------------------------------------


def test_the_guarantee_is_that_of_the_file_unless_it_was_changed(world, tmp_path):
    model = tiny.saved(tmp_path / "model", tiny.gpt2(layers=1))
    out = tmp_path / "t.jsonl"
    write_texts(model, out, count=4, seed=1, sampling=TokenSampling(tokens=20))
    described = json.loads((tmp_path / "t.about.json").read_text())
    stated = {"covered": True, "words": "covered", "statement": "proven", "run": "r1"}
    described["guarantee"] |= stated
    (tmp_path / "t.about.json").write_text(json.dumps(described))
    assert audit_texts(out, world.train).guarantee["covered"]
    # a run that does not verify, or another one, covers nothing
    assert not audit_texts(out, world.train, run=model).guarantee["covered"]
    shutil.copy(out, tmp_path / "bare.jsonl")
    bare = audit_texts(tmp_path / "bare.jsonl", world.train).guarantee
    assert "bare.about.json, which says where they are from, is missing" in bare["words"]
    out.write_text(out.read_text().replace('"id": 3', '"id": 4'))
    changed = audit_texts(out, world.train).guarantee
    assert not changed["covered"]
    assert "the file was changed" in changed["words"]
