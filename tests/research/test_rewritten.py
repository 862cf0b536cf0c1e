"""Public text in the spelling of the private text."""

from pathlib import Path

import pytest

from research.datasets import save_texts
from research.rewritten import as_conll, public_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Microsoft #39;s OS Update.", "Microsoft 's OS Update ."),
        ("&lt;b&gt;...&lt;/b&gt; French is spoken", "... French is spoken"),
        ("quot;I don't know, quot; he said.", '" I do n\'t know , " he said .'),
        ("coral\\reefs rose 5.5% (AP)", "coral reefs rose 5.5 percent ( AP )"),
        ("Clippers Beat Nets 101-88", "Clippers Beat Nets 101-88"),
        (
            "O'Hare, U.S. and Mr. J. Smith paid $1,000.",
            "O'Hare , U.S. and Mr. J. Smith paid $ 1,000 .",
        ),
        ("&lt;br&gt;", ""),
    ],
)
def test_news_is_written_as_conll_has_it(text: str, expected: str) -> None:
    assert as_conll(text) == expected


def test_what_was_markup_only_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "ag-sentences"
    folder.mkdir()
    save_texts(folder, "train", ["&lt;br&gt;", "It rose 5%."], ["a", "b"])
    text = public_text(tmp_path, "ag-as-conll")
    assert (text.texts, text.labels, text.name) == (["It rose 5 percent ."], ["b"], "ag-as-conll")


def test_a_data_set_may_be_public_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "ag"
    folder.mkdir()
    save_texts(folder, "train", ["It rose 5%."], [None])
    assert public_text(tmp_path, "ag").texts == ["It rose 5%."]
