"""Damaged and hostile inputs, made from a seed: every reader, and the corpus folder.

`make fuzz`, or a single case again with the line that a failure prints.
"""
