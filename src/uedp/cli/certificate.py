"""Commands for what was spent: certificate, card, ledger."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from uedp.cli import options
from uedp.cli.help import Commands
from uedp.cli.terminal import cell, number, plain, say, say_json, show, table, with_flags
from uedp.errors import CheckFailedError, UserError

if TYPE_CHECKING:
    from uedp.accounting.certificate import Certificate


certificate = Commands(
    name="certificate",
    help="""Show, verify and sign certificates.

    Examples:
      uedp certificate show run
      uedp certificate verify run --corpus corpus
    """,
)


@certificate.command("show")
def certificate_show(run: options.RunArgument, as_json: options.AsJson = False) -> None:
    """Print the certificate of a run.

    Examples:
      uedp certificate show run
      uedp certificate show run --json
    """
    from uedp.accounting.certificate import load_certificate

    shown = load_certificate(run)
    if as_json:
        typer.echo(shown.model_dump_json(indent=2))
        return
    typer.echo("not verified: this is what the file says; check it with `uedp certificate verify`")
    _say_statement(shown)
    say(shown.adjacency)
    typer.echo()
    rows = table("", "", left=(1,))
    rows.add_row("epsilon, user and entity", number(shown.epsilon))
    rows.add_row("epsilon, user without entity", number(shown.epsilon_user_alone))
    for missed in shown.missed_mentions:
        rows.add_row(cell(f"epsilon, missed in {missed.words}"), number(missed.epsilon))
    rows.add_row("delta", f"{shown.delta:g}")
    if shown.corpus_total is not None:
        rows.add_row(
            f"epsilon on the corpus, {_runs(shown.corpus_total.runs)}",
            number(shown.corpus_total.epsilon),
        )
        rows.add_row("which is for", cell(shown.corpus_total.unit))
    rows.add_row("method", cell(shown.method))
    rows.add_row("rounds planned, spent", f"{shown.rounds_planned:,}, {shown.rounds_spent:,}")
    for name, value in shown.parameters.items():
        rows.add_row(cell(name.replace("_", " ")), cell(value))
    for name, texts in (("not protected", shown.not_protected), ("caveats", shown.caveats)):
        rows.add_row(name, "\n".join(map(cell, texts)) or "none")
    for name, digest in shown.files.items():
        rows.add_row(cell(name), cell(digest))
    show("", rows)


@certificate.command("verify")
def certificate_verify(
    run: options.RunArgument,
    public_key: Path | None = Option(
        None, help="The signer's public key; required for `verified`."
    ),
    corpus: Path | None = Option(
        None, help="The corpus of the run, or its federation, if you have it: checks more."
    ),
    public: Path | None = Option(
        None, help="The public text of the run, to see whether it is the one that is named."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Recompute a certificate from the run's ledger, and compare the model's files.

    Exits with 1 if anything differs.

    Examples:
      uedp certificate verify run --corpus corpus
      uedp certificate verify run --public-key officer.pem.pub --json
    """
    from uedp.accounting.certificate import not_checked

    try:
        checked = _verified(run, public_key, corpus, public)
    except CheckFailedError as error:
        if not as_json:
            raise
        say_json({"verified": False, "consistent": False, "problem": with_flags(str(error))})
        raise typer.Exit(1) from None
    signed = public_key is not None
    questions = not_checked(checked, signed, corpus is not None, public is not None)
    left_open = [with_flags(line) for line in questions]
    if as_json:
        answer = {
            "verified": signed,
            "consistent": True,
            "problem": None,
            "private": checked.private,
            "epsilon": checked.epsilon,
            "delta": checked.delta,
            "statement": checked.statement,
            "caveats": checked.caveats,
            "not_checked": left_open,
        }
        say_json(answer)
        return
    model = f"{len(checked.files)} files of the model" if checked.files else "no model"
    verdict = f"verified: signed by {public_key}," if signed else "consistent:"
    say(f"{verdict} ledger intact, every number recomputed, {model} compared")
    _say_statement(checked)
    typer.echo("Not checked:")
    for line in left_open:
        say(f"- {line}")


def _verified(
    run: Path, public_key: Path | None, corpus: Path | None, public: Path | None
) -> "Certificate":
    """A certificate that holds; raises CheckFailedError if it does not.

    What cannot be read at all is another error: a mistake in the command is no answer.
    """
    from uedp.accounting.certificate import CERTIFICATE, load_certificate, verify
    from uedp.accounting.signature import read_public_key
    from uedp.distributed import is_federation
    from uedp.distributed.registrations import refuse_other_federation
    from uedp.training.provenance import refuse_other_corpus, refuse_other_public_text

    if not (run / CERTIFICATE).is_file():
        load_certificate(run)
    if public_key is not None:
        read_public_key(public_key)
    if corpus is not None:
        _with_ledger(corpus)
    try:
        checked = verify(run, public_key, corpus)
    except UserError as error:
        raise CheckFailedError(str(error)) from error
    if corpus is not None and is_federation(corpus):
        refuse_other_federation(checked, corpus)
    elif corpus is not None:
        refuse_other_corpus(checked, corpus)
    if public is not None:
        refuse_other_public_text(checked, public, run)
    return checked


def _with_ledger(folder: Path) -> Path:
    """The folder of a corpus or of a federation, which have ledgers; any other is refused."""
    from uedp.corpus.store import Corpus
    from uedp.distributed import is_federation

    return folder if is_federation(folder) else Corpus(folder).folder


