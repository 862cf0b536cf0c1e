"""DPNR: the published budget is refuted, the proven one holds and cannot be improved."""

import itertools
import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_laplace_mechanism
from scipy import special, stats

from research.baselines.dpnr import (
    Change,
    Dpnr,
    drop_words,
    kept_words,
    noisy,
    normalised,
    pair_epsilon,
)
from uedp.accounting.divergence import Floats
from uedp.audit.bounds import Scores, Trial, threshold_epsilon
from uedp.errors import UserError

Vector = Callable[[str], Floats]


# --- every coin and every output, exactly --------------------------------------------------------


def worlds(text: str, method: Dpnr, extract: Vector) -> list[tuple[float, Floats]]:
    """What is released without noise, and how likely it is, over all coins."""
    words = text.split()
    outcomes = []
    for kept in itertools.product([True, False], repeat=len(words)):
        chance = math.prod(1 - method.dropout if stays else method.dropout for stays in kept)
        row = normalised(extract(kept_words(words, kept, method.blank))[None])[0]
        if chance:
            outcomes.append((chance, row))
    return outcomes


def exact_epsilon(one: str, other: str, method: Dpnr, extract: Vector) -> float:
    """The largest log-ratio of densities over all outputs, either way round.

    Between neighbouring values of a coordinate, others fixed, a density is `A e^(ey) + B e^(-ey)`,
    and the ratio of two such is monotone: the largest is at a corner of the grid of all values.
    """
    both = [worlds(text, method, extract) for text in (one, other)]
    values = np.stack([row for side in both for _, row in side])
    axes = [np.unique(column) for column in values.T]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, values.shape[1])
    logs = []
    for side in both:
        exponents = [-method.epsilon * np.abs(grid - row).sum(1) for _, row in side]
        chances = np.array([chance for chance, _ in side])[:, None]
        logs.append(special.logsumexp(np.stack(exponents), axis=0, b=chances))
    return float(np.abs(logs[0] - logs[1]).max())


def random_extract(dimensions: int, seed: int, extreme: bool) -> Vector:
    """Some function of a text, the same whenever it is asked."""

    def extract(text: str) -> Floats:
        rng = np.random.default_rng((seed, zlib.crc32(text.encode())))
        row = rng.normal(size=dimensions)
        return np.sign(row) if extreme else row

    return extract


CHANGES: dict[Change, tuple[str, str]] = {
    "replaced": ("one two three", "one four three"),
    "removed": ("one two three", "one three"),
    "text": ("one two three", "five four"),
}


@pytest.mark.parametrize("blank", [None, "_"])
@pytest.mark.parametrize("changed", CHANGES)
def test_what_is_proven_holds_for_any_encoder(changed: Change, blank: str | None) -> None:
    """Guarantee of Dpnr: 200 random encoders, half of them with values of 0 and 1 only."""
    rng = np.random.default_rng(0)
    closest = 0.0
    for seed in range(200):
        method = Dpnr(rng.uniform(0.1, 2), rng.choice([0, 0.1, 0.5, 0.9]), blank)
        dimensions = int(rng.integers(1, 4))
        extract = random_extract(dimensions, seed, extreme=bool(seed % 2))
        exact = exact_epsilon(*CHANGES[changed], method, extract)
        proven = method.proven(dimensions, changed=changed)
        assert exact <= proven + 1e-9
        closest = max(closest, exact / proven)
    assert closest > 0.6  # and not for being far away


def corner(dimensions: int, secret: str) -> Vector:
    """Opposite corners of the cube, by whether a text has a word."""
    one: Floats = np.arange(dimensions, dtype=np.float64) % 2
    return lambda text: one if secret in text.split() else 1 - one


@pytest.mark.parametrize("dimensions", [2, 3, 8])
@pytest.mark.parametrize("dropout", [0.0, 0.25, 0.9])
def test_the_proven_epsilon_is_reached(dimensions: int, dropout: float) -> None:
    """Guarantee of Dpnr: so the published one, which is less, is violated, with certainty."""
    method = Dpnr(0.3, dropout)
    exact = exact_epsilon("one two", "one four", method, corner(dimensions, "two"))
    assert exact == pytest.approx(method.proven(dimensions), abs=1e-9)
    assert exact > method.published + 0.01


