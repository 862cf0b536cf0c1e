"""Tests of `uedp` and `research`."""

import os

# One thread here and in every process that is started from here: for small arrays, threads that
# wait for each other cost more than they gain. Set before NumPy and PyTorch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
