"""Rounds of adapters in passes of one shape, bound by arithmetic and not by launches."""