def test_a_blank_shows_that_a_word_is_missing() -> None:
    """A text with a word less is still shorter after dropout: what dropout hides must not count."""

    def by_length(text: str) -> Floats:
        return np.array([0.0, 1.0]) if len(text.split()) % 2 else np.array([1.0, 0.0])

    method = Dpnr(0.5, 0.5, blank="_")
    exact = exact_epsilon("one two", "one", method, by_length)
    assert exact == pytest.approx(method.proven(2, changed="removed")) == pytest.approx(1.0)
    assert exact > method.proven(2, changed="replaced") + 0.3


def test_noise_for_one_draw_of_words_is_one_release_of_more_dimensions() -> None:
    """Docstring of proven: the text is seen twice through the same coins."""
    method = Dpnr(0.4, 0.5)
    once = exact_epsilon("two", "four", method, corner(4, "two"))  # twice two dimensions
    assert once == pytest.approx(method.proven(4))
    assert once > method.proven(2, releases=2) + 0.05


# --- attacks on the mechanism as it runs ---------------------------------------------------------


def lower_bound(method: Dpnr, dimensions: int, runs: int = 40_000) -> float:
    """What an attacker who knows the encoder proves of the mechanism, with confidence 99.9%."""
    rng = np.random.default_rng(7)
    row = corner(dimensions, "two")
    sides = row("two"), row("four")

    def extract(texts: Sequence[str]) -> Floats:
        return np.stack([row(text) for text in texts])

    scores = []
    for text in ("one two", "one four"):
        seen = method.release([text] * runs, extract, rng)
        distances = [np.abs(seen - side).sum(1) for side in sides]
        scores.append(distances[1] - distances[0])
    trial = Trial([Scores("ratio", scores[0], scores[1])], 0.999)
    point = trial.test(lambda right, wrong, _: threshold_epsilon(right, wrong, 0.0))
    return float(threshold_epsilon(np.array(point.right), np.array(point.wrong), 0.0))


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_an_attack_refutes_the_published_epsilon_only(dropout: float) -> None:
    """Either assertion fails by chance at most once in a thousand times."""
    method = Dpnr(0.25, dropout)
    bound = lower_bound(method, 8)
    assert bound > 4 * method.published
    assert bound <= method.proven(8)


def test_the_attack_would_notice_half_the_noise() -> None:
    assert lower_bound(Dpnr(0.5, 0.25), 8) > Dpnr(0.25, 0.25).proven(8)


# --- numbers -------------------------------------------------------------------------------------


def test_the_appendix_example() -> None:
    assert Dpnr(0.05).proven(768) == pytest.approx(38.4)
    assert Dpnr(0.05).published == 0.05
    assert Dpnr(0.05, 0.5).proven(768) == pytest.approx(math.log(0.5 * math.exp(38.4) + 0.5))
    assert Dpnr(1.0, 0.3).published == pytest.approx(math.log(0.7 * math.e + 0.3))
    assert Dpnr(0.05, 0.5).proven(768, releases=3) == pytest.approx(3 * (38.4 - math.log(2)))
    assert Dpnr(10.0, 0.5).proven(768) == pytest.approx(7680 - math.log(2))  # e^7680 is no number
    assert Dpnr(10.0, 1.0).proven(768) == 0


def test_epsilon_at_a_delta_is_that_of_composed_laplace_noise() -> None:
    """dp-accounting's own discretisation as a second opinion; one coordinate in closed form."""
    theirs = from_laplace_mechanism(20, value_discretization_interval=1e-4).self_compose(768)
    assert Dpnr(0.05).proven_at(1e-5, 768) == pytest.approx(
        theirs.get_epsilon_for_delta(1e-5), rel=1e-3
    )
    assert Dpnr(0.05).proven_at(1e-5, 96, releases=8) == Dpnr(0.05).proven_at(1e-5, 768)
    assert Dpnr(0.7).proven_at(0.1, 1) == pytest.approx(0.7 + 2 * math.log(0.9), abs=1e-4)
    assert Dpnr(50.0).proven_at(1e-5, 384) == Dpnr(50.0).proven(384)
    assert Dpnr(1.0, 0.9).proven_at(0.2, 10) == 0


