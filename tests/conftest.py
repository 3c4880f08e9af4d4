"""Two processes share the tests (`-n 2` in pyproject.toml), so each computes with one thread."""

import os

import pytest

pytest.register_assert_rewrite("tests.whole_runs")
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: behind a long one that starts last a process would wait for the other."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def unsafe_but_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about a power cut: waiting for the disk is half of the time."""
    monkeypatch.setattr("os.fsync", lambda _: None)
