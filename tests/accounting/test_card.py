"""Privacy cards: what they say, and that nothing private is in them."""

import json
import math
import re
from pathlib import Path

import pytest
import yaml
from scipy import optimize, stats

import uedp
from tests.accounting.runs import ENTITIES, PUBLIC, SETUP, make_run
from tests.training import worlds
from uedp.accounting.card import (
    ASIDE,
    CARD,
    README,
    HubMetadata,
    PrivacyCard,
    _after,
    hub_metadata,
    markdown,
    not_covered,
    write_card,
)
from uedp.accounting.certificate import issue, verify
from uedp.accounting.decisions import BY_PLANNER
from uedp.accounting.model_files import model_files
from uedp.accounting.proven import UserLevelProfile
from uedp.accounting.publishable import publishable
from uedp.accounting.signature import SIGNATURE, sign_certificate
from uedp.accounting.statement import NOT_PROTECTED
from uedp.errors import UserError
from uedp.training import loop
from uedp.training.config import parse_config


def made(folder, **options):
    run = make_run(folder, rounds=2, spent=2, **{**SETUP, **options})
    return run, publishable(issue(run))


# --- nothing private is in it --------------------------------------------------------------------


def train_on(folder: Path, client: str, person: str, user: str, users: int, news: str) -> Path:
    """A run on a corpus of this client, whose names are wherever a person can put them."""
    home = folder / client
    home.mkdir()
    lines = [
        {"user": f"{user}-{number}", "text": f"{person} owes me {100 + number} euros {word}."}
        for number in range(users)
        for word in ("today", "again", "still")[: 1 + number % 3]
    ]
    (home / "mails.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (home / "deny.csv").write_text(f"entity,category\n{person},person\n")
    (home / "news.txt").write_text(news)
    uedp.build_corpus(
        home / "mails.jsonl",
        home / "corpus",
        deny_list=home / "deny.csv",
        hold_out=home / "held-out",
        on_warning=lambda line: None,
    )
    config = parse_config(
        {
            "privacy": {
                "method": "rotation",
                "epsilon": 8,
                "rounds": 2,
                "user_rate": 0.5,
                "entity_share": 0.5,
                "delta": 1e-5,
                "sentences_per_user": 2,
                "chosen_by": f"{person}, {client}",
            },
            "data": {
                "train": home / "corpus",
                "evaluate": home / "held-out",
                "public": home / "news.txt",
            },
            "model": {
                "name": str(worlds.model(home / "models", "gpt2")),
                "train": "full",
                "max_tokens": 32,
            },
            "public": {"steps": 2, "sentences": 2, "declared_by": f"{person} of {client}"},
            "run": {"device": "cpu", "evaluate_every": 1},
        }
    )
    loop.run(config, home / "run")
    return home / "run"


def published(run: Path) -> str:
    return (run / README).read_text() + (run / CARD).read_text()


def without_hashes(text: str) -> str:
    return re.sub(r"[0-9a-f]{64}|\d{4}-\d\d-\d\d", "HASH", text)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Two runs by one plan, on texts that have nothing in common."""
    folder = tmp_path_factory.mktemp("planted")
    news = "Vantablack opens a new office.\nRain is rare in May.\n"
    first = train_on(folder, "Vantablack", "Kilroy Zebulon", "uid-7531", 137, news)
    second = train_on(folder, "Ostrogoth", "Wilhelmina Quux", "uid-8642", 91, news)
    return first, second


INTERNAL = ("config.yaml", "certificate.json", "ledger.jsonl", "metrics.jsonl", "result.json")


def numbers_of(run: Path) -> set[str]:
    """Counts and measures of a run, as its records for the curator have them."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows += list(json.loads((run / "result.json").read_text()).values())[:2]
    shape = json.loads((run / "certificate.json").read_text())["incidence"]
    measured = {f"{row[name]:.4g}" for row in rows for name in row if "perplexity" in name}
    measured |= {str(int(row[name])) for row in rows for name in row if "perplexity" in name}
    measured |= {f"{row['seconds']:.4g}" for row in rows if "seconds" in row}
    assert len(measured) >= 5
    return measured | {str(shape[name]) for name in ("users", "sentences", "entities")}


def test_planted_names_paths_losses_and_counts_are_in_the_run_and_not_on_its_card(planted):
    run, _ = planted
    internal = "".join((run / name).read_text() for name in INTERNAL)
    internal += "".join((run.parent / name).read_text() for name in ("mails.jsonl", "deny.csv"))
    secrets = ["Vantablack", "Kilroy", "Zebulon", "uid-7531", "owes", "euros", "news.txt"]
    secrets += [str(run.parent), "perplexity", "seconds", "incidence", "clipped"]
    for secret in secrets:
        assert secret in internal, f"{secret}: not planted"
        assert secret not in published(run)
    stated = without_hashes(published(run))
    for number in numbers_of(run):
        assert not re.search(rf"(?<![\d.]){re.escape(number)}", stated), number


def test_cards_of_runs_by_one_plan_are_the_same_whatever_the_texts(planted):
    first, second = (run.resolve() for run in planted)
    for name in (README, CARD):
        cards = [without_hashes((run / name).read_text()) for run in (first, second)]
        assert cards[0] == cards[1]
    for name in INTERNAL:  # of which this is not true
        texts = [without_hashes((run / name).read_text()) for run in (first, second)]
        assert texts[0] != texts[1]


def test_every_run_ends_with_a_card_that_verification_does_not_mind(planted):
    run, _ = planted
    assert verify(run).files == model_files(run)
    card = PrivacyCard.model_validate_json((run / CARD).read_text())
    assert card.facts.private
    assert card.facts.epsilon == 8
    assert card.facts.settings is not None
    assert card.facts.settings["rounds"] == 2
    assert card.facts.files == model_files(run)
    assert "2 sentences, SHA-256" in (run / README).read_text()  # of the public text


def test_a_run_without_noise_ends_with_a_card_that_says_so(tmp_path, saved_model):
    config = worlds.config(saved_model, privacy__method="noiseless", privacy__rounds=1)
    loop.run(config, tmp_path / "run", data=worlds.training_data(tmp_path / "corpus"))
    text = (tmp_path / "run" / README).read_text()
    assert "**This model has no privacy guarantee.**" in text
    assert "The reason: it was trained without noise." in text
    assert "differential-privacy" not in text
    assert "epsilon" not in text.lower()


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    return worlds.model(tmp_path_factory.mktemp("models"), "gpt2")


# --- what it says --------------------------------------------------------------------------------


def front_matter(text: str) -> dict:
    first, header, _ = text.split("---\n", 2)
    assert first == ""
    return yaml.safe_load(header)


def test_the_front_matter_is_what_the_hub_knows(tmp_path):
    from huggingface_hub import ModelCard

    _, facts = made(tmp_path / "run")
    hub = hub_metadata("apache-2.0", "openai-community/gpt2", ("en", "de"))
    text = markdown(facts, hub, "GPT2LMHeadModel")
    assert front_matter(text) == {
        "license": "apache-2.0",
        "language": ["en", "de"],
        "base_model": "openai-community/gpt2",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["differential-privacy", "user-entity-differential-privacy", "uedp"],
    }
    assert ModelCard(text).data.to_dict() == front_matter(text)
    assert front_matter(markdown(facts, HubMetadata(), "BertForSequenceClassification")) == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["differential-privacy", "user-entity-differential-privacy", "uedp"],
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"license": "my own: license"}, "`license=...` 'my own: license': cannot be used; give"),
        ({"base_model": "/home/acme/m"}, "openai-community/gpt2, not a path"),
        ({"base_model": "a/b/c"}, "not a path"),
        ({"language": ("English",)}, "a code of two or three letters, as en"),
    ],
)
def test_metadata_that_the_hub_would_not_take_is_refused(given, said):
    with pytest.raises(UserError, match=re.escape(said)):
        hub_metadata(**given)


