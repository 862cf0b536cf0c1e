import collections
import gzip
import hashlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from uedp.errors import UserError
from uedp.sample import generate as sample
from uedp.sample.words import FIRST_NAMES, LAST_NAMES, NAMES, RULES, TOPICS

HOUSES = {
    *NAMES["employers"],
    *NAMES["carriers"],
    *NAMES["hotels"],
    *NAMES["vendors"],
    *NAMES["agencies"],
}
ORGANISATIONS = HOUSES | {
    *map(" ".join, itertools.product(NAMES["client_stems"], NAMES["client_trades"])),
}
MONTH = "(January|February|March|April|May|June|July|August|September|October|November|December)"
WEEKDAY = "(Monday|Tuesday|Wednesday|Thursday|Friday)"
PHONE = r"(\(\d{3}\) 555-01\d\d|\d{3}-555-01\d\d|\+1 \d{3} 555 01\d\d|\d{3}\.555\.01\d\d)"
PATTERNS = {
    "PHONE": PHONE,
    "EMAIL": r"[a-z.]+@([a-z]+\.example|[a-z]+\.example\.(com|org|net))",
    "ACCOUNT": r"AC-\d{8}",
    "DATE": rf"({WEEKDAY}|{MONTH}|\d{{1,2}} {MONTH}( \d{{4}})?|{MONTH} \d{{1,2}}|\d{{4}}-\d\d-\d\d"
    rf"|\d{{1,2}}/\d{{1,2}}/\d{{4}}|([Tt]oday|[Tt]omorrow|[Yy]esterday)"
    rf"|(last|next) (week|month|{WEEKDAY})|the end of the week)",
}


@pytest.fixture(scope="module", params=[0, 1])
def corpus(request):
    return list(sample.sample_sentences(request.param))


def surfaces(sentence):
    return [(mark.label, sentence.text[mark.start : mark.end]) for mark in sentence.marks]


def unmarked(sentence):
    """The text with every mark blotted out, offsets kept."""
    text = list(sentence.text)
    for mark in sentence.marks:
        text[mark.start : mark.end] = "#" * (mark.end - mark.start)
    return "".join(text)


def holders(sentences):
    """Who mentions each entity; a phone number is the same in any notation."""
    users = collections.defaultdict(set)
    for sentence in sentences:
        for label, surface in surfaces(sentence):
            if label == "PHONE":
                surface = re.sub(r"\D", "", surface)[-10:]
            users[label, surface.casefold()].add(sentence.user)
    return users


def test_each_mark_covers_exactly_an_entity_of_its_label(corpus):
    seen = collections.Counter()
    for sentence in corpus:
        for label, surface in surfaces(sentence):
            seen[label] += 1
            if label == "PERSON":
                first, *last = surface.split(" ")
                assert first in FIRST_NAMES
                assert last == [] or (len(last) == 1 and last[0] in LAST_NAMES)
            elif label == "ORG":
                assert surface in ORGANISATIONS
            elif label == "GPE":
                assert surface in NAMES["cities"]
            else:
                assert re.fullmatch(PATTERNS[label], surface), (label, surface)
    assert set(seen) == {"PERSON", "ORG", "GPE", "DATE", "PHONE", "EMAIL", "ACCOUNT"}
    assert min(seen.values()) > 100


def test_marks_are_in_order_and_apart(corpus):
    for sentence in corpus:
        bounds = [bound for mark in sentence.marks for bound in (mark.start, mark.end)]
        assert bounds == sorted(bounds)
        for mark in sentence.marks:
            assert 0 <= mark.start < mark.end <= len(sentence.text)
            # no mark stops inside a word
            around = sentence.text[mark.start - 1 : mark.start] + sentence.text[mark.end :][:1]
            assert not any(character.isalnum() for character in around), sentence


def test_no_name_is_left_unmarked(corpus):
    names = {
        *FIRST_NAMES,
        *LAST_NAMES,
        *NAMES["cities"],
        *NAMES["client_stems"],
        *HOUSES,
    }
    loose = re.compile(r"\b(" + "|".join(map(re.escape, sorted(names))) + r")\b")
    for sentence in corpus:
        assert not loose.search(unmarked(sentence)), sentence


def test_no_number_address_or_date_is_left_unmarked(corpus):
    loose = re.compile(
        r"\d|@|\.example|"
        r"\b(today|tomorrow|yesterday|tonight|(mon|tues|wednes|thurs|fri|satur|sun)day"
        r"|january|february|march|april|june|july|august|september|october|november|december"
        r"|(day|week|weekend|month|quarter|year|hour|minute|morning|afternoon|evening|night|noon"
        r"|spring|summer|autumn|winter)s?|daily|weekly|monthly|annual|quarterly"
        r"|two|three|four|five|six|seven|eight|nine|ten|twelve|dozen|hundred|thousand|half"
        r"|first|second|third)\b",
        re.IGNORECASE,
    )
    for sentence in corpus:
        assert not loose.search(unmarked(sentence)), sentence
        assert not re.search(r"\bMay\b", unmarked(sentence)), sentence


