"""What depends on the number of users, whatever epsilon is: the default delta, and refusals."""

import math

from uedp.errors import UserError

DEFAULT_DELTA = 1e-5
FEWEST_USERS = 5  # that a round has to draw: fewer are too few to hide among


def default_delta(users: int) -> float:
    """1e-5, or the power of ten below a tenth of one over the users."""
    return min(DEFAULT_DELTA, 10.0 ** math.floor(math.log10(0.1 / users) + 1e-9))


def refuse_large_delta(delta: float, users: int) -> None:
    if delta * users >= 1:
        # with such a delta, publishing one user's text verbatim would count as private
        raise UserError(
            f"privacy.delta {delta:g}: must be below one over the number of users, "
            f"{1 / users:.2g}; choose {0.1 / users:.1g} or less"
        )


def refuse_few_users(user_rate: float, users: int) -> None:
    if users * user_rate < FEWEST_USERS:
        raise UserError(
            f"privacy.user_rate {user_rate:g}: of {users:,} users a round would draw "
            f"{users * user_rate:.2g}, too few to hide among; choose at least "
            f"{math.ceil(1e3 * FEWEST_USERS / users) / 1e3:g}"
        )
