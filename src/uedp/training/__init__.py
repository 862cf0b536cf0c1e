"""Training: from a corpus and a target epsilon to a model and a certificate."""
