"""Which tokens are names, by the characters of mentions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.models import tiny
from uedp.models.scratch import byte_tokenizer, fast_tokenizer
from uedp.training.mentions import Mentions, NameTokens
from uedp.training.tasks import NextWord

PIECES = st.text(alphabet="ab é中😀\n.", max_size=12)


def words(trim: bool | None = None):
    """Words with the space before them, as in GPT-2; with offsets trimmed, or not."""
    vocabulary, merges = {"<e>": 0, "Ġ": 1, ",": 2}, []
    for word in ("Ann", "ĠLee", "ĠNew", "ĠYork", "Ġsaid", "ĠĠ"):
        for end in range(1, len(word) + 1):
            vocabulary.setdefault(word[:end], len(vocabulary))
            vocabulary.setdefault(word[end - 1], len(vocabulary))
        merges += [(word[:end], word[end]) for end in range(1, len(word))]
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if trim is not None:
        backend.post_processor = processors.ByteLevel(trim_offsets=trim)
    return fast_tokenizer(backend, eos_token="<e>")


def names_in(text, spans, tokenizer, max_tokens=64):
    """Each token of a text with the categories of its mentions."""
    mentions = Mentions.of_rows([(0, *span) for span in spans])
    task = NextWord([text], tokenizer, max_tokens, mentions=mentions)
    sets = [
        {name for name, own in zip(mentions.categories, row, strict=True) if own}
        for row in task._names.sets
    ]
    tokens = tokenizer.convert_ids_to_tokens(task._ids[0].tolist())
    return list(zip(tokens, (sets[code] for code in task._codes), strict=True))


@pytest.mark.parametrize("trim", [None, False, True])
def test_the_space_before_a_word_belongs_to_it_however_it_is_counted(trim):
    text = "Ann  Lee, New   York said"
    found = names_in(text, [(0, 8, "person"), (10, 20, "loc")], words(trim))
    assert found == [
        ("<e>", set()),
        ("Ann", {"person"}),
        ("Ġ", {"person"}),  # inside the name
        ("ĠLee", {"person"}),
        (",", set()),
        ("ĠNew", {"loc"}),
        ("ĠĠ", {"loc"}),
        ("ĠYork", {"loc"}),
        ("Ġsaid", set()),
        ("<e>", set()),
    ]


@pytest.mark.parametrize("trim", [None, True])
def test_white_space_at_the_ends_of_a_mention_makes_no_names(trim):
    found = names_in("Ann Lee said", [(3, 8, "person")], words(trim))
    assert [token for token, own in found if own] == ["ĠLee"]
    blank = names_in("Ann  Lee said", [(3, 5, "person"), (0, 3, "org")], words(trim))
    assert [own for _, own in blank if own] == [{"org"}]


def test_a_mention_that_is_cut_counts_as_far_as_it_is_kept():
    found = names_in("Ann Lee New York", [(4, 16, "loc")], words(), max_tokens=4)
    assert found == [("<e>", set()), ("Ann", set()), ("ĠLee", {"loc"}), ("ĠNew", {"loc"})]
    assert not any(own for _, own in names_in("Ann Lee New York", [(8, 16, "loc")], words(), 3))


def test_overlapping_mentions_give_a_token_all_their_categories():
    spans = [(0, 3, "person"), (0, 7, "org"), (4, 7, "org")]
    found = names_in("Ann Lee", spans, words())
    assert [own for _, own in found] == [set(), {"person", "org"}, {"org"}, set()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PIECES, PIECES, PIECES), min_size=1, max_size=4), st.integers(2, 9))
def test_tokens_that_share_a_character_with_a_mention(pieces, at_once):
    """Each text is checked by itself, token by token, whatever stands before it."""
    tokenizer = byte_tokenizer()
    texts = ["".join(own) for own in pieces]
    rows = [
        (number, len(left), len(left) + len(name), "person")
        for number, (left, name, _) in enumerate(pieces)
        if name
    ]
    names = NameTokens(Mentions.of_rows(rows))
    for start in range(0, len(texts), at_once):
        batch = texts[start : start + at_once]
        encoded = tokenizer(batch, add_special_tokens=False)
        names.add(batch, encoded, np.array([len(ids) + 2 for ids in encoded["input_ids"]]))
    expected: list[bool] = []
    for left, name, right in pieces:
        blank = len(name) - len(name.lstrip()), len(name.strip())
        inside = [blank[0] <= place < sum(blank) for place in range(len(name))]
        flags = [False] * len(left) + inside + [False] * len(right)
        letters = zip(left + name + right, flags, strict=True)
        expected += [False, *(f for c, f in letters for _ in c.encode()), False]
    assert (names.codes() > 0).tolist() == expected


def test_rows_come_back_in_order():
    rows = [(2, 0, 3, "org"), (0, 4, 5, "person"), (2, 5, 9, "person")]
    mentions = Mentions.of_rows(rows)
    assert mentions.rows() == sorted(rows)
    assert mentions.between(1, None).rows() == [rows[0], rows[2]]
    assert mentions.between(0, 2).rows() == [rows[1]]
    by_sentence = mentions.by_sentence(3)
    assert by_sentence[:, mentions.categories.index("org")].tolist() == [False, False, True]
    assert not Mentions.of_rows([])


def test_a_tokenizer_without_places_leaves_names_unmeasured():
    class Slow:
        bos_token_id, eos_token_id = None, 0

        def __len__(self):
            return tiny.WORDS

        def get_vocab(self):
            return {}

        def __call__(self, texts, **_):
            return {"input_ids": [[1] * len(text) for text in texts]}

    task = NextWord(["Ann"], Slow(), 64, mentions=Mentions.of_rows([(0, 0, 3, "person")]))
    assert task._names is None
