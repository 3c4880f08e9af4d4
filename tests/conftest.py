"""Two processes share the tests (`-n 2` in pyproject.toml), so each computes with one thread."""

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.kept_runs import KeptRuns, lora_run, prompt_runs
from tests.unprinted import no_pages, unprinted

pytest.register_assert_rewrite("tests.whole_runs")
gc.set_threshold(50_000)  # as the command does
MEMORY, ROOM = Path("/dev/shm"), 4e9  # a whole run of pytest holds .3 GB of files at once, and makes 100,000
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ["TMPDIR"] = str(MEMORY)
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# as a shell starts what runs in its background; children inherit it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WARM = ("test_api.py", "test_contributing.py", "test_end_to_end.py", "test_keys.py", "test_third_learner.py")


def pytest_collection_finish() -> None:
    """Python's collector looks through what is new, not again and again through libraries and thousands of tests."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries complain at the end of what is left


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Files with slow tests or with trainings first: behind a long one that starts last a process would wait for the
    other."""
    long = {i.path for i in items if i.get_closest_marker("slow") or "unsafe_but_quick" in i.fixturenames}
    items.sort(key=lambda item: item.path not in long)


class Scheduling(LoadFileScheduling):
    """Files that start commands share a process: each has a server (tests/warm.py) that takes seconds to load its libraries."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "warm" if Path(file).name in WARM else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="module")
def unsafe_but_quick() -> Iterator[None]:
    """For files that are not about a power cut or what a figure looks like."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        patch.setattr("fedaudit.reports.figures.drawing.printed", unprinted)
        yield


@pytest.fixture(scope="module")
def without_pages() -> Iterator[None]:
    """For files with audits whose page nobody looks at."""
    with no_pages():
        yield


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptRuns:
    """Finished tiny audits of prompts, which all processes share: to be read, or copied."""
    return prompt_runs(tmp_path_factory)


@pytest.fixture(scope="session")
def kept_lora(tmp_path_factory: pytest.TempPathFactory) -> KeptRuns:
    """The same of adapters, with shadow models and without a page."""
    return lora_run(tmp_path_factory)