def test_the_card_says_what_is_protected_how_strongly_and_what_is_not(tmp_path):
    _, facts = made(tmp_path / "run")
    assert facts.attacker is not None
    attacker = facts.attacker.model_copy(update={"success": 0.67})
    text = markdown(facts.model_copy(update={"epsilon": 8.0, "attacker": attacker}), HubMetadata())
    for words in (
        "One user together with one sensitive entity: all text the user wrote",
        "Against anybody who has the model",
        "is at most e^8, about 2,990, times as likely",
        "| 1% | 98.37% |",
        "right at most 67% of the time",
        "(1 in 100,000)",
        "All but 1 in 50,000",
        "| one sentence | ",
        "What the model had learned before, when others trained it.",
        "marks that people made" if "labels" in ENTITIES.detectors else "a spaCy pipeline",
        "| person | people, including fictional |",
        "The curator gave lists of their own (deny-list).",
        "| noise multiplier | 20 |",
        "`uedp certificate verify` recomputes them",
        "The certificate was not signed when this card was written.",
    ):
        assert words in text


def test_beliefs_grow_further_than_the_table_says_with_a_probability_of_two_deltas_at_most():
    """Exactly, for a Gaussian; by epsilon alone it would be more often than delta says."""
    epsilon, delta = 8.0, 1e-5

    def beyond(shift: float, loss: float) -> float:
        return float(stats.norm.sf(loss / shift - shift / 2))

    def more(shift: float) -> float:
        lost = math.exp(epsilon) * stats.norm.sf(epsilon / shift + shift / 2)
        return beyond(shift, epsilon) - float(lost) - delta

    shift = optimize.brentq(more, 0.1, 8.0)
    assert beyond(shift, epsilon) > 3 * delta
    for prior in (0.001, 0.3, 0.5):
        odds = _after(prior, epsilon) / (1 - _after(prior, epsilon)) / (prior / (1 - prior))
        assert beyond(shift, math.log(odds)) <= 2 * delta
    for probability in (0.9, 0.5, 1e-3):  # with which a loss may be above epsilon, at this delta
        assert epsilon < epsilon - math.log1p(-delta / probability) < math.log(odds)


