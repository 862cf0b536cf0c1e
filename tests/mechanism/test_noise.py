"""Noise lies on its grid, is exact, and never has the same values twice."""

from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from uedp.mechanism import chacha, noise
from uedp.mechanism.noise import (
    SecureNoise,
    SeededNoise,
    _OnDevice,
    add_on_grid_,
    add_once_,
    gaussians,
    grid_of,
)
from uedp.mechanism.secret import KeyStream


class ByOperations:
    """What an accelerator gets where there is no kernel, here on the CPU."""

    source = "cipher"

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        if deviation:
            grid, stream = grid_of(deviation), _OnDevice(torch.device("cpu"))
            for total in sums:
                stream.add_(total.view(-1), deviation / grid, grid)


SOURCES = {"seeded": lambda: SeededNoise(3), "AES": SecureNoise, "ChaCha20": ByOperations}
COUNT = 200_000
STEPS = 2.0**25 - 1  # more grid steps in a deviation than any release has


def sample(source, deviation: float, count: int = COUNT) -> np.ndarray:
    total = torch.zeros(count)
    source().add_([total], deviation)
    return total.double().numpy()


@pytest.mark.parametrize("name", SOURCES)
def test_two_rounds_never_share_noise(name):
    source = SOURCES[name]()
    rounds = []
    for _ in range(5):
        total = torch.zeros(1000)
        source.add_([total], 1.0)
        rounds.append(tuple(total.tolist()))
    assert len(set(rounds)) == 5
    # in place: two Gaussians on a grid of 2^12 to the deviation are equal once in 14,500
    assert sum(a == b for a, b in zip(rounds[0], rounds[1], strict=True)) <= 4


@pytest.mark.parametrize("name", SOURCES)
def test_every_tensor_gets_its_own_and_values_are_kept(name):
    sums = [torch.full((500,), 3.0), torch.full((20, 25), 3.0)]
    SOURCES[name]().add_(sums, 0.1)
    assert not torch.equal(sums[0], sums[1].flatten())
    for total in sums:
        assert float(total.mean()) == pytest.approx(3.0, abs=5 * 0.1 / np.sqrt(500))


def key_stream(count: int) -> torch.Tensor:
    stream = KeyStream()
    return torch.cat([stream.words(1 << 16).clone() for _ in range(count >> 16)])


