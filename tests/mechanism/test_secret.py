"""Every bit of the operating system's randomness matters."""

import hashlib
import os
import secrets

import numpy as np
import pytest
import torch
from torch.nn.functional import dropout, scaled_dot_product_attention

from tests.mechanism.entropy import Entropy, bits_that_matter, operating_system
from tests.training import worlds
from uedp.mechanism import chacha, secret
from uedp.mechanism.noise import SecureNoise, SeededNoise, _OnDevice, gaussians
from uedp.mechanism.secret import KeyStream, SecretUniforms, secret_masks
from uedp.methods.randomness import Randomness

CPU = torch.device("cpu")
COUNT = 200_000


def private() -> Randomness:
    return Randomness(worlds.config("model").privacy.seed)


def noise_of_a_private_round():
    with private().of_round(0, CPU) as (_, _, noise):
        return noise


def noise_of(source, size: int = 16) -> list[float]:
    total = torch.zeros(size, dtype=torch.float64)
    source.add_([total], 1.0)
    return total.tolist()


# --- noise ---------------------------------------------------------------------------------------


def test_seeds_that_agree_in_32_bits_share_nothing():
    """`7 << 32` apart: the CPU's generator took them for the same seed."""

    def drawn(high: int):
        number = 12_345 + (high << 32)

        def gives(size: int) -> bytes:
            return (number % 256**size).to_bytes(size, "little")

        with operating_system(gives), pytest.MonkeyPatch.context() as patch:
            patch.setattr(secrets, "randbits", lambda bits: number % 2**bits)
            with private().of_round(0, CPU) as (uniforms, _, noise):
                masks = dropout(torch.ones(10_000)).tolist()
                return noise_of(noise), masks, uniforms.random(16).tolist()

    assert drawn(0) == drawn(0)
    for one, other in zip(drawn(0), drawn(7), strict=True):
        assert one != other


def test_a_release_has_a_key_of_256_bits_and_each_of_them_matters():
    noise = noise_of_a_private_round()
    entropy = Entropy()
    with operating_system(entropy):
        noise_of(noise)
        assert entropy.bytes >= 32
        noise_of(noise)
        assert entropy.bytes >= 64  # another for the next
    assert bits_that_matter(lambda: noise_of(noise)) >= 256


def test_so_it_does_on_an_accelerator():
    def released():
        total = torch.zeros(16, dtype=torch.float64)
        _OnDevice(CPU).add_(total, 5000.0, 2.0**-12)
        return total.tolist()

    assert bits_that_matter(released) >= 256


class SeededByTheSystem:
    """Noise as it was: PyTorch's generator, seeded with 63 bits of which the CPU's keeps 32."""

    def add_(self, sums, deviation):
        SeededNoise(secrets.randbits(63)).add_(sums, deviation)


class KeyOf32Bits(SecureNoise):
    """A cipher, and no search would find its key, were it not made from 32 bits."""

    def add_(self, sums, deviation):
        key = hashlib.sha256(os.urandom(32)[:4]).digest()
        with operating_system(lambda size: key[:size]):
            super().add_(sums, deviation)


@pytest.mark.parametrize("sabotage", [SeededByTheSystem, KeyOf32Bits])
def test_noise_with_seeds_of_32_bits_is_caught(sabotage, monkeypatch):
    """The test above would fail, were this what a private round uses."""
    monkeypatch.setattr("uedp.methods.randomness.SecureNoise", sabotage)
    noise = noise_of_a_private_round()
    assert bits_that_matter(lambda: noise_of(noise)) == 32


def test_the_tail_of_a_private_rounds_noise_reaches_eight_deviations(monkeypatch):
    noise = noise_of_a_private_round()
    monkeypatch.setattr(KeyStream, "words", lambda self, count: torch.zeros(count).long())
    assert max(noise_of(noise)) > 9.4
    monkeypatch.setattr(chacha, "words", lambda key, first, count: torch.zeros(8 * count).long())
    total = torch.zeros(16)
    _OnDevice(CPU).add_(total, 4096.0, 2.0**-12)
    assert float(total.max()) > 9.4
    # and values beyond 8 are not a single point: the words next to the largest radius differ
    far = gaussians(torch.cat((torch.arange(100), torch.zeros(100, dtype=torch.int64))), 1.0)[:100]
    assert len(far.unique()) == 100
    assert float(far.min()) > 8.8


