"""A corpus that looks wrong is told apart from one that does not."""

import warnings

import pytest

from tests.conftest import marked
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.build import build_corpus
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import register_detector
from uedp.entities.warnings import corpus_warnings, detector_languages, ordinary_entities
from uedp.errors import CorpusWarning

ENGLISH = [
    "I went to the store this morning and bought some bread for dinner",
    "we are going to see a film tomorrow night and you should come too",
    "my brother thinks that the new job will be much better than the old one",
    "there was nothing left to eat so they ordered some food from the place",
    "she told him about the party but he did not want to go there at all",
]
GERMAN = [
    "ich war heute morgen im Laden und habe etwas Brot gekauft",
    "wir gehen morgen Abend ins Kino und du solltest auch mitkommen",
    "mein Bruder glaubt, dass die neue Arbeit viel besser sein wird",
    "es war nichts mehr zu essen da, also haben sie etwas bestellt",
    "sie hat ihm von der Feier erzählt, aber er wollte nicht hingehen",
]


@register_detector("told-words", version="told 1")
class ToldWords:
    """Finds the words in its argument, wherever they stand."""

    propagates = False

    def __init__(self, argument: str | None) -> None:
        self._words = (argument or "").split("+")

    def detect(self, texts):
        for text in texts:
            spans, at = [], 0
            for word in text.split(" "):
                if word in self._words:
                    spans.append(Span(at, at + len(word), "PER"))
                at += len(word) + 1
            yield spans


def corpus_of(folder, texts, detector="labels", users=20, **settings) -> Corpus:
    sentences = [
        text if isinstance(text, Sentence) else Sentence(f"user {number % users}", text)
        for number, text in enumerate(texts)
    ]
    return detect(sentences, folder / "c", Detection((detector,), **settings))


def test_nothing_to_warn_of(tmp_path):
    texts = [f"{text} number {i}" for i in range(20) for text in ENGLISH]
    texts[3] = texts[50] = "Alice said so and Alice did it, in May"
    assert corpus_warnings(corpus_of(tmp_path, texts, "told-words:Alice")) == []


def test_only_patterns(tmp_path):
    sentences = [Sentence(str(n), f"mail {n}a@example.com number {n}") for n in range(30)]
    corpus = detect(sentences, tmp_path / "c", Detection(("patterns:GB",)))
    assert "no names: people" in corpus_warnings(corpus)[0]
    assert "`detectors='patterns,spacy:en_core_web_sm'`" in corpus_warnings(corpus)[0]


def test_no_entity_at_all(tmp_path):
    (found,) = corpus_warnings(corpus_of(tmp_path, [f"no. {n}" for n in range(30)]))
    assert found.startswith("no entity was found in any sentence")


def test_ordinary_words_are_named_and_names_are_not(tmp_path):
    texts = [
        *["Alice saw it", "and it rained", "Later we slept", "The US and May", "Will Smith and US"],
        *["Later on it was so", "Mark my words", "in May and in May", "he met Will and Mark"],
    ]
    words = "it+Later+US+May+Alice+Will+Mark"
    corpus = corpus_of(tmp_path, texts * 10, f"told-words:{words}")
    # Will and Mark begin one sentence of two: no majority
    assert sorted(ordinary_entities(corpus)) == ["Later", "it"]
    (found,) = (line for line in corpus_warnings(corpus) if "ordinary" in line)
    assert found.startswith("of the 50 entities with the most users, 2 are ordinary words (")
    assert "Alice" not in found
    assert "`allow_list=...`" in found


def test_five_ordinary_words_are_named_at_most(tmp_path):
    words = "to is it my him as".split()
    corpus = corpus_of(tmp_path, [f"x {word} x" for word in words], f"told-words:{'+'.join(words)}")
    (found,) = (line for line in corpus_warnings(corpus) if "ordinary" in line)
    assert '6 are ordinary words ("to", "is", "it", "my", "him", ...)' in found


def test_normalised_text_has_no_case_to_judge_by(tmp_path):
    corpus = corpus_of(tmp_path, ["in May"] * 3, "told-words:May", normalised=True)
    assert ordinary_entities(corpus) == []


@pytest.mark.parametrize(("sensitive", "warned"), [(10, False), (12, True)])
def test_more_than_half_of_the_sentences(tmp_path, sensitive, warned):
    texts = [f"Alice {n}" for n in range(sensitive)] + [f"x {n}" for n in range(20 - sensitive)]
    found = corpus_warnings(corpus_of(tmp_path, texts, "told-words:Alice"))
    assert any("60% of the sentences are sensitive" in line for line in found) == warned


def test_human_marks_that_are_not_protected(tmp_path):
    sentence = marked("a", "Ann has 5% in 1999", ("Ann", "PER"), ("5%", "PERCENT"))
    (found,) = (
        line for line in corpus_warnings(corpus_of(tmp_path, [sentence])) if "marks" in line
    )
    assert found == (
        "1 human marks are of categories that are not protected (percent); protect them with "
        "`categories='all'`"
    )


