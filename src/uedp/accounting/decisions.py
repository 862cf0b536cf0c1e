"""Decisions made before a run starts, which cannot be computed from its rounds.

All of them go into the first line of the run's ledger. A certificate reads them there, so that
nobody can state them differently afterwards; a run resumed with others is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Precision = Literal["float32", "bfloat16", "bfloat16-fixed"]
Origin = Literal[
    "public",
    "from the corpus, not covered",
    "from another corpus, not covered",
    "differentially private",
]
PRIVATE_VOCABULARY: Origin = "differentially private"
CORPUS_VOCABULARY: Origin = "from the corpus, not covered"
FOREIGN_VOCABULARY: Origin = "from another corpus, not covered"
Labels = Literal["none", "declared", "from the corpus, not covered"]
Users = Literal["as given", "assigned at random"]
Holders = Literal["the curator", "clients"]

BY_PLANNER = "the planner, by counts of this corpus"
OTHERS_BY = "; others by "
NOT_STATED = "somebody who is not stated"

_LIST_NAMES = {"public": "allow-list", "sensitive": "deny-list", "aliases": "alias list"}


class StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Coverage(StrictModel):
    """How much of a person's own annotation the detection found."""

    marks: int
    sentences_found: Annotated[float, Field(ge=0, le=1)]
    sentences_complete: Annotated[float, Field(ge=0, le=1)]
    # the share of mentions that overlap a mark; null: not recorded, or none to judge
    precision: Annotated[float, Field(ge=0, le=1)] | None = None


class EntityList(StrictModel):
    """A user-supplied list, by its length and a digest under the key of the corpus.

    The digest is keyed because a list may hold names: a plain hash of a short one can be guessed.
    """

    entries: int
    digest: str


# What a date or number does not include, by category.
_APART = (
    ("percent", "percentages"),
    ("year", "years alone"),
    ("calendar", "months, weekdays and words such as today alone"),
)


class Propagation(StrictModel):
    """When a surface that models found counts in all its places, and what is dropped.

    Shares are of the places where the surface stands, counted with its case. How many hits were
    dropped is not stated: that counts texts, and is no part of the incidence.
    """

    share: Annotated[float, Field(ge=0, le=1)]
    name_share: Annotated[float, Field(ge=0, le=1)]  # if it has capitals, and is no ordinary word
    # if it is several such words, an abbreviation, or in the text of a user where it was found
    sure_share: Annotated[float, Field(ge=0, le=1)]
    ordinary_share: Annotated[float, Field(ge=0, le=1)]  # if its words are ordinary English
    ordinary_hits: Annotated[int, Field(ge=0)]
    noise_share: Annotated[float, Field(ge=0, le=1)]

    def describe(self) -> str:
        return (
            f"what models found in at least {self.share:.0%} of its places counts in all of them "
            f"({self.name_share:.0%} if it is capitalised and no ordinary word, "
            f"{self.sure_share:.0%} if it is several such words or an abbreviation, "
            f"{self.ordinary_share:.0%} and {self.ordinary_hits} hits if it is an ordinary word), "
            f"and in those of one user by {self.sure_share:.0%} of them if it is capitalised "
            f"({self.share:.0%}, and {self.ordinary_hits} hits if it is an ordinary word)"
        )

    def describe_dropped(self) -> str:
        return (
            "hits of models are dropped if they have no letter or digit, or are ordinary words in "
            f"lower case found in under {self.noise_share:.0%} of their places"
        )


class Entities(StrictModel):
    """Which entities were looked for: the meaning of "an entity" in the guarantee."""

    detectors: dict[str, str]  # name to version
    categories: tuple[str, ...]
    propagated: bool
    # null: of a release in which one hit was enough, and none was dropped
    propagation: Propagation | None = None
    lists: dict[str, EntityList] = {}
    public_lists: dict[str, str] = {}  # shipped ones that are switched on: name to version
    coverage: Coverage | None = None

    @property
    def names_sought(self) -> bool:
        """Whether any detector looks for names; patterns find numbers, addresses and the like."""
        return any(name.partition(":")[0] != "patterns" for name in self.detectors)

    def describe(self) -> str:
        """One line for people."""
        by = ", ".join(f"{name} ({version})" for name, version in sorted(self.detectors.items()))
        parts = [f"found by {by}", f"categories {', '.join(self.categories)}"]
        if "date" in self.categories and self.propagation is not None:
            # a reader may expect them, and in earlier releases they were dates
            left_out = [shown for name, shown in _APART if name not in self.categories]
            if left_out:
                marked = " unless people marked them as dates" * ("labels" in self.detectors)
                parts.append(f"not protected{marked}: {', '.join(left_out)}")
        if not self.names_sought:
            listed = "sensitive" in self.lists
            parts.insert(0, "no names are looked for" + (" but those listed" if listed else ""))
        if not self.propagated:
            parts.append("a hit counts only where it was made (no propagation)")
        elif self.propagation is None:
            parts.append("one hit of a model counts wherever the same words stand")
        else:
            parts.append(self.propagation.describe())
        if self.propagation is not None:
            parts.append(self.propagation.describe_dropped())
        for name, version in sorted(self.public_lists.items()):
            parts.append(f"public unless a person: the list of {name} ({version})")
        for name, held in sorted(self.lists.items()):  # as a ledger has them
            by_hash = f", {held.digest[:12]}" if held.digest else ""
            parts.append(f"{_LIST_NAMES.get(name, name)} ({held.entries} entries{by_hash})")
        if self.coverage is None:
            parts.append("coverage not measured")
        else:
            parts.append(
                f"of the marked sentences {self.coverage.sentences_found:.1%} found, "
                f"{self.coverage.sentences_complete:.1%} complete"
            )
            if self.coverage.precision is not None:
                parts.append(f"{self.coverage.precision:.1%} of the mentions are right")
        return " ".join("; ".join(parts).split())  # a version may contain newlines