def untempered(word: int) -> int:
    """The state of the Mersenne twister that gives a word, by trying its bits."""

    def tempered(state: int) -> int:
        state ^= state >> 11
        state ^= (state << 7) & 0x9D2C5680
        state ^= (state << 15) & 0xEFC60000
        return state ^ (state >> 18)

    # tempering is linear: solve by elimination over the 32 bits
    rows = [(tempered(1 << bit), 1 << bit) for bit in range(32)]
    state = 0
    for bit in reversed(range(32)):
        pivot = next(row for row in rows if row[0].bit_length() == bit + 1)
        rows.remove(pivot)
        rows = [
            (a ^ pivot[0], b ^ pivot[1]) if a.bit_length() == bit + 1 else (a, b) for a, b in rows
        ]
        if (word >> bit) & 1:
            word ^= pivot[0]
            state ^= pivot[1]
    return state


def test_the_generator_it_replaces_ends_at_six_deviations():
    """Its uniform numbers have 24 bits: here are the words that give the largest radius."""
    generator = torch.Generator()
    state = generator.get_state()
    fields = state.numpy()
    fields[8:12].view(np.int32)[:] = 624  # words are read as they are, before the next twist
    fields[16:24].view(np.uint64)[:] = 0
    words = fields[24 : 24 + 8 * 624].view(np.uint64)
    words[:] = untempered(0)
    words[:16] = untempered(0xFFFFFFFF)
    generator.set_state(state)
    values = torch.empty(64).normal_(generator=generator)
    assert float(values.abs().max()) == pytest.approx(np.sqrt(2 * 24 * np.log(2)), rel=1e-3)
    assert float(values.abs().max()) < 5.78


def test_bytes_under_a_key_depend_on_all_of_it():
    key = os.urandom(32)
    take, again = secret.bytes_under(key), secret.bytes_under(key)
    first = take(48)
    assert first == again(20) + again(28)
    assert take(48) != first
    assert len({secret.bytes_under(bytes([key[0] ^ 1 << b, *key[1:]]))(16) for b in range(8)}) == 8
    assert len({secret.bytes_under(key[:31] + bytes([b]))(16) for b in range(256)}) == 256
    with pytest.raises(ValueError, match="32 bytes"):
        secret.bytes_under(key[:16])


# --- draws and coins -----------------------------------------------------------------------------


def test_draws_have_a_key_of_256_bits_and_each_of_them_matters():
    assert bits_that_matter(lambda: SecretUniforms().random(8).tolist()) == 256
    short = np.random.default_rng  # and a seed of 32 bits would be seen
    assert bits_that_matter(lambda: short(secrets.randbits(32)).random(8).tolist()) == 32
    with private().of_round(0, CPU) as (uniforms, _, _):
        assert isinstance(uniforms, SecretUniforms)


@pytest.mark.parametrize("count", [0, 1, 5, KeyStream.BLOCK, 2 * KeyStream.BLOCK + 3])
def test_as_many_uniform_numbers_as_asked_for_none_twice(count):
    uniforms = SecretUniforms()
    values = np.concatenate([uniforms.random(count), uniforms.random(count)])
    assert values.shape == (2 * count,)
    assert len(np.unique(values)) == 2 * count
    assert not len(np.intersect1d(values, SecretUniforms().random(count)))


def test_a_number_is_the_upper_bits_of_its_word(monkeypatch):
    words = torch.tensor([0, 2047, 2048, -1, -(2**63)])
    monkeypatch.setattr(KeyStream, "words", lambda self, count: words)
    assert SecretUniforms().random(5).tolist() == [0, 0, 2.0**-53, 1 - 2.0**-53, 0.5]


# --- masks ---------------------------------------------------------------------------------------


