"""The paper's three data sets: where they lie, who their users are, what is protected in them.

Plain facts, which a machine without Arrow or detectors can read as well.
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
    """Its files by part, its users, and the categories of two uses.

    `paper_categories` are those whose union the paper protects: counts and epsilons beside the
    paper's are of them. `categories` are protected one at a time in training, beside all of them.
    """

    title: str
    folder: str
    files: Mapping[str, str]
    reader: str
    paper_categories: tuple[str, ...]
    categories: tuple[str, ...] = ("person", "org", "loc", "pii")
    public: tuple[str, ...] = ()  # lists of what is declared public in it
    marked: bool = False  # by people: then their marks are the entities
    # mean and spread of users' sizes and the seed, where users are random groups
    groups: tuple[float, float, int] | None = None

    def file(self, part: str) -> str:
        """Of a part, as it lies under --data."""
        return f"{self.folder}/{self.files[part]}"

    def sentences(self, data: Path, part: str, most: int | None = None) -> list["Sentence"]:
        """The first of a part, or all.

        Guarantees:
          - random groups are users of the training part alone, the same every time
        """
        from uedp.corpus.readers import read_sentences
        from uedp.corpus.users import assign_users, random_groups

        found = list(islice(read_sentences(data / self.file(part), self.reader), most))
        if part == "train" and self.groups is not None:
            found = list(assign_users(found, random_groups(len(found), *self.groups)))
        return found


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