def test_unmarked_capitals_are_only_sentence_starts(corpus):
    """Catches a proper name that the lists above do not know."""
    common = set(re.findall(r"\b[a-z]+", " ".join(itertools.chain(*RULES.values()))))
    for sentence in corpus:
        text = unmarked(sentence)
        for match in re.finditer(r"\b[A-Z]\w*", text):
            starts = match.start() == 0 or re.search(r"[.?!] $", text[: match.start()])
            allowed = match[0].lower() in common if starts else False
            assert allowed or match[0] in {"I", "CV", "PDF"}, (match[0], sentence)


def test_name_lists_do_not_overlap():
    lists = [
        set(FIRST_NAMES),
        set(LAST_NAMES),
        set(NAMES["cities"]),
        set(NAMES["client_stems"]),
        {name.split()[0] for name in NAMES["employers"]},
    ]
    for one, other in itertools.combinations(lists, 2):
        assert not one & other


def test_the_text_is_well_formed(corpus):
    for sentence in corpus:
        text = sentence.text
        assert not re.search(r"[{}\[\]|\x00-\x1f]|\(n\)|  | [,.;:?!]|[,.;:][,.;:]", text), text
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text), text
        assert not re.search(r"\b(\w+) \1\b", text), text
        assert text[0].isupper()
        assert 6 <= len(text.split()) <= 40


def test_same_seed_same_corpus():
    assert list(sample.sample_sentences(3, 40)) == list(sample.sample_sentences(3, 40))


@pytest.mark.parametrize(
    ("seed", "people", "digest"),
    [
        (0, 300, "3f790ce2240e60ec41c24a3f215084cf85bcfda54ce99f952d1613be8e4706ad"),
        (7, 40, "6545c4be95daecf64cf8c29459043b3fe0c2f2a9e2948d1c4209f39be89a95f2"),
    ],
)
def test_a_seed_gives_the_same_bytes_in_every_version(tmp_path, seed, people, digest):
    sample.write_sample(tmp_path / "sample.jsonl", seed, people)
    assert hashlib.sha256((tmp_path / "sample.jsonl").read_bytes()).hexdigest() == digest


def test_other_seed_other_corpus():
    one, other = ({s.text for s in sample.sample_sentences(seed, 40)} for seed in (3, 4))
    assert len(one & other) < 0.05 * len(one)


def test_the_corpus_does_not_depend_on_the_order_of_sets():
    script = "from uedp.sample.generate import *; print(list(sample_sentences(3, 40)))"
    digests = {
        hashlib.sha256(
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                capture_output=True,
                check=True,
            ).stdout
        ).hexdigest()
        for hash_seed in ("1", "2")
    }
    assert digests == {
        hashlib.sha256(f"{list(sample.sample_sentences(3, 40))!r}\n".encode()).hexdigest()
    }


def test_everyone_writes_eight_to_twenty_messages(corpus):
    counts = collections.Counter(sentence.user for sentence in corpus)
    assert len(counts) == 300
    assert min(counts.values()) == 8
    assert max(counts.values()) == 20


def test_topics_are_balanced(corpus):
    counts = collections.Counter(sentence.label for sentence in corpus)
    assert set(counts) == set(TOPICS)
    assert max(counts.values()) < 2 * min(counts.values())


def test_every_topic_has_many_templates():
    for topic in TOPICS:
        assert len(RULES[f"{topic}_named"]) >= 25
        assert len(RULES[f"{topic}_plain"]) >= 15


def test_entities_have_a_long_tail(corpus):
    counts = [len(users) for users in holders(corpus).values()]
    assert sum(count <= 2 for count in counts) > 0.6 * len(counts)
    assert max(counts) > 0.5 * 300
    for private in ("PERSON", "PHONE", "EMAIL", "ACCOUNT"):
        counts_of = [
            len(users) for (label, _), users in holders(corpus).items() if label == private
        ]
        assert sum(count <= 2 for count in counts_of) > 0.6 * len(counts_of)
    # ... and a middle: neither all rare nor all common
    assert sum(3 <= count <= 60 for count in counts) > 0.1 * len(counts)


