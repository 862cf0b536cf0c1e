"""One private round: draw, lend, select, clip twice, add noise."""
