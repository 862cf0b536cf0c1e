import math

import pytest

from uedp.accounting.published import PublishedMethod, PublishedSetting, curve, epsilon
from uedp.errors import UserError

CONLL = PublishedSetting(946, 50, 0.5, 11_176, 14_040)
AG = PublishedSetting(7536, 500, 0.5, 67_157, 112_000)


def sec(sensitive: int = 2166) -> PublishedSetting:
    return PublishedSetting(1592, 100, 0.5, sensitive, 5188)


PRINTED = [  # every epsilon the paper prints (docs/privacy.md, section 3)
    (CONLL, PublishedMethod.f_e_plus, 50, 0.52),
    (CONLL, PublishedMethod.f_e, 50, 0.62),
    (CONLL, PublishedMethod.user, 50, 1.18),
    (AG, PublishedMethod.f_e_plus, 50, 0.50),
    (AG, PublishedMethod.f_e, 50, 0.75),
    (AG, PublishedMethod.user, 50, 1.48),
    (sec(), PublishedMethod.f_e_plus, 50, 0.40),
    (sec(), PublishedMethod.f_e, 50, 0.71),
    (sec(), PublishedMethod.user, 50, 1.40),
    (sec(60), PublishedMethod.f_e_plus, 500, 0.19),
    (sec(273), PublishedMethod.f_e_plus, 500, 0.24),
    (sec(357), PublishedMethod.f_e_plus, 500, 0.26),
    (sec(1955), PublishedMethod.f_e_plus, 500, 0.73),
    (sec(2166), PublishedMethod.f_e_plus, 500, 0.81),
    (sec(), PublishedMethod.user, 500, 4.08),
]


@pytest.mark.parametrize(("setting", "method", "rounds", "printed"), PRINTED)
def test_the_papers_fifteen_epsilons(setting, method, rounds, printed):
    assert epsilon(setting.rate(method), 2.0, rounds, 1e-5) == pytest.approx(printed, abs=0.01)


def test_no_epsilon_below_the_cut_at_order_64():
    assert epsilon(1e-6, 2.5, 50, 1e-5) == pytest.approx(math.log(1e5) / 64, rel=1e-3)


def test_curve_rises_with_rounds():
    values = curve(CONLL.rate(PublishedMethod.user), 2.0, [1, 10, 50, 500], 1e-5)
    assert values == sorted(values)
    assert values[2] == pytest.approx(1.18, abs=0.01)


def test_rate_one_and_zero():
    assert epsilon(0.0, 2.0, 50, 1e-5) == pytest.approx(math.log(1e5) / 64)
    plain = min((o * (o + 1) / 8 - math.log(1e-5)) / o for o in range(1, 65))
    assert epsilon(1.0, 2.0, 1, 1e-5) == pytest.approx(plain)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: PublishedSetting(10, 11),
        lambda: PublishedSetting(10, 1, entity_rate=1.5),
        lambda: PublishedSetting(10, 1, sensitive=3, sentences=2),
        lambda: epsilon(0.1, 0.0, 1, 1e-5),
        lambda: epsilon(0.1, 1.0, 0, 1e-5),
        lambda: epsilon(0.1, 1.0, 1, 0.0),
    ],
)
def test_nonsense_is_refused(bad):
    with pytest.raises(UserError):
        bad()
