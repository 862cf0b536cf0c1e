"""Tables and numbers as the results page writes them."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: first column left, the others right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bullets(*lines: str) -> str:
    return "\n".join(f"- {line}" for line in lines)


def count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def epsilon(value: float | None) -> str:
    """Two decimals as the paper prints them; three figures for what is smaller, fewer for more."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def format_measure(value: float, measure: str) -> str:
    """An error rate in percent, a perplexity with four figures."""
    if measure == "error rate":
        return f"{value:.1%}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
