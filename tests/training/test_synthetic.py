"""Texts in a file: whole, reproducible, resumable, and with the guarantee that covers them."""

import json
from pathlib import Path

import pytest

from tests.accounting.runs import ENTITIES, PUBLIC, SETUP, make_run
from tests.models import tiny
from uedp.accounting.certificate import issue
from uedp.accounting.decisions import Coverage
from uedp.errors import UserError
from uedp.training import synthetic
from uedp.training.decoding import TokenSampling
from uedp.training.synthetic import About, Prompts, about_path, read_about, read_prompts

FEW = {"count": 11, "seed": 5, "sampling": TokenSampling(tokens=8), "at_once": 3}
PROMPTS = Prompts(texts=("Hi", "", "Hello there"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.saved(tmp_path_factory.mktemp("models") / "gpt2", tiny.gpt2(layers=1))


def write(model: Path, out: Path, **changes) -> About:
    return synthetic.write_texts(model, out, **{**FEW, "prompts": PROMPTS, **changes})


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_text().split("\n")[:-1]]


def test_every_line_has_id_text_and_prompt_and_the_file_is_reproducible(model, tmp_path):
    about = write(model, tmp_path / "a.jsonl")
    found = lines(tmp_path / "a.jsonl")
    assert [list(row) for row in found] == [["id", "text", "prompt"]] * 11
    assert [row["id"] for row in found] == list(range(11))
    assert [row["prompt"] for row in found] == [PROMPTS.texts[i % 3] for i in range(11)]
    assert all(row["text"].startswith(row["prompt"]) for row in found)
    assert about == read_about(tmp_path / "a.about.json")
    assert about.complete
    assert about.counts.written == about.counts.drawn == 11
    assert about.size == (tmp_path / "a.jsonl").stat().st_size
    write(model, tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    write(model, tmp_path / "c.jsonl", seed=6)
    assert (tmp_path / "a.jsonl").read_bytes() != (tmp_path / "c.jsonl").read_bytes()


def test_a_text_does_not_depend_on_the_batch_it_is_drawn_in(model, tmp_path):
    write(model, tmp_path / "a.jsonl")
    write(model, tmp_path / "b.jsonl", at_once=11)
    write(model, tmp_path / "c.jsonl", count=5)
    assert lines(tmp_path / "a.jsonl") == lines(tmp_path / "b.jsonl")
    assert lines(tmp_path / "a.jsonl")[:5] == lines(tmp_path / "c.jsonl")


def test_what_is_dropped_is_replaced_and_counted(model, tmp_path):
    sampling = TokenSampling(tokens=1, top_k=60)
    options = {"sampling": sampling, "prompts": Prompts(), "count": 9, "at_once": 4}
    plain = write(model, tmp_path / "plain.jsonl", **options)
    assert plain.counts.duplicates > 0
    assert plain.counts.written == plain.counts.drawn == 9
    about = write(model, tmp_path / "a.jsonl", **options, drop=["duplicates", "empty"])
    texts = [row["text"] for row in lines(tmp_path / "a.jsonl")]
    assert len(set(texts)) == len(texts) == about.counts.written == 9
    assert all(text.strip() for text in texts)
    assert about.counts.drawn > 9
    known = [row["id"] for row in lines(tmp_path / "a.jsonl")]
    assert known == sorted(set(known))
    assert known[-1] == about.counts.drawn - 1


def test_texts_that_cannot_be_replaced_are_not_waited_for(model, tmp_path):
    likeliest = TokenSampling(tokens=4, temperature=0)
    out = tmp_path / "a.jsonl"
    about = write(model, out, sampling=likeliest, prompts=Prompts(), drop=["duplicates"])
    assert about.complete
    assert about.counts.model_dump() == {
        "drawn": 44,
        "written": 1,
        "empty": about.counts.empty,
        "duplicates": 43,
        "unfinished": about.counts.unfinished,
    }


def test_prompts_are_drawn_by_their_weights(model, tmp_path):
    prompts = Prompts(texts=("a", "b", "c"), weights=(3.0, 0.0, 1.0))
    short = TokenSampling(tokens=1)
    write(model, tmp_path / "a.jsonl", prompts=prompts, count=400, sampling=short, at_once=200)
    drawn = [row["prompt"] for row in lines(tmp_path / "a.jsonl")]
    assert "b" not in drawn
    assert 260 < drawn.count("a") < 340  # 300 expected, 8.7 is the standard deviation


def test_prompts_are_read_from_lines_and_from_jsonl(tmp_path):
    (tmp_path / "p.txt").write_text("Dear all,\n\nHi\r\n")
    assert read_prompts(tmp_path / "p.txt").texts == ("Dear all,", "", "Hi")
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "weight": 2}\n{"prompt": "b", "weight": 1}')
    assert read_prompts(tmp_path / "p.jsonl") == Prompts(texts=("a", "b"), weights=(2.0, 1.0))
    for bad in ('"a"', '{"prompt": 1}', '{"prompt": "a", "weight": -1}', '{"text": "a"}', "{"):
        (tmp_path / "bad.jsonl").write_text(f'{{"prompt": "x"}}\n{bad}\n')
        with pytest.raises(UserError, match="line 2: write"):
            read_prompts(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "x"}\n{"prompt": "y", "weight": 1}\n')
    with pytest.raises(UserError, match="in all lines"):
        read_prompts(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text("")
    with pytest.raises(UserError, match="no prompts"):
        read_prompts(tmp_path / "bad.jsonl")


def test_a_file_is_continued_with_its_own_settings_only(model, tmp_path):
    out = tmp_path / "a.jsonl"
    write(model, out)
    with pytest.raises(UserError, match="exists already; add `resume=True`"):
        write(model, out)
    before = out.read_bytes(), about_path(out).read_bytes()
    for changes, what in (
        ({"seed": 6}, "seed is 5, not 6"),
        ({"count": 12}, "count is 11, not 12"),
        ({"sampling": TokenSampling(tokens=8, top_p=0.5)}, "top_p is 1.0, not 0.5"),
        ({"prompts": Prompts(texts=("Hi", "", "Hello you"))}, "other prompts"),
        ({"at_once": 4}, "at_once is 3, not 4"),
        ({"drop": ["empty"]}, "drop is"),
    ):
        with pytest.raises(UserError, match=what):
            write(model, out, resume=True, **changes)
    other = tiny.saved(tmp_path / "other", tiny.llama())
    with pytest.raises(UserError, match="another model"):
        write(other, out, resume=True)
    assert before == (out.read_bytes(), about_path(out).read_bytes())
    write(model, out, resume=True, seed=None, at_once=None)  # those it was begun with
    out.write_bytes(out.read_bytes().replace(b"Hi", b"Ho", 1))
    with pytest.raises(UserError, match="was changed since"):
        write(model, out, resume=True)
    about_path(out).write_text("{}")
    with pytest.raises(UserError, match="not a description"):
        write(model, out, resume=True)


def test_impossible_requests_are_refused_and_leave_nothing(model, tmp_path):
    for changes, what in (
        ({"count": 0}, "count"),
        ({"seed": -1}, "seed"),
        ({"at_once": 0}, "at_once"),
        ({"drop": ["short"]}, "must be some of empty, duplicates, unfinished"),
        ({"sampling": TokenSampling(tokens=100)}, "too many for the model, which takes 64"),
    ):
        with pytest.raises(UserError, match=what):
            write(model, tmp_path / "a.jsonl", **changes)
    for out, what in (
        (tmp_path / "a.txt", "ends in .jsonl"),
        (tmp_path / "no" / "a.jsonl", "no such folder"),
        (model / "a.jsonl", "lies in the folder of the model"),
    ):
        with pytest.raises(UserError, match=what):
            write(model, out)
    (tmp_path / "mine.jsonl").write_text("mine")
    with pytest.raises(UserError, match=r"has no mine\.about\.json beside it"):
        write(model, tmp_path / "mine.jsonl", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]
    assert (tmp_path / "mine.jsonl").read_text() == "mine"


def test_line_breaks_of_every_kind_stay_inside_their_line():
    settings = About.model_fields["settings"].annotation.model_construct(count=9, drop=())
    text = "a\n\u2028\u2029\x85\r 'é' \"😀"
    data, _ = synthetic._kept(
        [("", text, False, False)], range(1), settings, synthetic.Counts(), set()
    )
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data)["text"] == text
    assert "é" in data.decode()


# --- what covers the texts -----------------------------------------------------------------------


def test_a_model_without_a_certificate_has_no_guarantee(model, tmp_path):
    about = write(model, tmp_path / "a.jsonl")
    assert not about.guarantee.covered
    assert "no privacy guarantee: the model has no certificate" in about.guarantee.words


def test_the_runs_guarantee_is_stated_if_it_verifies(train, tmp_path):
    train()
    run = tmp_path / "run"
    certificate = json.loads((run / "certificate.json").read_text())
    about = write(run, tmp_path / "a.jsonl")
    assert about.guarantee.covered
    assert about.guarantee.words == synthetic.COVERED
    for name in ("run", "delta", "unit"):
        assert getattr(about.guarantee, name) == certificate[name]
    assert 0 <= about.guarantee.epsilon - certificate["epsilon"] < 0.01 * certificate["epsilon"]
    assert about.guarantee.statement.startswith("The model is (")
    weights = run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    changed = write(run, tmp_path / "b.jsonl")
    assert not changed.guarantee.covered
    assert changed.guarantee.epsilon is changed.guarantee.statement is None
    assert "does not verify" in changed.guarantee.words
    with pytest.raises(UserError, match="begun with another model"):
        write(run, tmp_path / "a.jsonl", resume=True)


def test_a_run_without_a_guarantee_says_so(train, tmp_path):
    train(privacy__method="noiseless")
    about = write(tmp_path / "run", tmp_path / "a.jsonl")
    assert not about.guarantee.covered
    assert about.guarantee.epsilon is None
    assert "no privacy guarantee" in about.guarantee.words


def test_what_lies_beside_the_texts_says_nothing_of_the_training_text(train, tmp_path):
    train()
    write(tmp_path / "run", tmp_path / "a.jsonl", prompts=Prompts())
    described = (tmp_path / "a.about.json").read_text()
    for private in ("Ann", "Bob", "Eve", "Joe", str(tmp_path)):
        assert private not in described


def test_what_a_certificate_measured_or_a_person_typed_does_not_lie_beside_the_texts(tmp_path):
    """The texts are for others; so is what says which guarantee covers them."""
    measured = Coverage(
        marks=4242, sentences_found=0.8181, sentences_complete=0.7171, precision=0.6161
    )
    entities = ENTITIES.model_copy(update={"coverage": measured})
    public = PUBLIC.model_copy(update={"name": "acme.txt", "declared_by": "Jane Roe"})
    chosen = "Jane Roe, by trial"
    options = SETUP | {"entities": entities, "public": public, "chosen_by": chosen}
    run = make_run(tmp_path / "run", rounds=2, spent=2, **options)
    certificate = issue(run)
    said = synthetic.text_guarantee(run).model_dump_json()
    for private in ("4242", "81.8", "acme", "Jane Roe", str(certificate.epsilon), "f" * 64):
        assert private in certificate.model_dump_json()
        assert private not in said
    assert "Caveat: " in said
