"""Accounting: the proven epsilon of a run, its ledgers and its certificate."""
