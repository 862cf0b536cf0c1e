"""The command line of the experiments: `python -m research NAME`, `--list`, and `report`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from research.base import Experiment, Options, run_experiment
from research.catalogue import EXPERIMENTS
from uedp.cli import run_app
from uedp.cli.terminal import plain, progress, show, table
from uedp.errors import UserError

PROGRAM = "python -m research"

app = typer.Typer(
    help="Reproduce the tables and figures of the paper, and measure what lies beyond them.",
    pretty_exceptions_enable=False,
    add_completion=False,
)

Data = Annotated[
    Path, typer.Option(help="The folder that holds conll2003, ag_news, edgar and presidio_synth.")
]
Out = Annotated[Path, typer.Option(help="The folder to write NAME.json, NAME.png and NAME.svg to.")]
Quick = Annotated[bool, typer.Option("--quick", help="Use a small part of the data; minutes.")]
Jobs = Annotated[int, typer.Option(help="Number of processes.")]
Models = Annotated[
    list[str],
    typer.Option("--model", metavar="PART=PATH", help="A saved model: ner, gpt, bert, words."),
]
FinishedOnly = Annotated[
    bool, typer.Option("--finished-only", help="Train nothing; report the finished runs.")
]


def main(arguments: list[str] | None = None) -> None:
    """Run a command. A user error is one line on stderr and exit code 2; a bug is a traceback."""
    run_app(app, arguments, PROGRAM)


@app.callback(invoke_without_command=True)
def overview(
    context: typer.Context,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
) -> None:
    if list_:
        listing = table("experiment", "what it measures")
        listing.columns[1].justify = "left"
        for experiment in EXPERIMENTS.values():
            listing.add_row(experiment.name, experiment.title)
        show("", listing)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def report(
    results: Annotated[Path, typer.Option(help="The folder that the experiments wrote to.")],
    out: Annotated[Path, typer.Option(help="The Markdown page to write.")],
) -> None:
    """Write the results page from the JSON files of the experiments."""
    from research.results import write_page

    missing = write_page(results, out)
    typer.echo(f"{plain(str(out))}: {', '.join(missing) or 'none'} not run")


def _command(experiment: Experiment) -> Callable[..., None]:
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
        work = out / ".work" / experiment.name
        options = Options(data, work, quick, _models(model), jobs, progress(), finished_only)
        run_experiment(experiment, options, out)
        typer.echo(f"{plain(str(out / experiment.name))}.json, .png, .svg")

    return command


def _models(arguments: Sequence[str]) -> dict[str, str]:
    models = {}
    for argument in arguments:
        part, equals, path = argument.partition("=")
        if not (part and equals and path):
            raise UserError(f"--model {argument!r}: write PART=PATH, such as ner=FOLDER")
        models[part] = path
    return models


for _experiment in EXPERIMENTS.values():
    app.command(_experiment.name, help=f"{_experiment.title}.")(_command(_experiment))

if __name__ == "__main__":
    main()
