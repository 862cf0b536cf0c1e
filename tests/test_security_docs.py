"""The tests that docs/security.md names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def named() -> list[tuple[str, str]]:
    found, file = [], ""
    for path, test in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", TEXT):
        file = path or file
        if path or test:
            found.append((file, test))
    return found


def test_many_are_named():
    assert len(named()) > 50


@pytest.mark.parametrize(("file", "test"), named())
def test_a_test_that_is_named_exists(file, test):
    source = (ROOT / file).read_text(encoding="utf-8")
    assert not test or re.search(rf"^def {test}\(", source, re.MULTILINE)
