"""The import graph of `uedp`: read from the source, checked against the stated flow, drawn as SVG.

`python -m tests.import_graph` redraws docs/import-graph.svg and refreshes the line counts in
docs/architecture.md.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "uedp"
PAGE = ROOT / "docs" / "architecture.md"
DRAWING = ROOT / "docs" / "import-graph.svg"

Layers = Sequence[Sequence[str]]


@dataclass(frozen=True, order=True)
class Import:
    """One module that imports another; both by full name."""

    importer: str
    imported: str
    typing_only: bool = False

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported}{' (typing)' if self.typing_only else ''}"


def module_files(package: Path) -> dict[str, Path]:
    """Every module of a package, by full name."""
    files = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def read_imports(package: Path) -> list[Import]:
    """The imports between the modules of a package, wherever in a module they stand.

    An import under `if TYPE_CHECKING:` is marked as such. A string that is the full name of a
    module counts as an import of it, because lazy imports take their names from strings.
    """
    files = module_files(package)
    imports = set()
    for name, path in files.items():
        tree = ast.parse(path.read_text(), str(path))
        typing_only = _under_type_checking(tree)
        for node in ast.walk(tree):
            for target in _targets(node, name, path, tree, files):
                if target in files and target != name:
                    imports.add(Import(name, target, node in typing_only))
    return sorted(imports)


def _under_type_checking(tree: ast.AST) -> set[ast.AST]:
    return {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }


def _targets(
    node: ast.AST, name: str, path: Path, tree: ast.AST, files: dict[str, Path]
) -> Iterator[str]:
    """The full names a node may import; not all of them need be modules."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if "." in alias.name or not _reads_version_only(tree, alias.asname or alias.name):
                yield alias.name
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = name.split(".")
            parents = parts[: len(parts) - node.level + (path.name == "__init__.py")]
            base = ".".join([*parents, base] if base else parents)
        for alias in node.names:
            if alias.name != "__version__":
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in files else base
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
        yield node.value


def _reads_version_only(tree: ast.AST, package: str) -> bool:
    """Whether a module that imports the top package reads nothing but its version.

    The top package is loaded before any of its modules, and its version is a constant.
    """
    return all(
        node.attr == "__version__"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == package
    )


def cycles(arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of two or more nodes that reach each other (Tarjan's algorithm)."""
    following: dict[str, list[str]] = {}
    for start, end in sorted(set(arrows)):
        following.setdefault(start, []).append(end)
        following.setdefault(end, [])
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for successor in following[node]:
            if successor not in order:
                visit(successor)
                lowest[node] = min(lowest[node], lowest[successor])
            elif successor in stack:
                lowest[node] = min(lowest[node], order[successor])
        if lowest[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(following):
        if node not in order:
            visit(node)
    return sorted(groups)


def part_of(module: str) -> str:
    """The package or top-level module a module belongs to: `uedp.corpus.store` to `corpus`."""
    return module.split(".")[1] if "." in module else "__init__"


def stated_flow(page: str) -> list[list[str]]:
    """The layers in the page's `flow` block; parts of one layer do not import each other."""
    block = re.search(r"^```flow\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError("the page has no ```flow block")
    return [layer.split() for layer in block.group(1).split("─►")]


def against_flow(imports: Iterable[Import], layers: Layers) -> list[Import]:
    """Imports between parts that do not go to an earlier layer."""
    rank = {part: number for number, layer in enumerate(layers) for part in layer}
    return [
        item
        for item in imports
        if (importer := part_of(item.importer)) != (imported := part_of(item.imported))
        and rank[imported] >= rank[importer]
    ]


def lines_of_code(package: Path) -> int:
    """Lines of Python, including blank lines and docstrings."""
    return sum(len(path.read_text().splitlines()) for path in package.rglob("*.py"))


_BOX, _STEP, _WIDE = 26, 40, 68  # height of a box, distance between rows and between columns


def draw(imports: Sequence[Import], layers: Layers, title: str) -> str:
    """The graph as SVG: parts on the diagonal in flow order, one corner per arrow.

    An arrow leaves its importer sideways and enters the imported part vertically; the number at its
    corner counts the modules involved. Arrows with the flow lie below the diagonal; arrows against
    it lie above, in red.
    """
    parts = [part for layer in layers for part in layer]
    place = {part: number for number, part in enumerate(parts)}
    layer_of = {part: number for number, layer in enumerate(layers) for part in layer}
    arrows = Counter(
        (part_of(importer), part_of(imported))
        for importer, imported in {(item.importer, item.imported) for item in imports}
        if part_of(importer) != part_of(imported)
    )
    left, top = 70, 66
    width = left + _WIDE * len(parts) + 60
    height = top + _STEP * len(parts) + 10

    def center(part: str) -> tuple[int, int]:
        return left + _WIDE * place[part], top + _STEP * place[part] + _BOX // 2

    def half(part: str) -> int:
        return 4 * len(part) + 8

    lines, numbers = [], []
    for (importer, imported), count in sorted(arrows.items()):
        (x1, y1), (x2, y2) = center(importer), center(imported)
        wrong = layer_of[imported] >= layer_of[importer]
        color = "#c62828" if wrong else "#7b8794"
        start = x1 - half(importer) if x2 < x1 else x1 + half(importer)
        end = y2 + _BOX // 2 + 2 if y2 < y1 else y2 - _BOX // 2 - 2
        head = "wrong" if wrong else "right"
        lines.append(
            f'<path d="M{start} {y1}H{x2}V{end}" fill="none" stroke="{color}" '
            f'marker-end="url(#{head})"/>'
        )
        numbers.append(
            f'<circle cx="{x2}" cy="{y1}" r="10" fill="#fff" stroke="{color}"/>'
            f'<text x="{x2}" y="{y1 + 4}" fill="{color}" font-size="11">{count}</text>'
        )
    boxes = []
    for part in parts:
        x, y = center(part)
        boxes.append(
            f'<rect x="{x - half(part)}" y="{y - _BOX // 2}" width="{2 * half(part)}" '
            f'height="{_BOX}" rx="4" fill="{"#e3f2fd" if layer_of[part] % 2 else "#eef7ea"}" '
            f'stroke="#37474f"/><text x="{x}" y="{y + 4}">{part}</text>'
        )
    markers = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'
        for name, color in (("right", "#7b8794"), ("wrong", "#c62828"))
    )
    legend = (
        "Imports go left, then up, to a part earlier in the flow. "
        "A number counts pairs of modules. Red: against the flow."
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="13" text-anchor="middle">',
            f"<defs>{markers}</defs>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            f'<text x="20" y="24" font-size="16" text-anchor="start">{escape(title)}</text>',
            f'<text x="20" y="44" fill="#555" text-anchor="start">{escape(legend)}</text>',
            *lines,
            *numbers,
            *boxes,
            "</svg>\n",
        ]
    )


def drawing(package: Path, page: str) -> str:
    return draw(read_imports(package), stated_flow(page), "Imports between the parts of uedp")


if __name__ == "__main__":
    DRAWING.write_text(drawing(PACKAGE, PAGE.read_text()))
