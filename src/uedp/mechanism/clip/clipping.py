"""From squared norms to clip factors, with allowances for rounding."""

from dataclasses import dataclass

import torch
from torch import Tensor

_DOWN = 1 - 2.0**-22  # casting weights to float32 must not round them up


@dataclass(frozen=True)
class Allowances:
    """How much rounding may have taken off norms: off their squares (its root), and directly."""

    squares: Tensor
    norms: Tensor

    def bound(self, squared_norms: Tensor) -> Tensor:
        """Upper bounds of the norms, from their squares as computed."""
        return (squared_norms + self.squares.square()).sqrt_().add_(self.norms)

    def __add__(self, other: "Allowances") -> "Allowances":
        """Of the sum of two updates."""
        return Allowances(
            self.squares + other.squares.to(self.squares), self.norms + other.norms.to(self.norms)
        )

    def __getitem__(self, users: Tensor) -> "Allowances":
        return Allowances(self.squares[users], self.norms[users])


class Errors:
    """How far the computed norms of sentences may be from the truth, and what follows for clips.

    `owner` is the user of each sentence, a number below `users`.

    Guarantees:
      - if all rounding is allowed for, clip factors divide by upper bounds of the norms of what is
        added to the sum, whatever cancels
    """

    def __init__(self, owner: Tensor, users: int) -> None:
        self._owner, self._users = owner, users
        self._square_errors = self._numbers(len(owner))
        self._errors = self._numbers(len(owner))  # squared

    def _numbers(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, device=self._owner.device, dtype=torch.float64)

    def allow(
        self,
        rows: slice,
        masses: Tensor,
        *,
        squares: float | Tensor = 0.0,
        norms: float | Tensor = 0.0,
    ) -> None:
        """Allow for rounding of these rows: `masses` is (rows,), or (layers, rows) of layers alike.

        `squares` of the squared mass may be wrong with a squared norm, `norms` of the mass with
        the norm itself.
        """
        squared = masses.double().square_()
        errors, square_errors = norms**2 * squared, squares * squared
        if squared.dim() == 2:
            square_errors, errors = square_errors.sum(0), errors.sum(0)
        self._square_errors[rows] += square_errors
        self._errors[rows] += errors

    def user_totals(self, values: Tensor) -> Tensor:
        """For each of (..., sentences), the sum of the values of its user's sentences."""
        totals = self._numbers(*values.shape[:-1], self._users)
        return totals.index_add_(-1, self._owner, values.double())[..., self._owner]

    def sentence_factors(self, squares: Tensor, clips: Tensor) -> Tensor:
        """With them, no sentence's gradient, as it is added, is longer than its clip."""
        allowances = Allowances(self._square_errors.sqrt(), self._errors.sqrt())
        return _factors(allowances.bound(squares), clips)

    def weights(
        self, user_squares: Tensor, factors: Tensor, update_clip: float | Tensor
    ) -> tuple[Tensor, Allowances]:
        """The weights of sentences in the sum, in float32; the allowances of users' sums.

        Args:
            user_squares: squared norms of the users' sums with these factors.
        """
        allowances = Allowances(
            self._added_up(self._square_errors, factors), self._added_up(self._errors, factors)
        )
        shares = _factors(allowances.bound(user_squares), update_clip)
        return (factors * shares[self._owner]).mul_(_DOWN).float(), allowances

    def _added_up(self, errors: Tensor, factors: Tensor) -> Tensor:
        """For users' sums: errors of sentences add up at worst."""
        # nothing of a sentence that is left out: zero times infinity is not zero
        kept = torch.where(factors > 0, factors * errors.sqrt(), 0.0)
        return self._numbers(self._users).index_add_(0, self._owner, kept)


def _factors(norms: Tensor, clips: Tensor | float) -> Tensor:
    """Projection onto a ball: `min(1, clip / norm)`; zero where the norm is not finite."""
    factors = (clips / norms.clamp(min=1e-300)).clamp(max=1.0)
    return torch.where(torch.isfinite(norms), factors, 0.0)