DECLARED_BY = "the person who ran this (not named)"


class DeclaredText(StrictModel):
    """Text that a run learned from without noise before its rounds, and by whose word it may.

    The digest is a plain hash of the sentences: whoever has the text can compare it.
    """

    name: str  # of the file or folder, without its path
    digest: str
    sentences: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    sentences_per_step: Annotated[int, Field(ge=1)]
    declared_by: str = DECLARED_BY

    def describe(self) -> str:
        """One line for people."""
        text = (
            f"before its private rounds the model was trained without noise on {self.name!r} "
            f"({self.sentences:,} sentences, SHA-256 {self.digest[:12]}; {self.steps:,} steps of "
            f"{self.sentences_per_step:,} sentences), declared public by {self.declared_by}: texts "
            "in it are not protected, whoever wrote them"
        )
        return " ".join(text.split())


class Setup(StrictModel):
    """How the run is set up. Anything not covered by the guarantee becomes a caveat."""

    noise_source: Literal["cipher", "fixed seed"] = "cipher"
    # of forward and backward passes; sums, norms, clip factors and noise are float32 or better
    precision: Precision = "float32"
    # the noise added is the noise multiplier times one plus this
    rounding_margin: Annotated[float, Field(ge=0)] = 0.0
    # digest of owners, texts and labels, under the key of the corpus: a plain hash would let
    # anybody who knows all texts but one test guesses of that one
    texts: str = ""
    # null: not stated
    entities: Entities | None = None
    users: Users = "as given"
    # of the texts: clients of a federation keep theirs
    holders: Holders = "the curator"
    # differentially private exactly if the ledger has a vocabulary, where it is charged
    vocabulary: Origin = "public"
    # the class names of a classifier
    labels: Labels = "none"
    # of the model that the run started from
    earlier_runs: Literal["none known", "on other corpora"] = "none known"
    # text that was trained on first, without noise; null: none
    public: DeclaredText | None = None
    # who chose clip bounds, rates and schedule, and on which data
    chosen_by: str = "clip bounds, rates and schedule: not stated"
    # that a round uses, for missed mentions; null: no bound
    sentences_per_user: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_releases(cls, values: Any) -> Any:
        """Read ledgers and certificates that still have a field which was never set."""
        if isinstance(values, dict) and "sentence_share" in values:
            if values["sentence_share"] is not None:
                raise ValueError("has a sentence_share; use the release of uedp that wrote it")
            values = {name: value for name, value in values.items() if name != "sentence_share"}
        return values

    @property
    def chosen_by_planner(self) -> str:
        """The fields that were chosen by counts of the corpus, if any."""
        planner = self.chosen_by.partition(OTHERS_BY)[0].partition(f"{BY_PLANNER}: ")
        return planner[2] if not planner[0] else ""

    @property
    def chooser_stated(self) -> bool:
        """Whether it is stated who chose the rest."""
        default = type(self).model_fields["chosen_by"].default
        return self.chosen_by != default and not self.chosen_by.endswith(OTHERS_BY + NOT_STATED)

    @property
    def exposed(self) -> str | None:
        """Why there is no guarantee, whatever the noise; None if there may be one."""
        if self.noise_source == "fixed seed":
            return "the noise came from a fixed seed"
        if self.vocabulary == CORPUS_VOCABULARY:
            return "the words or the tokenizer were made from the corpus"
        return None


class Shape(StrictModel):
    """The incidence that the guarantee covers."""

    digest: str
    users: int
    sentences: int
    entities: int
