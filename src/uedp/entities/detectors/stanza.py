"""The `stanza` detector: Stanza's tokenizer and NER model of one language."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from uedp.corpus.sentence import Span
from uedp.entities.detectors import package_version, register_detector, required
from uedp.errors import UserError

# Texts per batch; beyond this, memory grows and speed does not.
_BATCH = 256


class Stanza:
    """Entities of a Stanza pipeline, which reads many texts at a time."""

    propagates = True

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        for first in range(0, len(texts), _BATCH):
            batch = texts[first : first + _BATCH]
            # Stanza separates the texts of a batch by their last token; a blank text has none.
            documents = iter(self._pipeline.bulk_process([text for text in batch if text.strip()]))
            for text in batch:
                entities = next(documents).ents if text.strip() else ()
                yield [Span(ent.start_char, ent.end_char, ent.type) for ent in entities]


def _version(argument: str | None) -> str:
    # its models have no version of their own
    return f"{package_version('stanza')}, language {argument}"


@register_detector("stanza", version=_version)
def load_stanza(argument: str | None) -> Stanza:
    if argument is None:
        raise UserError("detector 'stanza': name a language; write e.g. `stanza:en`")
    asked = f"detector 'stanza:{argument}'"
    if not re.fullmatch(r"[A-Za-z]+([-_][A-Za-z]+)*", argument):
        raise UserError(f"{asked}: not a language code; write e.g. `stanza:en`")
    with required(asked, "Stanza", "uedp[stanza]"):
        import stanza
        from stanza.pipeline.core import UnsupportedProcessorError
    download = f"""`python -c "import stanza; stanza.download('{argument}')"`"""
    try:
        pipeline = stanza.Pipeline(
            argument, processors="tokenize,ner", download_method=None, verbose=False
        )
    except UnsupportedProcessorError as error:
        raise UserError(f"{asked}: Stanza has no NER model for this language") from error
    # No models at all, none for the language, or a part of them missing.
    except OSError as error:
        raise UserError(f"{asked}: its models are not installed; run {download}") from error
    # A language that is not in the list of models that came with the last download.
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{asked}: Stanza does not know the language ({reason}); "
            f"if it is a new one, run {download}"
        ) from error
    if "ner" not in pipeline.processors:  # skipped with no more than a warning
        raise UserError(f"{asked}: Stanza has no NER model for this language")
    return Stanza(pipeline)
