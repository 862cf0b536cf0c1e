"""A linear classifier in closed form."""

import numpy as np
import numpy.typing as npt

from uedp.accounting.divergence import Floats

Ints = npt.NDArray[np.int64]

_LEAST = 1e-9  # shrinkage, so that the covariance is invertible


class Discriminant:
    """Linear discriminant analysis: balanced classes, covariance shrunk by Ledoit and Wolf (2004).

    Nothing is tuned, so runs at different noise are comparable.
    """

    def __init__(self, rows: Floats, labels: Ints) -> None:
        count, width = rows.shape
        means = np.stack([rows[labels == c].mean(0) for c in range(int(labels.max()) + 1)])
        residuals = rows - means[labels]
        covariance = residuals.T @ residuals / count
        scale = np.trace(covariance) / width or 1.0  # classes that are points: nearest mean
        sphere = scale * np.eye(width)
        spread = np.square(np.square(residuals).sum(1)).sum() / count**2
        spread -= np.square(covariance).sum() / count
        distance = np.square(covariance - sphere).sum()
        share = min(1.0, max(spread / distance, _LEAST)) if distance > 0 else 1.0
        covariance = (1 - share) * covariance + share * sphere
        self._weights = np.linalg.solve(covariance, means.T)
        self._offsets = -0.5 * (means.T * self._weights).sum(0)

    def __call__(self, rows: Floats) -> Ints:
        """The class of each row."""
        classes: Ints = (rows @ self._weights + self._offsets).argmax(1)
        return classes
