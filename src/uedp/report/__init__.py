"""Figures of corpora, budgets and audits."""
