"""The paper's three data sets: their files, their users, and the protected categories.

Imports neither Arrow nor detectors, which a machine that only trains may lack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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

    def file(self, part: str) -> str:
        """The path of a part, relative to the data folder."""
        return f"{self.folder}/{self.files[part]}"

    def sentences(self, data: Path, part: str, most: int | None = None) -> list["Sentence"]:
        """The first `most` sentences of a part, or all.

        Guarantees:
          - random groups are formed in the training part only, and are the same every time
        """
        from uedp.corpus.readers import read_sentences
        from uedp.corpus.users import assign_users, random_groups

        sentences = list(islice(read_sentences(data / self.file(part), self.reader), most))
        if part == "train" and self.groups is not None:
            sentences = list(assign_users(sentences, random_groups(len(sentences), *self.groups)))
        return sentences


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
