import logging
import sys
from pathlib import Path

import pytest
import spacy
import spacy.cli
import tldextract
from hypothesis import given
from hypothesis import strategies as st

from uedp.corpus.sentence import Span
from uedp.entities.categories import category_of
from uedp.entities.detectors import load_detector
from uedp.entities.detectors.presidio import Finding, Presidio, load_presidio, merge
from uedp.entities.detectors.spacy import load_pipeline
from uedp.errors import UserError

pytestmark = pytest.mark.usefixtures("no_network")

NAMES = {
    "Ada": "PER",
    "Byron": "PERSON",
    "Acme": "ORG",
    "Alps": "LOC",
    "Paris": "GPE",
    "Dutch": "NORP",
    "Monday": "DATE",
    "noon": "TIME",
    "Oscars": "MISC",
    "Beagle": "SHIP",
}


def saved(folder: Path, language: str = "en") -> str:
    nlp = spacy.blank(language)
    patterns = [{"label": label, "pattern": name} for name, label in NAMES.items()]
    nlp.add_pipe("entity_ruler").add_patterns(patterns)
    nlp.to_disk(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def detector(folder: str) -> Presidio:
    return load_presidio(folder)


def found(detector: Presidio, text: str) -> dict[str, str]:
    (spans,) = detector.detect([text])
    return {text[span.start : span.end]: span.label for span in spans}


def test_every_entity_of_the_pipeline_is_kept(detector: Presidio) -> None:
    assert found(detector, " ".join(NAMES)) == {
        "Ada": "PERSON",
        "Byron": "PERSON",
        "Acme": "ORGANIZATION",
        "Alps": "LOCATION",
        "Paris": "GPE",
        "Dutch": "NRP",
        "Monday": "DATE_TIME",
        "noon": "TIME",
        "Oscars": "MISC",
        "Beagle": "SHIP",
    }


def test_renaming_keeps_the_category(detector: Presidio) -> None:
    renamed = found(detector, " ".join(NAMES))
    assert {name: category_of(label) for name, label in renamed.items()} == {
        name: category_of(label) for name, label in NAMES.items()
    }


@pytest.mark.parametrize(
    ("text", "surface", "label"),
    [
        ("Write to ada@example.com now", "ada@example.com", "EMAIL_ADDRESS"),
        ("Write to ada@mail.corp.internal now", "ada@mail.corp.internal", "EMAIL_ADDRESS"),
        ("See https://example.org/a now", "https://example.org/a", "URL"),
        ("IBAN GB33BUKB20201555555555 ok", "GB33BUKB20201555555555", "IBAN_CODE"),
        ("Card 4111 1111 1111 1111 ok", "4111 1111 1111 1111", "CREDIT_CARD"),
        ("Call (212) 555-0142 today", "(212) 555-0142", "PHONE_NUMBER"),
        ("Host 192.168.17.4 is down", "192.168.17.4", "IP_ADDRESS"),
        ("Born on 1985-04-12 here", "1985-04-12", "DATE_TIME"),
        ("Account 630427373398 is mine", "630427373398", "US_BANK_NUMBER"),
    ],
)
def test_identifiers(detector: Presidio, text: str, surface: str, label: str) -> None:
    assert found(detector, text) == {surface: label}
    assert category_of(label) != "misc"


def test_context_words_count_without_a_lemmatizer(folder: str) -> None:
    strict = Presidio(load_pipeline(folder, kind="presidio"), threshold=0.4)
    assert found(strict, "The passports have number 912803456") == {"912803456": "US_PASSPORT"}
    assert found(strict, "The sheets have number 912803456") == {}


def test_the_threshold_drops_what_scores_less(folder: str) -> None:
    text = "Seen 666666 times"  # six bare digits: 0.01
    assert found(load_presidio(folder), text) == {}
    everything = Presidio(load_pipeline(folder, kind="presidio"), threshold=0.0)
    assert found(everything, text) == {"666666": "US_DRIVER_LICENSE"}


def test_one_list_per_sentence_in_order(detector: Presidio) -> None:
    texts = ["Ada", "", "Nobody", " \n", "In Paris"] * 40
    spans = list(detector.detect(texts))
    assert spans == [[Span(0, 3, "PERSON")], [], [], [], [Span(3, 8, "GPE")]] * 40


def test_other_languages_have_card_numbers(tmp_path: Path) -> None:
    german = load_presidio(saved(tmp_path / "de", "de"))
    text = "Karte 4111 1111 1111 1111 von Ada, ada@example.com"
    assert list(found(german, text).values()) == ["CREDIT_CARD", "PERSON", "EMAIL_ADDRESS"]


def test_quiet_and_without_the_suffix_list(
    folder: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def extract(*_: object) -> None:
        raise AssertionError("fetches a list from the network on first use")

    monkeypatch.setattr(tldextract, "extract", extract)
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        found(load_presidio(folder), "The Beagle of ada@example.com")
    finally:
        logging.getLogger().removeHandler(handler)
    assert records == []
    assert capfd.readouterr() == ("", "")


def test_missing_default_pipeline_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[object] = []
    monkeypatch.setattr(spacy.util, "is_package", lambda name: False)
    monkeypatch.setattr(spacy.cli, "download", downloads.append)
    with pytest.raises(UserError, match="`python -m spacy download en_core_web_lg`"):
        load_detector("presidio")
    assert downloads == []


def test_missing_folder() -> None:
    with pytest.raises(UserError, match=r"'presidio:\./no': no such folder"):
        load_detector("presidio:./no")


@pytest.mark.parametrize("library", ["presidio_analyzer", "spacy"])
def test_missing_library(library: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=r"pip install 'uedp\[presidio\]'"):
        load_presidio(folder)


def test_merge_keeps_the_best_of_one_extent_and_drops_what_is_inside_its_category() -> None:
    assert merge(
        [
            (0, 15, "EMAIL_ADDRESS", 0.5),
            (4, 15, "URL", 0.5),  # inside, also `contact`
            (4, 11, "ORGANIZATION", 0.85),  # inside, but of another category
            (20, 29, "US_BANK_NUMBER", 0.05),
            (20, 29, "US_SSN", 0.85),
            (20, 29, "US_PASSPORT", 0.4),
            (40, 50, "PERSON", 0.85),
            (40, 50, "PERSON", 0.85),
            (45, 55, "PERSON", 0.85),  # overlaps, not inside
        ]
    ) == [
        Span(0, 15, "EMAIL_ADDRESS"),
        Span(4, 11, "ORGANIZATION"),
        Span(20, 29, "US_SSN"),
        Span(40, 50, "PERSON"),
        Span(45, 55, "PERSON"),
    ]


def test_merge_prefers_the_earlier_of_equals() -> None:
    assert merge([(0, 3, "ORGANIZATION", 0.85), (0, 3, "URL", 0.85)]) == [
        Span(0, 3, "ORGANIZATION")
    ]


findings = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(1, 6),
        st.sampled_from(["PERSON", "PER", "ORG", "URL", "EMAIL_ADDRESS"]),
        st.sampled_from([0.05, 0.4, 0.85]),
    ).map(lambda it: (it[0], it[0] + it[1], it[2], it[3])),
    max_size=10,
)


@given(findings)
def test_merge_guarantees(given: list[Finding]) -> None:
    spans = merge(given)
    assert len({(span.start, span.end) for span in spans}) == len(spans)
    for span in spans:
        scores = [score for *extent, _, score in given if extent == [span.start, span.end]]
        assert (span.start, span.end, span.label, max(scores)) in given
        assert not any(
            other != span
            and other.start <= span.start
            and span.end <= other.end
            and category_of(other.label) == category_of(span.label)
            for other in spans
        )
    covered = {position for span in spans for position in range(span.start, span.end)}
    assert covered == {position for start, end, *_ in given for position in range(start, end)}