def binned(places: Sequence[float], chances: Sequence[float], epsilon: float) -> Floats:
    """Chances of the bins of a fine grid; beyond 0 and 1 all outputs tell the same.

    Binning is post-processing: what it shows is never above the truth.
    """
    edges = np.array([-np.inf, *np.linspace(0, 1, 201), np.inf])
    below = stats.laplace.cdf(edges[:, None], loc=np.array(places), scale=1 / epsilon)
    masses: Floats = np.diff(below @ np.array(chances))
    return masses


@pytest.mark.parametrize("releases", [1, 2])
def test_epsilon_at_a_delta_covers_dropout(releases: int) -> None:
    """One dimension: kept at `c` or dropped to `a`, against kept at `b` or dropped to `a`."""
    rng = np.random.default_rng(3)
    closest = 0.0
    for case in range(60):
        method = Dpnr(rng.uniform(0.5, 3), rng.choice([0, 0.3, 0.7]))
        a, b, c = rng.uniform(0, 1, 3) if case % 3 else (0, 0, 1)
        delta = rng.choice([0.02, 0.1, 0.2])
        chances = 1 - method.dropout, method.dropout
        mixed = [binned((kept, a), chances, method.epsilon) for kept in (c, b)]
        if releases == 2:
            mixed = [np.outer(one, one).ravel() for one in mixed]
        bound = method.proven_at(delta, 1, releases)
        for ours, theirs in (mixed, mixed[::-1]):
            value = float(np.maximum(ours - math.exp(bound) * theirs, 0).sum())
            assert value <= delta + 1e-12
            closest = max(closest, value / delta)
    assert closest > 0.95


def test_one_word_on_real_rows_is_exact() -> None:
    rows = np.array([[0.0, 1.0, 0.25], [0.5, 0.0, 1.0]])
    exact = exact_epsilon("two", "four", Dpnr(0.8), lambda text: rows[int(text == "four")])
    assert pair_epsilon(rows[0], rows[1], 0.8) == pytest.approx(exact)


# --- how well anyone can tell classes apart ------------------------------------------------------


@pytest.mark.parametrize(("classes", "dimensions"), [(2, 16), (4, 48)])
def test_no_classifier_errs_less_than_the_least_error(classes: int, dimensions: int) -> None:
    """The likeliest class, for encoders that put classes on corners; fails one time in 10^4."""
    rng = np.random.default_rng(5)
    method, runs = Dpnr(0.3), 20_000
    corners = rng.integers(0, 2, (classes, dimensions)).astype(float)
    corners[1] = 1 - corners[0]
    labels = rng.integers(classes, size=runs)
    seen = noisy(corners[labels], method.epsilon, rng)
    guessed = np.argmin(np.abs(seen[:, None] - corners).sum(2), axis=1)
    error = float((guessed != labels).mean())
    least = method.least_error(dimensions, classes)
    margin = 4 * math.sqrt(0.25 / runs)
    assert error >= least - margin
    if classes == 2:  # and is reached
        assert error <= least + margin


def test_least_error_in_closed_form() -> None:
    assert Dpnr(1.2).least_error(1, 2) == pytest.approx(math.exp(-0.6) / 2, abs=1e-4)
    assert Dpnr(0.05).least_error(768, 4) == pytest.approx(0.369, abs=1e-3)
    assert Dpnr(5.0).least_error(384, 4) == 0
    assert Dpnr(1e-4).least_error(2, 4) == pytest.approx(0.75, abs=1e-3)


# --- the steps -----------------------------------------------------------------------------------


