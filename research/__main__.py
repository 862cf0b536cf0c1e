"""Commands that measure: one for each table or figure, and one that writes the results page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from research.base import Experiment, Options, carry_out
from research.catalogue import EXPERIMENTS
from uedp.cli.terminal import plain, progress, show, table
from uedp.errors import UserError

experiment = typer.Typer(
    help="Measure a table or figure of the paper anew, and what is true beside it."
)

Data = Annotated[
    Path, typer.Option(help="A folder with conll2003, ag_news, edgar and presidio_synth in it.")
]
Out = Annotated[Path, typer.Option(help="Where NAME.json, NAME.png and NAME.svg go.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small part of it, in minutes.")]
Jobs = Annotated[int, typer.Option(help="Processes at work at once.")]
Models = Annotated[
    list[str],
    typer.Option("--model", metavar="PART=PATH", help="A saved model: ner, gpt, bert, words."),
]
FinishedOnly = Annotated[
    bool, typer.Option("--finished-only", help="Train nothing; tell what has been trained so far.")
]


@experiment.callback(invoke_without_command=True)
def overview(
    context: typer.Context,
    listed: Annotated[bool, typer.Option("--list", help="Name the experiments.")] = False,
) -> None:
    if listed:
        shown = table("experiment", "what it measures")
        shown.columns[1].justify = "left"
        for found in EXPERIMENTS.values():
            shown.add_row(found.name, found.of_the_paper)
        show("", shown)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@experiment.command()
def report(
    results: Annotated[Path, typer.Option(help="The folder that experiments wrote to.")],
    out: Annotated[Path, typer.Option(help="The Markdown page to write.")],
) -> None:
    """Write the results page from the JSON of experiments."""
    from research.results import write

    missing = write(results, out)
    typer.echo(f"{plain(str(out))}: {', '.join(missing) or 'none'} not run")


def register(app: typer.Typer) -> None:
    for found in EXPERIMENTS.values():
        experiment.command(found.name, help=f"{found.of_the_paper}.")(_command(found))
    app.add_typer(experiment, name="experiment")


def _command(found: Experiment) -> Callable[..., None]:
    def command(
        data: Data,
        out: Out,
        quick: Quick = False,
        jobs: Jobs = 1,
        model: Models = [],  # noqa: B006 - Typer copies it
        finished_only: FinishedOnly = False,
    ) -> None:
        if not data.is_dir():
            raise UserError(f"--data {data}: no such folder")
        work = out / ".work" / found.name
        options = Options(data, work, quick, _models(model), jobs, progress(), finished_only)
        carry_out(found, options, out)
        typer.echo(f"{plain(str(out / found.name))}.json, .png, .svg")

    return command


def _models(given: Sequence[str]) -> dict[str, str]:
    models = {}
    for one in given:
        part, equals, path = one.partition("=")
        if not (part and equals and path):
            raise UserError(f"--model {one!r}: write PART=PATH, such as ner=FOLDER")
        models[part] = path
    return models
