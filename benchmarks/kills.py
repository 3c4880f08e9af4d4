"""Workers killed while they send a large result: `python -m benchmarks.kills [KILLS]`.

Two workers send three results of 50 MiB each. The sender of the first one is killed up to a fifth of a second after it
began. Prints how many of the series (default 40) ended within 10 seconds of the kill with all bytes, the slowest one,
and in how many the sender had not yet finished.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch  # noqa: F401, before the fork

from fedaudit.machinery.executor import Executor

SIZE, LIMIT = 50 * 2**20, 10.0


def send(bench: Path, x: int) -> bytes:
    """The result of job x; the first one leaves the number of its worker."""
    data = bytes([x]) * SIZE
    if x == 0:
        (bench / "sender").write_text(str(os.getpid()))
    return data


def series(folder: Path, delay: float) -> tuple[float, bool, bool]:
    """Seconds from the kill to the last result, whether all bytes are right, and whether a job ran again."""
    killed, said = list[float](), list[str]()

    def kill() -> None:
        while not (folder / "sender").exists() or not (pid := (folder / "sender").read_text()):
            time.sleep(0.0005)
        time.sleep(delay)
        killed.append(time.monotonic())
        os.kill(int(pid), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    with Executor(lambda: folder, workers=2, say=said.append) as executor:
        killer.start()
        found = list(executor.map(send, range(3)))
        ended = time.monotonic()
        killer.join()
    return ended - killed[0], found == [bytes([x]) * SIZE for x in range(3)], bool(said)


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    results = []
    for i in range(number):
        with tempfile.TemporaryDirectory() as folder:
            results.append(series(Path(folder), random.Random(i).uniform(0, 0.2)))
    good = sum(right and seconds < LIMIT for seconds, right, _ in results)
    print(
        f"{good} of {number} ended within {LIMIT:.0f} s with the same bytes; slowest {max(results)[0]:.1f} s; ", end=""
    )
    print(f"{sum(again for *_, again in results)} were killed before their result was there")


if __name__ == "__main__":
    main()
