from pathlib import Path

import numpy as np
import pytest

from tests.models import tiny
from uedp.training import token_store
from uedp.training.token_store import TokenStore, Truncation, count_ids, tokenised

ROWS = [[1, 2, 3], [], [65_535], [7]]


@pytest.mark.parametrize(("ids", "kind"), [(1 << 16, np.uint16), (1 << 17, np.int32)])
def test_rows_come_back_from_the_file(ids, kind):
    store = TokenStore([ROWS[:2], [], ROWS[2:]], ids)
    assert [store[n].tolist() for n in range(len(store))] == ROWS
    assert store.lengths.tolist() == [3, 0, 1, 1]
    assert isinstance(store[0], np.memmap)
    assert store[0].dtype == kind


def test_no_rows_and_empty_ones():
    assert len(TokenStore([], 9)) == 0
    assert TokenStore([[[], []]], 9).lengths.tolist() == [0, 0]


@pytest.mark.parametrize("id_", [-1, 9, 1 << 40])
def test_an_id_that_does_not_fit_is_refused(id_):
    with pytest.raises(ValueError, match=r"outside 0\.\.8"):
        TokenStore([[[id_]]], 9)


def test_the_file_has_no_name(tmp_path, monkeypatch):
    """It can be opened by nobody, and is gone with the process, however it ends."""
    monkeypatch.setattr(token_store.tempfile, "tempdir", str(tmp_path))
    store = TokenStore([ROWS], 1 << 16)
    assert list(tmp_path.iterdir()) == []
    maps = Path("/proc/self/maps")
    if maps.exists():
        (line,) = [line for line in maps.read_text().splitlines() if str(tmp_path) in line]
        assert line.endswith("(deleted)")
    assert store[0].tolist() == [1, 2, 3]
    del store
    assert not maps.exists() or str(tmp_path) not in maps.read_text()


def test_texts_are_tokenised_in_batches(monkeypatch):
    texts = ["the cat", "", "sat on a mat"] * 5
    monkeypatch.setattr(token_store, "AT_ONCE", 4)
    seen = Truncation()
    batches = list(tokenised(texts, tiny.tokenizer(), 64, seen))
    assert [len(batch) for batch in batches] == [4, 4, 4, 3]
    whole = tiny.tokenizer()(texts)["input_ids"]
    assert [ids for batch in batches for ids in batch] == whole
    assert (seen.sentences, seen.of_sentences, seen.tokens) == (0, 15, 0)
    assert seen.of_tokens == sum(map(len, whole))


def test_slow_and_fast_tokenizers_count_alike():
    fast, texts = tiny.tokenizer(), ["abcdefgh", "ab", "abc"]

    def slow(texts, **options):
        return {"input_ids": fast(texts, **options)["input_ids"]}

    counts = []
    for tokenizer in (fast, slow):
        seen = Truncation()
        list(tokenised(texts, tokenizer, 2, seen))
        counts.append((seen.sentences, seen.tokens, seen.of_tokens))
    assert counts[0] == counts[1]
    assert counts[0][0] >= 1


def test_the_warning_in_words():
    seen = Truncation(312, 20_000, 4_100, 100_000)
    assert seen.warning(128) == (
        "312 of 20,000 sentences are longer than 128 tokens: 4.1% of all tokens are cut off and "
        "not learned; raise model.max_tokens, or detect the corpus again with `split=...`"
    )
    assert Truncation(0, 5, 0, 9).warning(8) is None


def test_every_id_of_a_tokenizer_fits():
    tokenizer = tiny.tokenizer()
    assert count_ids(tokenizer) > max(tokenizer.get_vocab().values())


@pytest.mark.parametrize("rows", [[], [0], [2, 0, 0, 3], [1, 1]])
def test_rows_end_to_end(rows):
    kept = [[5, 6, 7], [], [1], [8, 9]]
    ids, lengths = TokenStore([kept], 10).end_to_end(np.array(rows, dtype=np.int64))
    assert ids.tolist() == [one for row in rows for one in kept[row]]
    assert lengths.tolist() == [len(kept[row]) for row in rows]
    assert ids.dtype == np.int64
