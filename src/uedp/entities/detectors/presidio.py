"""The `presidio` detector: Presidio's recognisers of identifiers, and a spaCy pipeline's entities.

It differs from Presidio's own configuration where that would leave entities unprotected:
  - every entity of the pipeline is kept, organisations and labels unknown to Presidio included
  - anything shaped like an e-mail address is one; Presidio looks its domain up in a list that it
    fetches from the network, and drops addresses at private domains
  - context words ("passport", "account") also work without a lemmatizer
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from uedp.corpus.sentence import Span
from uedp.entities.categories import category_of
from uedp.entities.detectors import package_version, register_detector, required
from uedp.entities.detectors.spacy import checked_lengths, load_pipeline, pipeline_version

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

DEFAULT_PIPELINE = "en_core_web_lg"  # Presidio's own default

# Presidio's scale: 0.4 a phone number, 0.05 a bare run of 8 to 17 digits (bank, passport or card
# number; more with a context word), 0.01 digits in general. A missed identifier is not protected
# while a false one costs little, so all but the last count; in news that adds about one false hit
# per hundred texts.
THRESHOLD = 0.05
# Presidio's score for a pipeline's entities; spaCy gives none.
_PIPELINE_SCORE = 0.85

# Presidio's names for a pipeline's labels, where they mean the same category here. It also merges
# GPE into LOCATION and TIME into DATE_TIME; our categories distinguish them, so they stay.
_RENAMED = {
    "PER": "PERSON",
    "LOC": "LOCATION",
    "ORG": "ORGANIZATION",
    "NORP": "NRP",
    "DATE": "DATE_TIME",
}

Finding = tuple[int, int, str, float]  # start, end, label, score


class Presidio:
    """Entities of the pipeline and results of Presidio that score `threshold` (0.05) or more."""

    propagates = True

    def __init__(self, nlp: "Language", threshold: float = THRESHOLD) -> None:
        self._nlp = nlp
        self._analyzer = _analyzer(nlp)
        self._threshold = threshold

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        # Not Presidio's own batches: those return only when the last text is done.
        for doc in self._nlp.pipe(checked_lengths(self._nlp, texts)):
            yield merge([*_entities(doc), *self._results(doc)])

    def _results(self, doc: "Doc") -> Iterator[Finding]:
        from presidio_analyzer.nlp_engine import NlpArtifacts

        artifacts = NlpArtifacts(
            entities=[],
            tokens=doc,
            tokens_indices=[token.idx for token in doc],
            # Context words are searched as substrings of these, so the word as written serves as
            # well as its lemma, without a tagger and a lemmatizer.
            lemmas=[token.lower_ for token in doc],
            nlp_engine=self._analyzer.nlp_engine,
            language=self._nlp.lang,
        )
        for result in self._analyzer.analyze(
            text=doc.text,
            language=self._nlp.lang,
            nlp_artifacts=artifacts,
            score_threshold=self._threshold,
        ):
            yield result.start, result.end, result.entity_type, result.score


def _version(argument: str | None) -> str:
    pipeline = pipeline_version(argument or DEFAULT_PIPELINE)
    return f"{package_version('presidio-analyzer')}, {package_version('spacy')}, {pipeline}"


@register_detector("presidio", version=_version)
def load_presidio(argument: str | None = None) -> Presidio:
    with required("detector 'presidio'", "Presidio", "uedp[presidio]"):
        import presidio_analyzer  # noqa: F401
    return Presidio(load_pipeline(argument or DEFAULT_PIPELINE, kind="presidio"))


def merge(findings: Iterable[Finding]) -> list[Span]:
    """Findings as spans, in order.

    Guarantees:
      - one span per extent: that of highest score, the first among equals
      - no span inside another of its category
      - every character of a finding is in some span
    """
    best: dict[tuple[int, int], tuple[float, str]] = {}
    for start, end, label, score in findings:
        if (start, end) not in best or score > best[start, end][0]:
            best[start, end] = (score, label)
    spans = []
    ends: dict[str, int] = {}  # by category, the furthest end so far
    for (start, end), (_, label) in sorted(best.items(), key=lambda it: (it[0][0], -it[0][1])):
        category = category_of(label)
        if end > ends.get(category, start):
            ends[category] = end
            spans.append(Span(start, end, label))
    return spans


def _entities(doc: "Doc") -> Iterator[Finding]:
    for ent in doc.ents:
        label = _RENAMED.get(ent.label_, ent.label_)
        yield ent.start_char, ent.end_char, label, _PIPELINE_SCORE


def _analyzer(nlp: "Language") -> Any:
    """Presidio's engine for the pipeline's language, without its recogniser of spaCy's entities."""
    from presidio_analyzer import AnalyzerEngine, PatternRecognizer, RecognizerRegistry
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from presidio_analyzer.predefined_recognizers import CreditCardRecognizer, EmailRecognizer

    logger = logging.getLogger("presidio-analyzer")
    if logger.level == logging.NOTSET:  # unless the user set one
        logger.setLevel(logging.ERROR)

    # Given the loaded pipeline, the engine does not load or download one.
    engine = SpacyNlpEngine(models=[{"lang_code": nlp.lang, "model_name": "loaded"}])
    engine.nlp = {nlp.lang: nlp}

    registry = RecognizerRegistry(supported_languages=[nlp.lang])
    registry.load_predefined_recognizers(languages=[nlp.lang])
    for name in ("SpacyRecognizer", "EmailRecognizer", "CreditCardRecognizer"):
        registry.remove_recognizer(name)
    # Presidio recognises card numbers in four languages only, but they are the same in all.
    registry.add_recognizer(CreditCardRecognizer(supported_language=nlp.lang))
    registry.add_recognizer(
        PatternRecognizer(
            supported_entity="EMAIL_ADDRESS",
            patterns=EmailRecognizer.PATTERNS,
            context=EmailRecognizer.CONTEXT,
            supported_language=nlp.lang,
        )
    )
    return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=[nlp.lang])