def test_words_are_dropped_by_independent_coins() -> None:
    """Guarantee of drop_words; chance of a false alarm below 1 in 10^6 for each count."""
    texts = ["a b  c\nd"] * 4000
    dropped = drop_words(texts, 0.3, np.random.default_rng(1))
    kept = np.array([[word in text.split() for word in "abcd"] for text in dropped])
    pairs = kept[:, :-1] & kept[:, 1:]
    for counts, chance in ((kept.sum(0), 0.7), (pairs.sum(0), 0.49)):
        for count in counts:
            assert stats.binomtest(int(count), len(texts), chance).pvalue > 1e-6
    # the words themselves are not read
    other = drop_words(["e f g h"] * 4000, 0.3, np.random.default_rng(1))
    moved = str.maketrans("abcd", "efgh")
    assert [text.translate(moved) for text in dropped] == other


def test_dropped_words_leave_nothing_or_a_blank() -> None:
    assert kept_words(["a", "b", "c"], [True, False, True], None) == "a c"
    assert kept_words(["a", "b", "c"], [True, False, True], "_") == "a _ c"
    assert kept_words([], [], None) == kept_words(["a"], [False], None) == ""
    rng = np.random.default_rng(0)
    assert drop_words(["a b", ""], 0.0, rng) == ["a b", ""]
    assert drop_words(["a b", "c"], 1.0, rng, "_") == ["_ _", "_"]


def test_rows_reach_from_zero_to_one() -> None:
    """Guarantees of normalised."""
    huge, tiny = np.finfo(np.float64).max, np.nextafter(0, 1)
    rows = np.array(
        [
            [1.0, 3.0, 2.0],
            [-huge, huge, 0.0],
            [tiny, 3 * tiny, 0.0],
            [1.0, 1.0 + 1e-16, 1.0],
            [np.nan, 1.0, 2.0],
            [np.inf, 1.0, -np.inf],
        ]
    )
    scaled = normalised(rows)
    assert ((scaled >= 0) & (scaled <= 1)).all()
    assert scaled[:2].tolist() == [[0, 1, 0.5], [0, 1, 0.5]]
    assert not scaled[3:].any()
    random = np.random.default_rng(0).normal(size=(500, 7)).astype(np.float32)
    scaled = normalised(random)
    assert (scaled.min(1) == 0).all()
    assert (scaled.max(1) == 1).all()
    assert np.array_equal(scaled[3:5], normalised(random[3:5]))


def test_noise_is_laplace_and_independent() -> None:
    """Kolmogorov and Smirnov's test at 10^-4; a scale a third off is noticed."""
    rows = np.full((3000, 4), 0.25)
    noise = noisy(rows, 2.0, np.random.default_rng(4)) - rows
    assert stats.kstest(noise.ravel(), stats.laplace(scale=0.5).cdf).pvalue > 1e-4
    assert stats.kstest(noise.ravel(), stats.laplace(scale=0.375).cdf).pvalue < 1e-9
    correlations = np.corrcoef(noise.T)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 4.5 / math.sqrt(len(rows))


def test_one_value_for_a_row_protects_nothing() -> None:
    rows = normalised(np.random.default_rng(0).normal(size=(20, 30)))
    seen = noisy(rows, 0.05, np.random.default_rng(1), shared=True)
    assert np.abs(seen - rows).max() > 1
    assert np.allclose(normalised(seen), rows, atol=1e-9)


def test_arguments_that_make_no_sense() -> None:
    for epsilon, dropout in ((0.0, 0.0), (math.inf, 0.0), (1.0, 1.1)):
        with pytest.raises(UserError, match="must"):
            Dpnr(epsilon, dropout)
    method = Dpnr(1.0)
    with pytest.raises(UserError, match="dimensions 0"):
        method.proven(0)
    with pytest.raises(UserError, match="releases 0"):
        method.proven(3, releases=0)
    with pytest.raises(UserError, match="delta 0"):
        method.proven_at(0.0, 3)
    with pytest.raises(UserError, match="classes 1"):
        method.least_error(3, 1)
