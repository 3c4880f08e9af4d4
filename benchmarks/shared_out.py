"""Two commands that share one --out, against one: `python -m benchmarks.shared_out [ROUNDS] [--attack]`.

Each computes the same 8 cells (8 seeds of PromptFL) on one thread. Prints the seconds of one command alone, and of two
that are started at once on an empty folder, start and report included; needs two free cores. Where others use them, the
processor seconds of the busier command say what the time would be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORDS = "--method promptfl --epsilon none --clients 4 --train 24 --test 4 --seeds 8 --threads 1 --quiet"


def seconds(commands: int, words: str, out: str) -> tuple[float, float]:
    """Seconds until so many equal commands have all ended, and the most processor seconds that one of them took."""
    command = [sys.executable, str(ROOT / "audit.py"), *words.split(), "--out", out]
    began = time.monotonic()
    running = {subprocess.Popen(command, stdout=subprocess.DEVNULL).pid for _ in range(commands)}
    ended = [os.wait4(pid, 0) for pid in running]
    assert not any(status for _, status, _ in ended)
    return time.monotonic() - began, max(spent.ru_utime + spent.ru_stime for *_, spent in ended)


def main() -> None:
    rounds = next((word for word in sys.argv[1:] if word.isdigit()), "100")
    words = f"{WORDS} --rounds {rounds}{' --attack loss' if '--attack' in sys.argv else ''}"
    measured = []
    for commands in (1, 2):
        with tempfile.TemporaryDirectory() as out:
            measured.append(seconds(commands, words, out))
            print(f"{commands} at once: {measured[-1][0]:.0f} s, of a processor {measured[-1][1]:.0f} s", flush=True)
    one, two = measured
    print(f"two take {two[0] / one[0]:.0%} of the time of one, and {two[1] / one[1]:.0%} of its processor time each")


if __name__ == "__main__":
    main()
