"""Train language models so that neither a user nor an entity named in the text can be inferred."""

__version__ = "0.1.0"

from uedp.corpus.readers import Columns, Source, read
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.breakdown import breakdown
from uedp.entities.coverage import coverage
from uedp.entities.deidentify import deidentify
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError
from uedp.incidence import Incidence

__all__ = [
    "Columns",
    "Corpus",
    "Detection",
    "Incidence",
    "Sentence",
    "Source",
    "Span",
    "UserError",
    "breakdown",
    "coverage",
    "deidentify",
    "detect",
    "read",
]