def test_one_user_with_a_tenth(tmp_path):
    texts = [Sentence("unknown", f"a {n}") for n in range(9)]
    others = [Sentence(f"user {n}", f"b {n}") for n in range(91)]
    for extra, warned in ((0, False), (2, True)):
        more = [Sentence("unknown", f"c {n}") for n in range(extra)]
        corpus = corpus_of(tmp_path / str(extra), [*texts, *others, *more])
        found = [line for line in corpus_warnings(corpus) if "one user" in line]
        assert bool(found) == warned
    assert "'unknown', wrote 11% of the sentences" in found[0]


def test_a_few_sentences_say_nothing(tmp_path):
    sentence = marked("a", "Ann wrote to me and to all the others yesterday", ("Ann", "PER"))
    assert corpus_warnings(corpus_of(tmp_path, [sentence] * 19)) == []
    assert len(corpus_warnings(corpus_of(tmp_path / "more", [sentence] * 20))) == 3


def test_few_users_have_a_tenth_each(tmp_path):
    for users, said in ((1, "by only one user:"), (5, "by only 5 users:"), (20, None)):
        corpus = corpus_of(tmp_path / str(users), [f"a {n}" for n in range(100)], users=users)
        found = [line for line in corpus_warnings(corpus) if "`user=...`" in line]
        assert all(said in line for line in found) if said else found == []
        assert len(found) == bool(said)


def test_texts_that_are_repeated(tmp_path):
    text = "Sent from my telephone, please excuse typing errors"
    unique = [f"{text} {n}" for n in range(80)]
    short = ["ok thanks"] * 100
    apart = corpus_warnings(corpus_of(tmp_path, unique + short))
    assert not any("repeat" in line for line in apart)
    corpus = corpus_of(tmp_path / "more", unique + [text] * 20, users=10)
    (found,) = (line for line in corpus_warnings(corpus) if "repeat" in line)
    # twenty copies by ten users: 19 repeat the first, of which two are by its own user
    assert found.startswith("19 sentences (19%) repeat another one, 18 of them by another user")
    assert "as if each had written their own" in found
    corpus = corpus_of(tmp_path / "one", unique + [Sentence("one", text)] * 20)
    (found,) = (line for line in corpus_warnings(corpus) if "repeat" in line)
    assert "19 sentences (19%) repeat another one, 0 of them by another user: a user's" in found


def test_a_language_that_the_detector_does_not_know(tmp_path, monkeypatch):
    corpus = corpus_of(tmp_path, [*GERMAN, *GERMAN, *ENGLISH])
    for detectors, warned in (
        ({"spacy:en_core_web_sm": "spacy 3.8.1, en_core_web_sm 3.8.0"}, True),
        ({"spacy:a/folder": "spacy 3.8.1, en_pipeline 0.0.0", "patterns": "uedp 1"}, True),
        ({"presidio": "presidio-analyzer 2, spacy 3.8.1, en_core_web_lg 3.8.0"}, True),
        ({"stanza:en": "stanza 1"}, True),
        ({"stanza:de": "stanza 1", "stanza:en": "stanza 1"}, False),
        ({"spacy:xx_ent_wiki_sm": "spacy 3.8.1, xx_ent_wiki_sm 3.8.0"}, False),
        ({"stanza:en": "stanza 1", "transformers:own": "transformers 5"}, False),
        ({"patterns": "uedp 1"}, False),
    ):
        corpus.info |= {"detectors": list(detectors), "detector_versions": detectors}
        found = [line for line in corpus_warnings(corpus) if "language" in line]
        assert bool(found) == warned, detectors
        if warned:
            assert "67% of the sentences" in found[0]
            assert "knows (English), most of them in German" in found[0]


def test_english_is_english(tmp_path):
    corpus = corpus_of(tmp_path, ENGLISH * 4)
    corpus.info |= {"detectors": ["stanza:en"], "detector_versions": {}}
    assert not any("language" in line for line in corpus_warnings(corpus))


def test_languages_of_detectors():
    assert detector_languages([("labels", "human marks"), ("stanza:zh-hans", "")]) == {"zh"}
    assert detector_languages([("own.py:own", "1")]) is None
    assert detector_languages([("spacy:gone", "spacy 3, gone, version unknown")]) is None


def test_building_a_corpus_warns(tmp_path):
    table = tmp_path / "messages.jsonl"
    table.write_text('{"user": "a", "text": "call 555-0133"}\n')
    with pytest.warns(CorpusWarning, match="no names"):
        build_corpus(table, tmp_path / "c")
    heard: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_corpus(table, tmp_path / "d", on_warning=heard.append)
    assert any("no names" in line for line in heard)


def test_the_remedy_can_be_pasted_into_python(tmp_path):
    table = tmp_path / "messages.jsonl"
    table.write_text('{"user": "a", "text": "call 555-0133"}\n')
    corpus = build_corpus(table, tmp_path / "c", detectors="patterns, told-words:call")
    assert corpus.info["detectors"] == ["patterns", "told-words:call"]
    assert not any("no names" in line for line in corpus_warnings(corpus))
