"""Commands for texts that stay with their owners: key, server, client."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from uedp.cli import complete
from uedp.cli.help import Commands
from uedp.cli.options import SetOption
from uedp.cli.terminal import STOPPED, progress, say, with_flags
from uedp.cli.train import show_outcome
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.training.outcome import Outcome

federate = Commands(
    name="federate",
    help="""Train on texts that stay with their owners, with Flower.

    Each client holds the texts of some users. One of them makes the key, and gives it to the other
    clients and not to the server. All use the same CONFIG.

    Examples:
      uedp federate key clients.key
      uedp federate server config.yaml --federation federation --clients 8 \\
          --out run
      uedp federate client config.yaml --corpus corpus --key clients.key
    """,
)

_CONFIG = Argument(
    metavar="CONFIG", help="A YAML file, the same everywhere.", autocompletion=complete.configs
)
_LOG = Option(metavar="FILE", help="Append what Flower logs. Default: it is not kept.")


@federate.command("key")
def federate_key(
    path: Annotated[Path, Argument(metavar="FILE", help="The file to write.")],
) -> None:
    """Make the key under which clients hash names; the server must not have it.

    Examples:
      uedp federate key clients.key
    """
    from uedp.distributed.client import make_key

    make_key(path)
    say(f"{path}: give it to the other clients on a safe way, and not to the server")


@federate.command("server")
def federate_server(
    config: Annotated[Path, _CONFIG],
    federation: Annotated[
        Path,
        Option(
            metavar="FOLDER",
            help="The folder of the federation: its clients, and the ledger of all its runs.",
        ),
    ],
    out: Annotated[Path, Option(metavar="FOLDER", help="The folder of the run.")],
    clients: int = Option(
        1, min=1, help="How many clients a new federation has. A known one waits for its own."
    ),
    wait: str = Option(
        "10m", metavar="DURATION", help="How long to wait for them and their models, as 10m."
    ),
    patience: str = Option(
        "10m", metavar="DURATION", help="How long a round waits for answers, as 90s."
    ),
    host: str = Option("127.0.0.1", metavar="ADDRESS", help="The address to listen on."),
    port: int = Option(8000, min=1, max=65535, help="The port to listen on."),
    certificate: Path | None = Option(
        None, metavar="FILE", help="The TLS certificate of this server; other machines need one."
    ),
    private_key: Path | None = Option(None, metavar="FILE", help="Its private key."),
    authority: Path | None = Option(
        None, metavar="FILE", help="The certificate of the authority that signed it."
    ),
    changes: SetOption = [],  # noqa: B006 - Typer copies it
    resume: bool = Option(False, "--resume", help="Resume the run in --out."),
    log: Annotated[Path | None, _LOG] = None,
) -> None:
    """Train with clients: draw users, add up their updates, add noise, keep the ledger.

    Starts Flower's SuperLink and waits for clients. A client that fails during training changes no
    guarantee. data.evaluate, if set, is a corpus on this machine.

    Examples:
      uedp federate server config.yaml --federation federation --clients 8 \\
          --out run
      # for clients on other machines
      uedp federate server config.yaml --federation federation --clients 8 \\
          --out run --host 0.0.0.0 --certificate server.pem \\
          --private-key server.key --authority ca.pem
      # after it was interrupted
      uedp federate server config.yaml --federation federation --out run \\
          --resume
    """
    from uedp.distributed import require_flower

    require_flower()
    from uedp.distributed.flower import Server
    from uedp.distributed.nodes import run_server
    from uedp.distributed.runtime import Tls

    given = (certificate, private_key, authority)
    if any(given) and not all(given):
        raise UserError("server: give --certificate, --private-key and --authority, or none")
    server = Server(
        _load(config, federation, changes),
        out,
        federation,
        clients=clients,
        wait=_seconds("--wait", wait),
        patience=_seconds("--patience", patience),
        resume=resume,
        progress=progress(),
        say=lambda line: say(with_flags(line)),
    )
    tls = None if authority is None else Tls(authority, certificate, private_key)
    outcomes: list[Outcome] = []
    run_server(
        lambda grid: outcomes.append(server.train(grid)), host=host, port=port, tls=tls, log=log
    )
    if not outcomes[0].finished:
        raise typer.Exit(STOPPED)
    show_outcome(outcomes[0])


@federate.command("client")
def federate_client(
    config: Annotated[Path, _CONFIG],
    corpus: Annotated[
        Path,
        Option(
            metavar="CORPUS",
            help="A folder made by `uedp detect`. Its texts do not leave this machine.",
            autocompletion=complete.corpora,
        ),
    ],
    key: Annotated[
        Path, Option(metavar="FILE", help="The key of the clients, made by `uedp federate key`.")
    ],
    server: str = Option("127.0.0.1:8000", metavar="HOST:PORT", help="Where the server listens."),
    authority: Path | None = Option(
        None, metavar="FILE", help="The certificate of the authority that signed the server's."
    ),
    changes: SetOption = [],  # noqa: B006 - Typer copies it
    log: Annotated[Path | None, _LOG] = None,
) -> None:
    """Hold texts, and send clipped updates of the users that a server draws.

    Starts Flower's SuperNode and answers until Ctrl-C. Names leave as keyed hashes; code that a
    server sends is not executed. The run goes into the ledger of the corpus.

    Examples:
      uedp federate client config.yaml --corpus corpus --key clients.key
      # a server on another machine, and the model in another place than there
      uedp federate client config.yaml --corpus corpus --key clients.key \\
          --server flower.example.org:8000 --authority ca.pem \\
          --set model.name=models/gpt2
    """
    from uedp.distributed import require_flower

    require_flower()
    from uedp.distributed.client import Client, read_key
    from uedp.distributed.flower import client_app
    from uedp.distributed.nodes import run_client
    from uedp.distributed.runtime import Tls

    def told(line: str) -> None:
        say(with_flags(line))

    secret = read_key(key)
    one = Client(corpus, secret, _load(config, corpus, changes))
    registered = one.registration
    users, sentences = len(registered.users), len(registered.sentence_user)
    told(f"client {registered.name}: {users:,} users, {sentences:,} sentences; Ctrl-C stops it")
    tls = None if authority is None else Tls(authority)
    run_client(client_app(lambda context: one, told), server, tls=tls, log=log, say=told)


def _load(path: Path, train: Path, changes: list[str]) -> Any:
    """A config whose texts are not where it says."""
    import json

    from uedp.training.config import load_config, preset_path

    if not path.exists():
        path = preset_path(str(path)) or path
    return load_config(path, [*changes, f"data.train={json.dumps(str(train))}"])


def _seconds(flag: str, text: str) -> float:
    from uedp.training.config import parse_duration

    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise UserError(f"{flag} {text}: {error}") from None
