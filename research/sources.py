"""Data sets: their files, their users, and the protected categories.

`DATA_SETS` are the paper's three. `TRAINING_SETS` adds AG as single sentences, EDGAR with the
entities of another detector, and blogs with all of their users or some of them.

Imports neither Arrow nor detectors, which a machine that only trains may lack.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uedp.corpus.sentence import Sentence


@dataclass(frozen=True)
class DataSet:
    """Files by part, users, and protected categories.

    `paper_categories` are those whose union the paper protects; counts and epsilons that stand
    beside the paper's refer to them. `categories` are those that training protects one at a time.
    """

    title: str
    folder: str
    files: Mapping[str, str]
    reader: str
    paper_categories: tuple[str, ...]
    categories: tuple[str, ...] = ("person", "org", "loc", "pii")
    public: tuple[str, ...] = ()  # lists of public words
    marked: bool = False  # human marks are the entities
    # users are random groups: mean and standard deviation of their sizes, and the seed
    groups: tuple[float, float, int] | None = None
    split: bool = False  # texts are split into sentences
    most_users: int | None = None  # of the training part

    def file(self, part: str) -> str:
        """The path of a part, relative to the data folder."""
        return f"{self.folder}/{self.files[part]}"

    def sentences(self, data: Path, part: str, most: int | None = None) -> list["Sentence"]:
        """The first `most` sentences of a part, or all.

        Guarantees:
          - random groups are formed in the training part only, and are the same every time
          - of `most_users` users, each is among those of every larger number
        """
        from uedp.corpus.normalise import Splitter
        from uedp.corpus.readers import read_sentences
        from uedp.corpus.users import assign_users, random_groups

        sentences = list(islice(read_sentences(data / self.file(part), self.reader), most))
        if part == "train" and self.groups is not None:
            sentences = list(assign_users(sentences, random_groups(len(sentences), *self.groups)))
        if part == "train" and self.most_users is not None:
            users = {sentence.user for sentence in sentences}
            chosen = set(sorted(users, key=_by_hash)[: self.most_users])
            sentences = [sentence for sentence in sentences if sentence.user in chosen]
        if self.split:
            divide = Splitter(_LANGUAGE)
            sentences = [piece for sentence in sentences for piece in divide(sentence)]
        return sentences


_LANGUAGE = "en"


def _by_hash(user: str) -> str:
    return sha256(user.encode()).hexdigest()


DATA_SETS = {
    "conll": DataSet(
        "CoNLL-2003",
        "conll2003",
        {"train": "eng.train.gz", "validation": "eng.testa.gz", "test": "eng.testb.gz"},
        "conll",
        paper_categories=("org", "loc", "person", "misc"),
        marked=True,
    ),
    "ag": DataSet(
        "AG",
        "ag_news",
        {"train": "train.csv.gz", "test": "test.csv.gz"},
        "ag",
        paper_categories=("org", "loc", "gpe", "pii"),
        public=("ordinary", "news"),
        groups=(15.0, 2.0, 0),  # as in the paper
    ),
    # stands in for the paper's SEC contracts, which are not public
    "edgar": DataSet(
        "EDGAR",
        "edgar",
        {"train": "train.jsonl.gz", "test": "test.jsonl.gz"},
        "jsonl",
        paper_categories=("org", "loc", "gpe", "pii"),
        public=("ordinary", "contracts"),
    ),
}

_BLOGS = DataSet(
    "Blogs",
    "blogs",
    {
        "train": "train.jsonl.gz",
        "validation": "validation.jsonl.gz",
        "test": "test.jsonl.gz",
    },
    "jsonl",
    paper_categories=(),
)
TRAINING_SETS = {
    **DATA_SETS,
    "edgar-news": replace(DATA_SETS["edgar"], title="EDGAR, news detector"),
    "ag-sentences": replace(DATA_SETS["ag"], title="AG, sentences", split=True),
    "blogs": _BLOGS,
    "blogs-2000": replace(_BLOGS, title="Blogs, 2,000 users", most_users=2000),
    "blogs-500": replace(_BLOGS, title="Blogs, 500 users", most_users=500),
}
