"""The templates of pages. Everything that is put into one is escaped."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Jinja takes a tenth of a second to import
    from jinja2 import Environment, Template


@cache
def environment(package: str = "uedp.report") -> "Environment":
    """The templates of a package.

    Guarantees:
      - text becomes text, whatever it holds; a name that is not given is an error
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def template(name: str) -> "Template":
    return environment().get_template(name)


def stylesheet(name: str = "base.css") -> str:
    """A style; `base.css` is that of all pages, to be put into one or to be served."""
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]
