"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from uedp.cli import complete

READING, ENTITIES = "Reading", "Entities"  # sections of options on help pages

AsJson = Annotated[bool, Option("--json", help="Print one JSON document instead of text.")]
AuthorColumn = Annotated[
    str, Option(metavar="COLUMN", help="The column with the author.", rich_help_panel=READING)
]
Confidence = Annotated[float, Option(help="The confidence of each bound.")]
Categories = Annotated[
    str,
    Option(
        metavar="NAME,...",
        help="The sensitive categories, separated by commas; see `uedp categories`.",
        autocompletion=complete.categories,
        rich_help_panel=ENTITIES,
    ),
]
CorpusArgument = Annotated[
    Path,
    Argument(
        metavar="CORPUS",
        help="A folder made by `uedp detect`.",
        autocompletion=complete.corpora,
    ),
]
Delimiter = Annotated[
    str | None,
    Option(
        metavar="CHARACTER",
        help="The delimiter of a CSV file, such as ';' or tab. Default: auto.",
        rich_help_panel=READING,
    ),
]
Delta = Annotated[float, Option(help="The delta of the guarantee.")]
Encoding = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="The encoding of a text file, such as cp1252. Default: UTF-8.",
        rich_help_panel=READING,
    ),
]
EntityRate = Annotated[float, Option(help="The probability that a lent entity is used (q_e).")]
Detectors = Annotated[
    list[str],
    Option(
        "--detector",
        metavar="NAME[:MODEL],...",
        help="Detectors: labels, patterns[:REGION], spacy:NAME_OR_PATH, presidio[:NAME_OR_PATH], "
        "stanza:LANG, transformers:NAME_OR_PATH. Separate several by commas, or repeat.",
        autocompletion=complete.detectors,
        rich_help_panel=ENTITIES,
    ),
]
EntityMethod = Annotated[
    str | None,
    Option(
        metavar="METHOD",
        autocompletion=complete.entity_methods,
        help="Either rotation or fair-shares. Default: chosen for --corpus, otherwise rotation.",
    ),
]
ExtendedRate = Annotated[
    float,
    Option(help="The same for sentences without detected entities (q_s)."),
]
FinishedRun = Annotated[
    Path,
    Argument(metavar="RUN", help="The folder of a finished run.", autocompletion=complete.runs),
]
LabelColumn = Annotated[
    str | None,
    Option(metavar="COLUMN", help="A column with a class label.", rich_help_panel=READING),
]
MarksColumn = Annotated[
    str | None,
    Option(
        metavar="COLUMN",
        help="A column with human marks: a list of {start, end, label}.",
        rich_help_panel=READING,
    ),
]
NewCorpus = Annotated[Path, Option(metavar="FOLDER", help="The corpus folder to write.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace --out if it is a corpus.")]
PaperNoise = Annotated[float, Option(help="The noise multiplier, the paper's z.")]
PlannedCorpus = Annotated[
    Path | None,
    Option(
        metavar="CORPUS",
        help="A corpus, from whose counts rates, rounds and share are chosen.",
        autocompletion=complete.corpora,
    ),
]
Propagate = Annotated[
    bool,
    Option(
        help="Protect names in all their places if they are found in enough of them.",
        rich_help_panel=ENTITIES,
    ),
]
PublicLists = Annotated[
    list[str],
    Option(
        "--public-list",
        metavar="NAME",
        help="Switch on a shipped list of public entities: countries, currencies, months. Repeat.",
        autocompletion=complete.public_lists,
        rich_help_panel=ENTITIES,
    ),
]
Reader = Annotated[
    str,
    Option(
        metavar="FORMAT",
        autocompletion=complete.readers,
        help="One of jsonl, json, csv, xlsx, parquet, hf, mbox, eml, conll, ag, txt, "
        "presidio-research; auto: by file name.",
        rich_help_panel=READING,
    ),
]
ResultsFile = Annotated[Path | None, Option(metavar="FILE", help="Save the results as JSON.")]
Rounds = Annotated[int, Option(help="Number of rounds.")]
RunArgument = Annotated[
    Path,
    Argument(metavar="RUN", help="The folder of a run.", autocompletion=complete.runs),
]
SetOption = Annotated[
    list[str],
    Option("--set", metavar="SECTION.FIELD=VALUE", help="Set a field of the config; repeat."),
]
SkipInvalid = Annotated[
    bool,
    Option(
        "--skip-invalid",
        help="Skip invalid records and count them.",
        rich_help_panel=READING,
    ),
]
TargetEpsilon = Annotated[float, Option("--epsilon", help="The target, such as 8.")]
TextColumn = Annotated[
    str, Option(metavar="COLUMN", help="The column with the text.", rich_help_panel=READING)
]
UserRate = Annotated[float, Option(help="The sampling rate of users in a round.")]
Users = Annotated[int, Option(help="Number of users.")]
Workers = Annotated[int, Option(help="Number of processes for detection, at the same time.")]
