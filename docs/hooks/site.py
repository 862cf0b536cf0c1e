"""Hooks of the docs site: links that leave docs/, the command reference, the changelog.

A page links to files of the repository (`../benchmarks/results/noise.json`), which works wherever
the repository is browsed. In the site such a file is copied beside the pages and the link points
there, so that the site is complete without a network or an address of the repository. A link to a
folder becomes text.
"""

import re
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from commands import command_page

ROOT = Path(__file__).parents[2]
COPIES = "repository"  # the folder of the site with files from outside docs/
CHANGELOG = "changelog.md"
_LINK = re.compile(
    r"(!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)

_FENCE = re.compile(r"^```(\w+) (?:file|check|config)=(\S+)$", re.MULTILINE)  # contributing.md


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and copies of the files that pages link to."""
    files.append(File.generated(config, "commands.md", content=command_page()))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, CHANGELOG, content=changelog))
    copied = {
        path
        for file in files.documentation_pages()
        for match in _LINK.finditer(file.content_string)
        if (path := _outside(file.src_uri, match["target"])) and (ROOT / path).is_file()
    }
    for path in sorted(copied - {"CHANGELOG.md"}):
        files.append(File.generated(config, f"{COPIES}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the copies; name the files that blocks of code are for."""

    def rewritten(match: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, match["target"])
        if path is None:
            return match[0]
        if path == "CHANGELOG.md":
            path = CHANGELOG
        elif (ROOT / path).is_file():
            path = f"{COPIES}/{path}"
        elif (ROOT / path).is_dir():
            return f"{match['text']} (`{path}/`)"
        here = PurePosixPath(page.file.src_uri).parent
        return f"{match[1]}({relpath(path, here)}{match['anchor'] or ''})"

    return _FENCE.sub(r'```\1 title="\2"', _LINK.sub(rewritten, markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the search dialog for screen readers, which the theme does not."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')


def _outside(page: str, target: str) -> str | None:
    """The path in the repository of a relative link that leaves docs/, or None."""
    if re.match(r"[a-z]+:|/", target):
        return None
    path = normpath(PurePosixPath("docs") / PurePosixPath(page).parent / target)
    return None if path.split("/")[0] in ("docs", "..") else path