@certificate.command("keygen")
def certificate_keygen(
    out: Annotated[Path, Option(help="The file for the private key; .pub goes beside it.")],
) -> None:
    """Generate a key to sign certificates with.

    Examples:
      uedp certificate keygen --out officer.pem
    """
    from uedp.accounting.signature import generate_key

    public = generate_key(out)
    typer.echo(f"private key: {plain(str(out))} (keep it)\npublic key: {plain(str(public))}")


@certificate.command("sign")
def certificate_sign(
    run: options.RunArgument,
    key: Annotated[Path, Option(help="A private key, made by `uedp certificate keygen`.")],
) -> None:
    """Verify a certificate, then sign it, and with it the ledger and the model's files.

    Examples:
      uedp certificate sign run --key officer.pem
    """
    from uedp.accounting.card import CARD, write_card
    from uedp.accounting.certificate import CERTIFICATE, verify
    from uedp.accounting.signature import sign_certificate

    checked = verify(run)
    say(f"signature: {sign_certificate(run / CERTIFICATE, key)}")
    if (run / CARD).is_file():
        say(f"privacy card: {write_card(run, verified=True)}")
    _say_statement(checked)


@certificate.command("schema")
def certificate_schema() -> None:
    """Print the JSON schema of certificates.

    Examples:
      uedp certificate schema
    """
    from uedp.accounting.certificate import schema

    say_json(schema())


def card(
    run: options.FinishedRun,
    license_: str | None = Option(
        None,
        "--license",
        metavar="NAME",
        help="The license of the model, as the hub calls it: mit, apache-2.0.",
    ),
    base_model: str | None = Option(
        None, metavar="NAME", help="The model that training began with, by its name on the hub."
    ),
    language: list[str] = Option(
        [], metavar="CODE", help="The language of the texts, as en; repeat."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Write the privacy card of a run: README.md for a model hub, and privacy_card.json.

    Every run ends with one; write it again to add what only you know. It states nothing that was
    counted or measured in the private texts, and no path or name from the config. A README.md that
    you edited stays as it is: the card then goes to privacy_card.md.

    Examples:
      uedp card run --license mit --base-model openai-community/gpt2
      uedp card run --json
    """
    from uedp.accounting.card import CARD, README, hub_metadata, write_card

    path = write_card(run, hub_metadata(license_, base_model, tuple(language)))
    if as_json:
        typer.echo((run / CARD).read_text(encoding="utf-8"), nl=False)
        return
    if path.name != README:
        say(f"{run / README}: was edited, and is left as it is")
    say(f"privacy card: {path}")


def ledger(
    corpus: options.CorpusArgument,
    close: Path | None = Option(
        None,
        metavar="RUN",
        help="End a run early, for good: it is charged for its rounds so far, not for those it "
        "planned. Valid only if the decision to stop did not depend on the text.",
    ),
    delta: options.Delta = 1e-5,
    as_json: options.AsJson = False,
) -> None:
    """Show the epsilon of every run on a corpus, and of all of them together.

    Examples:
      uedp ledger corpus
      # a run that will not be resumed: charge only for what it spent
      uedp ledger corpus --close run
    """
    from uedp.accounting import certificate as certificates
    from uedp.accounting.ledger import CorpusLedger, close_run
    from uedp.accounting.statement import finite

    opened = CorpusLedger(_with_ledger(corpus))
    if close is not None:
        ended = close_run(close, opened)
        certificates.issue(close, lambda text: typer.echo(f"warning: {plain(text)}", err=True))
        if not as_json:
            say(f"closed: run {ended.run} after {ended.counted:,} rounds")
    entries = [(entry, finite(entry.epsilon(delta))) for entry in opened.entries()]
    total = opened.total(delta) if entries else None
    if as_json:
        runs = [
            {
                "run": entry.run,
                "method": entry.method,
                "rounds_planned": entry.planned,
                "rounds_counted": entry.counted,
                "closed": entry.closed,
                "epsilon": value,
                "without_guarantee": entry.exposed,
            }
            for entry, value in entries
        ]
        spent = total.epsilon if total else 0.0
        unit = total.unit if total else ""
        by_epoch = [row.model_dump() for row in total.by_epoch] if total else []
        said = {"runs": runs, "epsilon": spent, "delta": delta, "unit": unit}
        say_json(said | ({"by_epoch": by_epoch} if by_epoch else {}))
        return
    if total is None:
        typer.echo("no run was made on this corpus")
        return
    rows = table("run", "method", "rounds", "", "epsilon", "", left=(3, 5))
    for entry, value in entries:
        rows.add_row(
            cell(entry.run),
            cell(entry.method),
            f"{entry.counted:,} of {entry.planned:,}",
            "closed" if entry.closed else "open: charged for all planned rounds",
            number(value),
            cell(entry.exposed or ""),
        )
    show("", rows)
    shown = f"epsilon {number(total.epsilon)} at delta {delta:g}, for {total.unit}"
    say(f"\n{_runs(total.runs)}: {shown}")
    if total.by_epoch:
        rows = table("joined in epoch", "runs", "rounds", "epsilon")
        for row in total.by_epoch:
            rows.add_row(f"{row.epoch}", f"{row.runs:,}", f"{row.rounds:,}", number(row.epsilon))
        show("\nby the epoch in which a user joined and an entity was first found", rows)


def _say_statement(stated: "Certificate") -> None:
    """Print the guarantee, and the lines that belong to it."""
    sentence, *lines = stated.statement.split("\n")
    for line in filter(None, (sentence, stated.missed_line, *lines)):
        say(line)


def _runs(count: int) -> str:
    return "this run" if count == 1 else f"all {count:,} runs together"
