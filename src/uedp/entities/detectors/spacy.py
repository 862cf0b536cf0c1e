"""The `spacy` detector: the entities (`doc.ents`) of a spaCy pipeline."""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uedp.corpus.sentence import Span
from uedp.entities.detectors import package_version, register_detector, required
from uedp.errors import UserError

if TYPE_CHECKING:
    from spacy.language import Language

# Components of spaCy that never write `doc.ents`. One that is in no set here is a user's own and
# may write entities, so it runs.
# fmt: off
_NEVER_ENTITIES = frozenset({
    "attribute_ruler", "beam_parser", "doc_cleaner", "entity_linker", "lemmatizer",
    "merge_entities", "merge_noun_chunks", "merge_subtokens", "morphologizer", "nn_labeller",
    "parser", "senter", "sentencizer", "span_finder", "spancat", "spancat_singlelabel", "tagger",
    "textcat", "textcat_multilabel", "token_splitter", "trainable_lemmatizer",
})
# fmt: on
_RECOGNISERS = frozenset({"ner", "beam_ner"})
_RULERS = frozenset({"entity_ruler", "future_entity_ruler", "span_ruler"})
# Token attributes that other components write before a ruler can match on them; `_` stands for
# custom attributes, which any component may write.
_WRITTEN = frozenset({"POS", "TAG", "MORPH", "LEMMA", "DEP", "SENT_START", "IS_SENT_START", "_"})


class Spacy:
    """A spaCy pipeline, with only the components its entities depend on."""

    propagates = True

    def __init__(self, nlp: "Language") -> None:
        self._nlp = nlp

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        for doc in self._nlp.pipe(checked_lengths(self._nlp, texts)):
            yield [Span(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents]


def _version(argument: str | None) -> str:
    return f"{package_version('spacy')}, {pipeline_version(argument or '')}"


@register_detector("spacy", version=_version)
def load_spacy(argument: str | None) -> Spacy:
    if argument is None:
        raise UserError(
            "detector 'spacy': name a pipeline or its folder; write e.g. `spacy:en_core_web_sm`"
        )
    return Spacy(load_pipeline(argument, kind="spacy"))


def pipeline_version(name: str) -> str:
    """A pipeline and its version, as its package or the `meta.json` in its folder says."""
    folder = Path(name).expanduser()
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return f"{meta['lang']}_{meta['name']} {meta['version']}"
    except (OSError, ValueError, KeyError, TypeError):
        return package_version(name)


def checked_lengths(nlp: "Language", texts: Sequence[str]) -> Iterator[str]:
    """The texts; one that is too long for the pipeline is an error without a traceback."""
    for text in texts:
        if len(text) > nlp.max_length:
            raise UserError(
                f"a text has {len(text):,} characters and spaCy takes at most "
                f"{nlp.max_length:,}; split the texts into sentences with `split=...`"
            )
        yield text


def load_pipeline(name: str, kind: str) -> "Language":
    """The pipeline called `name` (installed package or folder), with only what entities need.

    `kind` is the detector, for errors and the install command. Nothing is downloaded.
    """
    asked = f"detector '{kind}:{name}'"
    with required(asked, "spaCy", f"uedp[{kind}]"):
        import spacy
    folder = Path(name).expanduser()
    is_path = "/" in name or os.sep in name or folder != Path(name) or name.startswith(".")
    if is_path or (folder.is_dir() and not spacy.util.is_package(name)):
        if not folder.is_dir():
            raise UserError(f"{asked}: no such folder")
        if not (folder / "meta.json").is_file():
            raise UserError(f"{asked}: not a saved spaCy pipeline (the folder has no meta.json)")
        source: str | Path = folder
    elif spacy.util.is_package(name):
        source = name
    else:
        raise UserError(
            f"{asked}: no such pipeline is installed; run `python -m spacy download {name}`"
        )
    try:
        with warnings.catch_warnings():
            # A pipeline trained with another minor version warns; it works or it raises.
            warnings.simplefilter("ignore")
            nlp = spacy.load(source)
    # spaCy has no error class of its own: a missing plug-in, another version and a damaged file
    # raise ValueError, ImportError, OSError, KeyError, ...
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{asked}: the pipeline cannot be loaded: {reason}") from error

    needed, writes_entities = _needed(nlp)
    if not writes_entities:
        parts = ", ".join(nlp.pipe_names) or "none"
        raise UserError(
            f"{asked}: the pipeline finds no entities (its components: {parts}); "
            "choose one with an `ner` or `entity_ruler`"
        )
    for component in nlp.pipe_names:
        if component not in needed:
            nlp.disable_pipe(component)
    return nlp


def _needed(nlp: "Language") -> tuple[set[str], bool]:
    """The components that `doc.ents` depends on, and whether any of them writes it.

    Read backwards, so that the components after each one are already decided. Sentence boundaries
    are not needed: they only keep an entity from crossing one, and texts are single sentences.
    """
    needed: set[str] = set()
    writes_entities = False
    # Once a component that may read anything is needed, so is every one before it.
    reads_all = False
    for name, component in reversed(nlp.pipeline):
        meta = nlp.get_pipe_meta(name)
        if meta.factory in _RECOGNISERS:
            writes, reads = True, False
        elif meta.factory in _RULERS:
            writes, reads = getattr(component, "annotate_ents", True), _reads_tags(component)
        elif meta.factory in _NEVER_ENTITIES:
            # These read each other's output, but none is needed for its own sake.
            writes, reads = False, True
        elif hasattr(component, "listening_components"):
            # tok2vec and transformer: shared layers, used only by their listeners.
            if reads_all or needed.intersection(component.listening_components):
                needed.add(name)
            continue
        else:
            declared = meta.assigns
            writes = not declared or any(
                field == "doc.ents" or field.startswith("token.ent_") for field in declared
            )
            reads = True
        writes_entities |= writes
        if writes or reads_all or (meta.retokenizes and needed):
            needed.add(name)
            reads_all |= reads
    return needed, writes_entities


def _reads_tags(ruler: Any) -> bool:
    """Whether a ruler's patterns match on the output of a tagger, parser or lemmatizer."""
    if str(getattr(ruler, "phrase_matcher_attr", None)).upper() in _WRITTEN:
        return True
    patterns = [entry["pattern"] for entry in ruler.patterns]
    tokens = [token for pattern in patterns if not isinstance(pattern, str) for token in pattern]
    return any(str(attribute).upper() in _WRITTEN for token in tokens for attribute in token)
