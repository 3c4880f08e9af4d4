"""Two processes share the tests (`-n 2` in pyproject.toml), so each computes with one thread."""

import os

import pytest

pytest.register_assert_rewrite("tests.whole_runs")
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
