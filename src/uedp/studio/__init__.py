"""The studio: a local page to look at entities, budgets and runs before anything is spent."""
