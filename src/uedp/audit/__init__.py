"""Attacks on what is promised: lower bounds on epsilon, with confidence."""
