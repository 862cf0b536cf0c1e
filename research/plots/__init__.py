"""Plots of experiments."""