def masks(turned: int | None = None, by_the_generator: bool = False) -> list[float]:
    with operating_system(Entropy(turned)), pytest.MonkeyPatch.context() as patch:
        if by_the_generator:
            patch.setattr(secret, "_seeds_masks_with_a_word", lambda: True)
        with secret_masks(CPU):
            return dropout(torch.ones(20_000)).tolist()


@pytest.mark.parametrize("by_the_generator", [False, True])
def test_masks_depend_on_all_words_of_the_state(by_the_generator):
    """High bits too, of which a seed of 32 bits keeps none."""
    usual = masks(None, by_the_generator)
    assert masks(None, by_the_generator) == usual
    for word in (0, 1, 2, 311, 397, 623):
        for bit in (31, 17, 0):
            if word == 0 and bit < 31:
                continue  # the twister has 19,937 bits: of the first word, the highest alone
            assert masks(32 * word + bit, by_the_generator) != usual


def test_a_round_asks_for_the_whole_state():
    entropy = Entropy()
    with operating_system(entropy), secret_masks(CPU):
        assert entropy.bytes >= 624 * 4
        state = torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
        given = np.frombuffer(Entropy()(624 * 4), dtype=np.uint32)
        assert (state == given).all()


def test_the_state_is_used_and_the_callers_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    ordinary = dropout(torch.ones(64)).tolist()
    torch.set_rng_state(before)
    found = []
    for _ in range(3):
        with secret_masks(CPU):
            found.append(tuple(dropout(torch.ones(64)).tolist()))
    assert len({*found, tuple(ordinary)}) == 4
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ZeroDivisionError), secret_masks(CPU):
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)
    assert dropout(torch.ones(64)).tolist() == ordinary


def test_a_mask_is_never_decided_by_one_word(monkeypatch):
    """On processors where PyTorch would hand it to MKL with a seed of 32 bits."""
    monkeypatch.setattr(secret, "_seeds_masks_with_a_word", lambda: True)
    made = []
    kept = secret._bernoulli
    monkeypatch.setattr(secret, "_bernoulli", lambda *a, **k: made.append(1) or kept(*a, **k))

    def position() -> int:
        return int(torch.get_rng_state().numpy()[16:24].view(np.uint64)[0])

    x = torch.ones(100, requires_grad=True)
    q = torch.randn(1, 1, 8, 4)
    with secret_masks(CPU):
        out = dropout(x, 0.3)
        assert (len(made), position()) == (1, 200)  # two words of the generator for each entry
        scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        assert len(made) == 2
        torch.func.vmap(lambda row: dropout(row, 0.5), randomness="different")(torch.ones(3, 4))
        assert len(made) == 3
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())
    kinds = set(out.detach().tolist())
    assert kinds == {0.0, float(torch.tensor(1 / 0.7))}
    dropout(torch.ones(10))
    assert len(made) == 3  # ordinary again


def seeded_with_a_word(mask, p=0.5, *, generator=None):
    """What MKL does: one word of the generator decides over all entries."""
    seed = int(torch.empty((), dtype=torch.int32).random_(generator=generator))
    return mask.copy_(torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed)) < p)


@pytest.mark.parametrize(("kernel", "word"), [(seeded_with_a_word, True), (None, False)])
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_mask_from_one_word_is_noticed(kernel, word):
    library = torch.library.Library("aten", "IMPL")
    library.impl("bernoulli_.float", kernel or secret._bernoulli, "CPU")
    try:
        before = torch.get_rng_state()
        assert secret._seeds_masks_with_a_word() == word
        assert torch.equal(torch.get_rng_state(), before)
    finally:
        library._destroy()


def test_a_generator_of_another_layout_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "get_rng_state", lambda: torch.zeros(100, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="unknown layout"):
        secret._mersenne_state(os.urandom)
    state = secret._philox_state(os.urandom)
    assert state.shape == (16,)
    offset = int(state.numpy()[8:].view(np.uint64)[0])
    assert offset % 4 == 0
    assert offset < 2**62
