"""Other published mechanisms, as described, with their published and proven budgets."""
