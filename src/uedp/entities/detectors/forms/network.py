"""Links, mail and internet addresses."""

import re
from ipaddress import ip_address

from uedp.entities.detectors.forms import BEGIN, Extent, finder


def _without_punctuation(match: re.Match[str]) -> Extent:
    """A link without the punctuation of its sentence; its own brackets stay."""
    start, end = match.span("link")
    link = match["link"]
    surplus = {close: link.count(close) - link.count(open_) for open_, close in ("()", "[]", "{}")}
    while end > start:
        last = link[end - start - 1]
        if surplus.get(last, 0) > 0:
            surplus[last] -= 1
        elif last not in ".,;:!?'*_~-":
            break
        end -= 1
    return start, end


_REST = r'[^\s<>"“”‘«»—…|\x00]'
link = finder(
    rf"""(?<![^\W_]) (?P<link> (?i:(?:https?|s?ftps?)://|(?<![^\W_]-)www\.)(?=[^\W_]|\[)
        (?:[\w~%+@:\[\]-]|\.(?!\.))++ (?: [/?\#]{_REST}*+ )? )""",
    _without_punctuation,
    gate=r":// | www\. | WWW\.",
)

_LABEL = r"[^\W_]++(?:-++[^\W_]++)*+"
# Without those that are more often file suffixes (py, md, sh); those that are words count only
# before a path, since many texts have no space after a full stop.
_TOP = (
    "(?:com|org|net|edu|gov|mil|int|info|biz|mobi|io|ai|app|dev|co|tv|eu|uk|de|fr|nl|se|fi|dk|es|"
    "ch|ca|au|nz|jp|cn|kr|br|mx|ar|cl|uy|ru|ua|cz|sk|hu|ro|bg|gr|cy|tr|pt|ie|il|za|sg|hk|tw|th|ph|"
    "vn|lt|lv|ee|si|hr|lu|tn|COM|ORG|EDU|GOV|(?:at|be|in|is|it|me|no|to|us)(?=/))(?![^\\W_])"
)
domain = finder(
    rf"""(?<![^\W_]|[@.-]) [.-]*+
    (?P<link> (?:{_LABEL}\.)+ {_TOP}
        (?: :[0-9]{{2,5}}(?![0-9]) )? (?: [/?\#]{_REST}*+ )? )""",
    _without_punctuation,
    gate=rf"\.{_TOP}",
)

email = finder(
    rf"""(?<![\w.+%'-]) [.+%'-]*+
    (?P<address> \w++(?:[.+%'-]++\w++)*+ (?: @ | \ ?[(\[][aA][tT][)\]]\ ? )
        {_LABEL}(?:\.{_LABEL})* \.[^\W\d_]{{2,}}+(?![^\W_]) )""",
    lambda match: match.span("address"),
    gate=r"[@(\[](?: (?<=@) | [aA][tT][)\]] )",
)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


ip4 = finder(
    rf"{BEGIN}(?<![0-9]\.) [0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}} (?![0-9A-Za-z]|\.[0-9])",
    lambda match: match.span() if _is_address(match[0]) else None,
    gate=r"[0-9]\.[0-9]{1,3}\.[0-9]",
)


def _ip6_in_run(match: re.Match[str]) -> Extent | None:
    """The address in a run of word characters and colons: all of it, or what follows `addr:`."""
    for start in (match.start(), match.start() + match[0].index(":") + 1):
        run = match.string[start : match.end()]
        for candidate in (run, run.removesuffix(":")):
            if not 2 < len(candidate) <= 45:
                continue
            # `::` and `a::b` are valid addresses, but seldom meant as such.
            plausible = any(map(str.isdecimal, candidate)) or candidate.count(":") > 2
            if plausible and _is_address(candidate):
                return start, start + len(candidate)
    return None


# The last four bytes may be written as an IPv4 address.
ip6 = finder(
    r"(?<![\w.:]) \w*+:\w*+: (?:[\w:]|(?<=[0-9])\.(?=[0-9]))*+", _ip6_in_run, gate=r":\w*+:"
)