def test_everything_that_no_guarantee_covers_is_said_in_plain_words(tmp_path):
    _, facts = made(tmp_path / "run", public=PUBLIC)
    plain = not_covered(facts)
    assert len(plain) == len(NOT_PROTECTED)  # without coverage, with public text
    assert not any("`" in sentence.replace(f"`{PUBLIC.digest}`", "") for sentence in plain)
    assert "1,200 sentences" in plain[-1]


def test_settings_chosen_by_counts_are_left_out_with_a_word(tmp_path):
    _, facts = made(tmp_path / "run", chosen_by=f"{BY_PLANNER}: rounds, user_rate")
    text = markdown(facts, HubMetadata())
    assert "noise multiplier" not in text
    assert "Rates, noise and rounds are left out: some were chosen by counts" in text
    assert "They depend on settings that were chosen by counts" in text


def test_a_card_for_users_alone_does_not_speak_of_detectors(tmp_path):
    _, facts = made(tmp_path / "run", profile=UserLevelProfile(20.0, 0.5))
    text = markdown(facts, HubMetadata())
    assert "user-level-differential-privacy" in text
    assert "What counts as a sensitive entity" not in text
    assert "missed in" not in text


def test_a_fixed_seed_is_no_guarantee(tmp_path):
    _, facts = made(tmp_path / "run", noise_source="fixed seed")
    text = markdown(facts, HubMetadata())
    assert "**This model has no privacy guarantee.**" in text
    assert "The reason: the noise came from a fixed seed." in text


# --- files ---------------------------------------------------------------------------------------


def test_a_card_is_written_again_after_signing_and_keeps_what_was_given(tmp_path, keys):
    run, _ = made(tmp_path / "run")
    write_card(run, hub_metadata("mit"))
    sign_certificate(run / "certificate.json", keys[0])
    write_card(run, hub_metadata(language=("en",)))
    text = (run / README).read_text()
    assert front_matter(text)["license"] == "mit"
    assert front_matter(text)["language"] == ["en"]
    assert (run / SIGNATURE).read_text().strip() in text
    assert verify(run, keys[1])


def test_a_readme_that_was_edited_is_left_as_it_is(tmp_path):
    run, _ = made(tmp_path / "run")
    assert write_card(run) == run / README
    assert write_card(run, hub_metadata("mit")) == run / README  # nobody has edited it
    (run / README).write_text("my own words")
    assert write_card(run, hub_metadata("apache-2.0")) == run / ASIDE
    assert (run / README).read_text() == "my own words"
    assert "apache-2.0" in (run / ASIDE).read_text()
    (run / ASIDE).replace(run / README)  # taken over by hand: it is a card again
    assert write_card(run, hub_metadata("mit")) == run / README


def test_a_readme_without_a_card_is_somebodys(tmp_path):
    run, _ = made(tmp_path / "run")
    (run / README).write_text("my own words")
    (run / CARD).write_text("damaged")
    assert write_card(run) == run / ASIDE
    assert (run / README).read_text() == "my own words"


def test_a_run_that_does_not_verify_has_no_card(tmp_path):
    folder, _ = made(tmp_path / "run")
    stated = json.loads((folder / "certificate.json").read_text())
    for change in ({"epsilon": 0.5}, {"unit": "everybody <script>"}):
        (folder / "certificate.json").write_text(json.dumps(stated | change))
        with pytest.raises(UserError, match="by the ledger"):
            write_card(folder)
    (folder / "certificate.json").write_text(json.dumps(stated))
    (folder / next(iter(stated["files"]))).write_bytes(b"others")
    with pytest.raises(UserError, match="not the file that was certified"):
        write_card(folder)
    assert not (folder / README).exists()


def test_a_run_that_is_not_finished_has_no_card(tmp_path):
    run = make_run(tmp_path / "run", rounds=3, spent=2, **SETUP)
    issue(run)
    with pytest.raises(UserError, match="not finished"):
        write_card(run)
    assert not (run / README).exists()


def test_the_command_writes_it_again(tmp_path, run):
    folder, _ = made(tmp_path / "run")
    said = run("card", folder, "--license", "mit", "--language", "en")
    assert said.out == f"privacy card: {folder / README}\n"
    assert json.loads(run("card", folder, "--json").out)["hub"]["license"] == "mit"
    refused = run("card", folder, "--base-model", "/home/acme/model")
    assert refused.code == 2
    assert refused.err.startswith("error: --base-model '/home/acme/model': cannot be used; give")
    (folder / README).write_text("mine")
    assert "README.md: was edited, and is left as it is" in run("card", folder).out


def test_signing_updates_the_card(tmp_path, run, keys):
    folder, _ = made(tmp_path / "run")
    write_card(folder)
    assert "privacy card: " in run("certificate", "sign", folder, "--key", keys[0]).out
    assert "The certificate is signed (Ed25519)." in (folder / README).read_text()
