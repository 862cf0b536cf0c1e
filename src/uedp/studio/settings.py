"""What a studio shows, and the secrets that open it."""

import ipaddress
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from uedp.errors import UserError

_SECRET_BYTES = 32


def _secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


@dataclass(frozen=True)
class Settings:
    """The corpus and the folders of runs to show; secrets are drawn anew for every studio.

    - `token`: in the address that is printed; exchanged for the cookie
    - `once`: the same for the browser that is opened, and good for one use: other accounts can read
      the arguments of a process
    - `session`: the value of the cookie
    - `root`: all pages lie below this path. Cookies are shared by all ports of a machine, so the
      cookie is bound to a path that no other local server knows to ask for
    """

    corpus: Path | None = None
    runs: tuple[Path, ...] = ()
    token: str = field(default_factory=_secret, repr=False)
    once: str = field(default_factory=_secret, repr=False)
    session: str = field(default_factory=_secret, repr=False)
    root: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(12)}", repr=False)


class ForbiddenError(Exception):
    """What the page must not do; answered with 403."""


def inside(folder: Path, path: str) -> Path:
    """The file of that relative path in a folder.

    Guarantees:
      - the result lies in `folder`, links followed; anything else is `ForbiddenError`
    """
    if "\0" in path:
        raise ForbiddenError("a path with a null character")
    resolved, base = (folder / path).resolve(), folder.resolve()
    if not resolved.is_relative_to(base):
        raise ForbiddenError("a path outside the folder that is shown")
    return resolved


def loopback(host: str) -> str:
    """The host, if it is this machine's own loopback address."""
    name = host.removeprefix("[").removesuffix("]")
    if name == "localhost":
        return "127.0.0.1"
    try:
        if ipaddress.ip_address(name).is_loopback:
            return name
    except ValueError:
        pass
    raise UserError(
        f"`host={host!r}`: the studio shows private text and listens on this machine only; use "
        "127.0.0.1 or ::1, and from elsewhere a tunnel: ssh -L 8000:127.0.0.1:PORT MACHINE"
    )
