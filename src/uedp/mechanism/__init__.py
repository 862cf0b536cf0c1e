"""One private round: draw users, lend entities, select sentences, clip twice, add noise."""