def test_some_of_each_kind_are_known_to_several_people(corpus):
    most = collections.Counter()
    for (label, _), users in holders(corpus).items():
        most[label] = max(most[label], len(users))
    assert all(most[label] >= 4 for label in ("PERSON", "ORG", "GPE", "DATE", "EMAIL", "ACCOUNT"))
    assert most["PHONE"] >= 4


def test_a_person_has_one_phone_number_of_their_own(corpus):
    numbers = collections.defaultdict(set)
    for sentence in corpus:
        for mark, following in itertools.pairwise(sentence.marks):
            between = sentence.text[mark.end : following.start]
            if following.label == "PHONE" and between in {" on ", " at ", " back on "}:
                digits = re.sub(r"\D", "", sentence.text[following.start : following.end])[-10:]
                numbers[sentence.text[mark.start : mark.end]].add(digits)
    assert len(numbers) > 50
    assert all(len(digits) == 1 for digits in numbers.values())
    assert len(set.union(*numbers.values())) == len(numbers)


def test_about_a_third_of_the_messages_name_nothing(corpus):
    plain = sum(not sentence.marks for sentence in corpus)
    assert 0.25 < plain / len(corpus) < 0.4


def test_the_language_is_varied(corpus):
    vocabulary = {
        word for sentence in corpus for word in re.findall(r"[a-z-]+", unmarked(sentence).lower())
    }
    assert len(vocabulary) >= 900
    assert len({sentence.text for sentence in corpus}) > 0.95 * len(corpus)


def test_what_is_learned_from_some_users_helps_with_others(corpus):
    """Word pairs predict unseen users' text far better than single words do."""
    tokens = {True: [], False: []}
    for sentence in corpus:
        words = re.findall(r"#+|[a-z'-]+|[.,?!;:]", unmarked(sentence).lower())
        tokens[int(sentence.user[1:]) % 10 == 0] += [
            "<s>",
            *("#" if "#" in w else w for w in words),
        ]
    single, total = collections.Counter(tokens[False]), len(tokens[False])
    pairs = collections.Counter(itertools.pairwise(tokens[False]))

    def alone(word):
        return (single[word] + 0.5) / (total + 0.5 * 2000)

    def after(previous, word):
        return (pairs[previous, word] + 5 * alone(word)) / (single[previous] + 5)

    test = list(itertools.pairwise(tokens[True]))
    bits_alone = -sum(math.log2(alone(word)) for _, word in test) / len(test)
    bits_after = -sum(math.log2(after(*pair)) for pair in test) / len(test)
    assert 3 < bits_after < bits_alone - 2


@pytest.mark.parametrize("people", [1, 2, 9])
def test_any_number_of_people_will_do(people):
    users = {sentence.user for sentence in sample.sample_sentences(0, people)}
    assert len(users) == people


def test_no_people_is_refused():
    with pytest.raises(UserError, match="people is 0"):
        next(sample.sample_sentences(0, 0))


def test_write_gives_what_sentences_gives(tmp_path):
    path = tmp_path / "sample.jsonl"
    expected = list(sample.sample_sentences(5, 30))
    assert sample.write_sample(path, 5, 30) == len(expected)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert records == [
        {
            "user": sentence.user,
            "text": sentence.text,
            "label": sentence.label,
            "marks": [{"start": m.start, "end": m.end, "label": m.label} for m in sentence.marks],
        }
        for sentence in expected
    ]


def test_write_compresses_by_name_and_without_a_clock(tmp_path, monkeypatch):
    plain, packed, again = (tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.gz"))
    sample.write_sample(plain, 5, 30)
    sample.write_sample(packed, 5, 30)
    monkeypatch.setattr("time.time", lambda: 2e9)
    sample.write_sample(again, 5, 30)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()


def test_write_leaves_nothing_when_it_fails(tmp_path, monkeypatch):
    def disk_full(self, data):
        self.touch()
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", disk_full)
    with pytest.raises(OSError, match="No space"):
        sample.write_sample(tmp_path / "sample.jsonl", 5, 30)
    assert list(tmp_path.iterdir()) == []


def test_every_fifth_person_can_be_held_out(tmp_path):
    whole, most, rest = (tmp_path / name for name in ("whole", "most", "rest"))
    sample.write_sample(whole, 5, 30)
    counts = sample.write_sample_split(most, rest, 5, 30)
    users = [
        {json.loads(line)["user"] for line in path.read_text().splitlines()}
        for path in (most, rest)
    ]
    assert not users[0] & users[1]
    assert [len(found) for found in users] == [24, 6]
    both = most.read_text().splitlines() + rest.read_text().splitlines()
    assert len(both) == sum(counts)
    assert sorted(both) == sorted(whole.read_text().splitlines())
