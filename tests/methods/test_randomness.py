import numpy as np
import pytest
import torch

from tests.methods.rounds import CPU, plan
from uedp.methods.randomness import Randomness


def seen(randomness, number: int):
    """All that a round can draw."""
    with randomness.of_round(number, CPU) as (generator, key, noise):
        masks = torch.nn.functional.dropout(torch.ones(64)).tolist()
        sums = [torch.zeros(8)]
        noise.add_(sums, 1.0)
        return generator.random(4).tolist(), [key], masks, sums[0].tolist()


def differ(one, other) -> bool:
    return all(a != b for a, b in zip(one, other, strict=True))


def test_with_a_seed_a_round_depends_on_seed_and_number_only():
    output = plan(privacy__seed=5)
    torch.manual_seed(0)
    one = seen(Randomness(output.config.privacy.seed), 3)
    later = Randomness(output.config.privacy.seed)
    seen(later, 0)
    torch.manual_seed(1)
    assert seen(later, 3) == one
    assert differ(seen(later, 4), one)
    assert differ(seen(Randomness(6), 3), one)


def test_without_a_seed_rounds_share_no_randomness():
    output = plan()
    runs = []
    for _ in range(2):  # two processes, alike in all else
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        randomness = Randomness(output.config.privacy.seed)
        runs += [seen(randomness, 0), seen(randomness, 0), seen(randomness, 1)]
    for place, one in enumerate(runs):
        assert all(differ(one, other) for other in runs[:place])


@pytest.mark.parametrize("seed", [None, 1])
def test_the_callers_generators_are_left_unchanged(seed):
    before = torch.get_rng_state()
    seen(Randomness(seed), 0)
    with pytest.raises(ZeroDivisionError), Randomness(None).of_round(0, CPU):
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


def test_the_noise_source_matches_the_certificate():
    for seed, name in ((None, "cipher"), (1, "fixed seed")):
        output = plan(privacy__seed=seed)
        with Randomness(output.config.privacy.seed).of_round(0, CPU) as (_, _, noise):
            assert output.setup().noise_source == noise.source == name


def test_with_a_key_all_but_the_noise_is_repeated():
    key = bytes(range(32))
    *one, noise = seen(Randomness(None, key), 3)
    torch.manual_seed(1)
    *other, fresh = seen(Randomness(None, key), 3)
    assert one == other
    assert noise != fresh
    *turned, _ = seen(Randomness(None, bytes([1, *key[1:]])), 3)
    assert differ(turned, one)


def test_masks_of_processes_are_independent_and_repeatable_under_a_key():
    key = bytes(range(32))
    keys = [
        Randomness(None, key).mask_key(number, process) for number in (0, 1) for process in (1, 2)
    ]
    assert len({*keys, key}) == 5
    assert keys[0] == Randomness(None, key).mask_key(0, 1)
    assert Randomness(None, bytes(32)).mask_key(0, 1) != keys[0]
    assert Randomness(None).mask_key(0, 1) != Randomness(None).mask_key(0, 1)
    assert Randomness(3).mask_key(0, 1) == Randomness(3).mask_key(0, 1) != keys[0]