def exact(word: int, turn: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The two values of a pair of words, in deviations, with 120 bits."""
    with mpmath.workprec(120):
        length = mpmath.sqrt(-2 * mpmath.log(abs(word + mpmath.mpf(0.5)) / 2**63))
        angle = mpmath.pi * turn / 2**63
        return length * mpmath.cos(angle), length * mpmath.sin(angle)


def test_values_are_those_of_the_exact_transform_far_tails_included():
    """To 2^-22 grid steps, but for a length below 2^-7 deviations: there to half a step."""
    generator = torch.Generator().manual_seed(0)
    words = torch.empty(3000, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    radius, angle = words.view(2, -1)
    radius[:500] >>= torch.arange(500) % 63  # every order of magnitude of the tail
    radius[500:1000] = 2**63 - 1 - (radius[500:1000].abs() >> torch.arange(500) % 63)  # and of 0
    extremes = [0, -1, 2**63 - 1, -(2**63)]
    radius[1000:1016] = torch.tensor(extremes).repeat_interleave(4)
    angle[1000:1016] = torch.tensor(extremes).repeat(4)
    found = gaussians(words, STEPS).view(2, -1)
    tight = 0
    for index, pair in enumerate(found.T.tolist()):
        x, y = exact(int(radius[index]), int(angle[index]))
        length = mpmath.hypot(x, y)
        short = length < 2**-7
        tight += not short
        # the bound of docs/privacy.md, section 6, without the words' resolution
        bound = STEPS * 2.0**-52 * (1 / length + 10 * length) if length > 2**-26 else 0.5
        for value, truth in zip(pair, (x, y), strict=True):
            assert abs(value - STEPS * truth) < (0.5 if short else 2.0**-22)
            assert abs(value - STEPS * truth) < bound
    assert tight > 1000


def test_no_word_is_lost_and_the_largest_value_is_as_stated():
    ends = torch.tensor([0, -1, 1, -(2**63), 2**63 - 1, 0, 0, 0, 0, 0])
    values = gaussians(ends, 1.0)[:5]  # angle zero: the cosine's value is the length
    assert torch.isfinite(values).all()
    assert values[0] == values[1] == values.max()
    assert float(values[0]) == pytest.approx(np.sqrt(2 * 64 * np.log(2)))  # where 2^-64 lie beyond
    assert 9.41 < float(values[0]) < 9.42
    assert float(values[3]) == float(values[4]) == 0.0


KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("deviation", [0.37, 1.0, 3e-7])
def test_secure_noise_lies_on_a_grid(kind, deviation):
    """So that the low bits tell nothing, whatever the digits of the tensor it is released in."""
    sizes = torch.logspace(-12, 4, 10_000, dtype=torch.float64) * deviation
    total = (sizes * torch.randn(10_000, dtype=torch.float64)).to(kind)
    before = total.clone()
    SecureNoise().add_([total], deviation)
    assert total.dtype == kind
    assert not torch.equal(total, before)
    grid = grid_of(deviation)
    assert np.log2(grid) == int(np.log2(grid))
    assert deviation * 2.0**-13 < grid <= deviation * 2.0**-12
    multiples = total.double() / grid
    assert torch.equal(multiples, multiples.round())


def test_a_release_of_fewer_digits_is_a_function_of_the_grid_point():
    """Float32 gets what rounding the float64 release gives: post-processing and nothing else."""
    values = torch.randn(5000) * torch.logspace(-8, 8, 5000)
    steps = torch.randn(5000, dtype=torch.float64) * STEPS
    wide, narrow = values.double(), values.clone()
    add_on_grid_(wide, steps.clone(), 2.0**-25)
    add_on_grid_(narrow, steps.clone(), 2.0**-25)
    assert torch.equal(narrow, wide.float())


@given(
    st.floats(-(2.0**40), 2.0**40, width=32),
    st.floats(-(2.0**29), 2.0**29),
    st.integers(-60, 20).map(lambda exponent: 2.0**exponent),
)
def test_an_entry_is_the_grid_point_nearest_to_value_plus_noise(value, step, grid):
    """Their sum is rounded, not each: rounding must not move two values further apart."""
    total = torch.tensor([value], dtype=torch.float64)
    add_on_grid_(total, torch.tensor([step], dtype=torch.float64), grid)
    truth = Fraction(value) / Fraction(grid) + Fraction(step)
    released = Fraction(float(total)) / Fraction(grid)
    if abs(truth) < 2**53:  # beyond, the grid is finer than float64
        assert released.denominator == 1
        assert abs(released - truth) <= Fraction(1, 2) + Fraction(1, 2**23)
    else:
        assert float(released) == float(round(truth))


def test_it_is_the_sum_that_is_rounded():
    """Rounding each would be a quarter of the entries off, and move values apart."""
    values = torch.rand(5000, dtype=torch.float64).mul_(10)
    steps = torch.rand(5000, dtype=torch.float64).mul_(10)
    total = values * 2.0**-25
    add_on_grid_(total, steps.clone(), 2.0**-25)
    released = total * 2.0**25
    assert float((released - values - steps).abs().max()) < 0.5 + 1e-12
    assert int((values.round() + steps.round() != released).sum()) > 1000


def test_a_value_far_from_zero_gets_the_same_noise():
    """A million deviations away, not one step of the noise is lost."""
    steps = torch.randn(5000, dtype=torch.float64) * STEPS
    near, far = torch.zeros(5000, dtype=torch.float64), torch.full((5000,), 2.0**20).double()
    add_on_grid_(near, steps.clone(), 2.0**-25)
    add_on_grid_(far, steps.clone(), 2.0**-25)
    assert torch.equal(far - 2.0**20, near)


@pytest.mark.parametrize("value", [-0.2, 0.2, -0.0, 0.0])
@pytest.mark.parametrize("step", [-0.2, 0.2, -0.0])
def test_a_zero_does_not_tell_the_sign_of_the_value(value, step):
    total = torch.tensor([value])
    add_on_grid_(total, torch.tensor([step], dtype=torch.float64), 1.0)
    assert total.tolist() == [0.0]
    assert not torch.signbit(total).any()


@pytest.mark.parametrize("count", [0, 1, 2, 3, (1 << 16) - 1, (1 << 16) + 1, 3 << 16])
def test_every_entry_gets_secure_noise_whatever_the_size_and_layout(count):
    for total in (torch.zeros(count), torch.zeros(count, 2)[:, 0], torch.zeros(count).bfloat16()):
        SecureNoise().add_([total], 1.0)
        zeros = int((total == 0).sum())  # one in 10,267 is, on a grid of 2^12 to the deviation
        assert zeros <= count / 10_267 + 6 * (count / 10_267) ** 0.5 + 2
        half = count // 2  # no block is used twice: entries far apart agree once in 14,500
        same = int((total[:half] == total[half : 2 * half]).sum())
        if total.dtype == torch.float32:
            assert same <= half / 14_500 + 6 * (half / 14_500) ** 0.5 + 2
    # what lies between the entries of a view is left alone
    wide = torch.zeros(count, 2)
    SecureNoise().add_([wide[:, 0]], 1.0)
    assert torch.equal(wide[:, 1], torch.zeros(count))


@pytest.mark.parametrize("deviation", [-1.0, float("nan"), float("inf"), 1e-300])
def test_secure_noise_refuses_what_is_no_deviation(deviation):
    total = torch.ones(3)
    with pytest.raises(ValueError, match="deviation"):
        SecureNoise().add_([total], deviation)
    assert torch.equal(total, torch.ones(3))


def test_a_fixed_seed_repeats_itself_and_says_so():
    def twice(seed: int) -> list[torch.Tensor]:
        source = SeededNoise(seed)
        sums = [torch.zeros(10), torch.zeros(10)]
        for total in sums:
            source.add_([total], 1.0)
        return sums

    first, again = twice(7), twice(7)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], first[1])  # but not from round to round
    assert SeededNoise(7).source == "fixed seed"
    assert SecureNoise().source == "cipher"


def test_no_block_of_the_cipher_is_used_twice_in_a_release(monkeypatch):
    monkeypatch.setattr(noise, "_AT_ONCE", 1000)
    made = []
    kept = chacha.words

    def words(key: torch.Tensor, first: int, count: int) -> torch.Tensor:
        made.append((key.tolist(), first, count))
        return kept(key, first, count)

    monkeypatch.setattr(chacha, "words", words)
    sums = [torch.zeros(2501), torch.zeros(3), torch.zeros(0), torch.zeros(1000)]
    ByOperations().add_(sums, 1.0)
    ends = [first + count for _, first, count in made]
    assert [first for _, first, _ in made] == [0, *ends[:-1]]
    assert [count for _, _, count in made] == [125, 125, 63, 1, 125]
    values = torch.cat(sums)
    assert int((values == 0).sum()) <= 5
    assert len({tuple(key) for key, _, _ in made}) == 1
    ByOperations().add_(sums, 1.0)
    assert len({tuple(key) for key, _, _ in made}) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it is at hand")
def test_without_a_kernel_the_operations_serve():
    assert noise._kernel(torch.device("cuda", 0)) is None
    assert noise._kernel(torch.device("cpu")) is None


def test_no_noise_is_no_change():
    for source in SOURCES.values():
        total = torch.ones(5)
        source().add_([total], 0.0)
        assert torch.equal(total, torch.ones(5))


class Forbidden:
    """Noise that must not be drawn."""

    source = "cipher"

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        raise AssertionError("a second rank drew noise")


DEVIATION = 0.5


def shares(rank: int) -> list[torch.Tensor]:
    return [torch.full((COUNT,), 1.0 + rank), torch.full((50, 2), 10.0 * rank)[:, 0]]


def one_rank(rank: int, folder: str) -> None:
    """A process of two: sums to the first rank, which alone may add noise."""
    torch.set_num_threads(1)
    where = f"file://{folder}/meet"
    limit = timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=limit)
    sums = [total.contiguous() for total in shares(rank)]
    for total in sums:
        dist.reduce(total, 0)
    sums[1] = torch.stack((sums[1], sums[1]), 1)[:, 0]  # not contiguous
    try:
        add_once_(SecureNoise() if rank == 0 else Forbidden(), sums, DEVIATION)
    except ValueError:
        sums = []
    torch.save(sums, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_of_two_processes_only_the_first_draws_noise(tmp_path):
    torch.multiprocessing.spawn(one_rank, args=(str(tmp_path),), nprocs=2)
    (values, few), refused = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert refused == []
    # the shares 1 + 2 and 0 + 10, summed once; noise twice would have deviation 0.71, none 0
    assert stats.kstest(values.numpy(), "norm", args=(3, DEVIATION)).pvalue > 1e-6
    assert abs(float(few.mean()) - 10) < 6 * DEVIATION / np.sqrt(50)
    steps = values.double() / grid_of(DEVIATION)
    assert torch.equal(steps, steps.round())  # on the grid after all was summed


def test_without_processes_adding_once_is_adding():
    first, again = torch.zeros(10), torch.zeros(10)
    add_once_(SeededNoise(7), [first], 1.0)
    SeededNoise(7).add_([again], 1.0)
    assert torch.equal(first, again)
