import pytest

from uedp.entities.lists import Lists, read_lists
from uedp.errors import UserError


def write(path, content):
    path.write_text(content)
    return path


def test_all_three(tmp_path):
    lists = read_lists(
        write(tmp_path / "allow.csv", 'entity,reason\n"Reuters, Ltd",news agency\n'),
        write(tmp_path / "deny.csv", "entity,category\nProject X,product\n"),
        write(tmp_path / "alias.csv", "alias,entity\nBig Blue,IBM\n"),
    )
    assert lists.public == {"Reuters, Ltd": "news agency"}
    assert lists.sensitive == {"Project X": "product"}
    assert lists.aliases == {"Big Blue": "IBM"}


def test_nothing_is_public_without_a_reason(tmp_path):
    path = write(tmp_path / "allow.csv", "entity,reason\nReuters,\n")
    with pytest.raises(UserError, match=r"allow.csv:2: empty 'reason'.*it is recorded"):
        read_lists(path, None, None)


def test_conflicts_and_empty_files_are_refused(tmp_path):
    allow = write(tmp_path / "a.csv", "entity,reason\nBob-Smith,known\n")
    deny = write(tmp_path / "d.csv", "entity,category\nbob smith,person\n")
    with pytest.raises(UserError, match="take it off one"):
        read_lists(allow, deny, None)
    with pytest.raises(UserError, match="has no entries"):
        read_lists(None, write(tmp_path / "e.csv", "entity,category\n"), None)
    with pytest.raises(UserError, match="listed twice"):
        read_lists(None, None, write(tmp_path / "t.csv", "alias,entity\nx,IBM\nx,HP\n"))


@pytest.mark.parametrize(
    "entry", ["\u200b", "\u200b \ufeff", "\u00ad", "\u2060", "\u0301", "\ufe0f"]
)
def test_an_entry_of_nothing_visible_is_refused(entry, tmp_path):
    deny = write(tmp_path / "d.csv", f"entity,category\nX Corp,org\n{entry},org\n")
    with pytest.raises(UserError, match=r"d.csv:3: empty 'entity'"):
        read_lists(None, deny, None)
    with pytest.raises(UserError, match=r"a.csv:2: empty 'alias'"):
        read_lists(None, None, write(tmp_path / "a.csv", f"alias,entity\n{entry},IBM\n"))
    for lists in (
        {"sensitive": {entry: "org"}},
        {"public": {entry: "x"}},
        {"aliases": {"a": entry}},
    ):
        with pytest.raises(UserError, match="without a visible character"):
            Lists(**lists)


def test_symbols_are_entries(tmp_path):
    deny = write(tmp_path / "d.csv", "entity,category\n☃,org\nX,org\n")
    assert set(read_lists(None, deny, None).sensitive) == {"☃", "X"}


def test_unknown_category_and_missing_column(tmp_path):
    with pytest.raises(UserError, match="unknown category 'secret'"):
        read_lists(None, write(tmp_path / "d.csv", "entity,category\nX,secret\n"), None)
    with pytest.raises(UserError, match=r"a.csv:1: .*must be `entity,reason`"):
        read_lists(write(tmp_path / "a.csv", "entity\nX\n"), None, None)
