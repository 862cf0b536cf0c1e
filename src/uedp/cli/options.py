"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
AuthorColumn = Annotated[str, Option(help="The column with the author.")]
Confidence = Annotated[float, Option(help="The confidence of each bound.")]
CorpusArgument = Annotated[Path, Argument(metavar="CORPUS", help="A folder made by `uedp detect`.")]
Delta = Annotated[float, Option(help="The allowed probability of failure.")]
EntityRate = Annotated[float, Option(help="Probability that a lent entity is used (q_e).")]
ExtendedRate = Annotated[
    float, Option(help="The same for sentences without detected entities (q_s).")
]
FinishedRun = Annotated[Path, Argument(metavar="RUN", help="The folder of a finished run.")]
LabelColumn = Annotated[str | None, Option(help="A column with a class label.")]
NewCorpus = Annotated[Path, Option(help="The corpus folder to write.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace --out if it is a corpus.")]
PaperNoise = Annotated[float, Option(help="The paper's z.")]
PlannedCorpus = Annotated[
    Path | None, Option(help="A corpus, from whose counts rates, rounds and share are chosen.")
]
ResultsFile = Annotated[Path | None, Option(help="Save the results as JSON.")]
Rounds = Annotated[int, Option(help="Number of rounds.")]
RunArgument = Annotated[Path, Argument(metavar="RUN", help="The folder of a run.")]
SetOption = Annotated[
    list[str],
    Option("--set", metavar="SECTION.FIELD=VALUE", help="Set a field of the config; repeat."),
]
TargetEpsilon = Annotated[float, Option("--epsilon", help="The target.")]
TextColumn = Annotated[str, Option(help="The column with the text.")]
UserRate = Annotated[float, Option(help="The sampling rate of users in a round.")]
Users = Annotated[int, Option(help="Number of users.")]
