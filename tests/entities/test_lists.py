import pytest

from uedp.entities.lists import PUBLIC_LISTS, Lists, public_list, read_lists
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


# --- lists that come with the package ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("countries", ["Afghanistan", "Zimbabwe", "Côte d'Ivoire", "U.S.", "American", "Danes"]),
        ("months", ["May", "Sept.", "Wednesday", "Thurs", "Sundays"]),
        ("currencies", ["euro", "JPY", "£", "US$", "rubles", "ZMW"]),
    ],
)
def test_shipped_lists_hold_what_they_say(name, some):
    listed = public_list(name)
    assert set(some) <= set(listed.entries)
    assert "" not in listed.entries
    assert not any(entry.startswith("#") for entry in listed.entries)
    assert str(listed) == f"version 1, {len(listed.entries)} entries"


def test_every_member_of_the_united_nations_is_listed():
    """One line each: 193, two observers, Taiwan, Kosovo, four parts of Britain, 11 regions."""
    from importlib.resources import files

    lines = files("uedp.entities").joinpath("public", "countries.txt").read_text().splitlines()
    assert sum(not line.startswith("#") for line in lines) == 193 + 2 + 2 + 4 + 11


def test_shipped_lists_are_switched_on_by_name(tmp_path):
    lists = read_lists(shipped=["months", "countries", "months"])
    assert lists.shipped == ("countries", "months")
    assert {"may", "france"} <= lists.shipped_forms()
    assert not Lists().shipped_forms()
    with pytest.raises(UserError, match="choose among countries, currencies, months"):
        read_lists(shipped=["planets"])
    assert set(PUBLIC_LISTS) == {"countries", "currencies", "months"}


def test_a_deny_list_overrides_a_shipped_one():
    lists = Lists(sensitive={"the U.S.": "gpe"}, shipped=("countries",))
    assert not {"us", "u.s."} & lists.shipped_forms()
    assert "usa" in lists.shipped_forms()


def test_lists_are_combined_and_contradictions_refused():
    first = Lists(public={"Acme": "listed"}, aliases={"AC": "Acme"})
    both = first.with_more(
        Lists(public={"Acme": "on the exchange", "X1": "y"}, shipped=("months",))
    )
    assert both.public == {"Acme": "on the exchange", "X1": "y"}
    assert (both.aliases, both.shipped) == ({"AC": "Acme"}, ("months",))
    with pytest.raises(UserError, match="deny-list"):
        first.with_more(Lists(sensitive={"ACME": "org"}))


def test_another_name_of_a_denied_entity_is_on_no_shipped_list():
    lists = Lists(
        sensitive={"Chad Ltd": "org"}, aliases={"Chad": "Chad Ltd"}, shipped=("countries",)
    )
    assert "chad" not in lists.shipped_forms()
    assert "chad" in Lists(shipped=("countries",)).shipped_forms()
