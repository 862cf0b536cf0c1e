"""The version of uedp and of what it uses."""

import platform
from importlib import metadata

import typer

import uedp

_SHOWN = ("torch", "transformers", "peft", "datasets", "numpy", "scipy", "pyarrow", "typer")


def show_version(verbose: bool) -> None:
    """Print the version; if `verbose`, also those that a bug report needs."""
    typer.echo(f"uedp {uedp.__version__}")
    if not verbose:
        return
    typer.echo(f"python {platform.python_version()} on {platform.platform()}")
    for name in _SHOWN:
        typer.echo(f"{name} {installed(name) or 'not installed'}")


def installed(name: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
