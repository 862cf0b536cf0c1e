import numpy as np
import pytest

from tests.training import worlds
from uedp.errors import UserError
from uedp.mechanism.lending import lend
from uedp.methods.rotation import LendingSchedule


def test_a_rule_that_lends_an_entity_twice_is_refused_in_its_round():
    def everything(incidence, key):
        return np.ones(incidence.sentences, dtype=bool)

    with pytest.raises(UserError, match="at once; it must lend it to one"):
        LendingSchedule(everything, worlds.incidence(), 1).usable(0)


def test_a_rule_that_is_no_function_of_the_key_is_refused_in_its_round():
    rng = np.random.default_rng(0)

    def moody(incidence, key):
        return lend(incidence, int(rng.integers(2**40)))

    with pytest.raises(UserError, match="another result when called again"):
        LendingSchedule(moody, worlds.incidence(), 1).usable(0)
