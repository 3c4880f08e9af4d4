"""Seconds of `--help` and `--list` beside those of importing numpy: best of five, in turn: `python -m benchmarks.start_up`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "import numpy": ["-c", "import numpy"],
    "--help": ["audit.py", "--help"],
    "--list": ["audit.py", "--list"],
}
AGAIN = 5


def main() -> None:
    """Print the table."""
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(AGAIN):
        for name, words in COMMANDS.items():
            started = time.perf_counter()
            home = Path(__file__).resolve().parent.parent
            subprocess.run([sys.executable, *words], cwd=home, stdout=subprocess.DEVNULL, check=True)
            best[name] = min(best[name], time.perf_counter() - started)
    for name, seconds in best.items():
        print(f"{name:<14} {seconds:.2f} s  {seconds / best['import numpy']:.1f} times")


if __name__ == "__main__":
    main()
