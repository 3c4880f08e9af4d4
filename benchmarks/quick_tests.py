"""Run the quick tests and print their minutes and CPU seconds, of all processes of a machine that does nothing else.

    python -m benchmarks.quick_tests [WORDS OF PYTEST]

Processes that a fork server starts are nobody's children, so that the clock of children misses them.
"""

import os
import subprocess
import sys
import time
from pathlib import Path


def cpu_seconds() -> float:
    """Seconds that the processors have worked since the machine started, for users and the system."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    before, start = cpu_seconds(), time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pytest", "-m", "not slow", "--durations", "30", *sys.argv[1:]])
    print(f"{(time.monotonic() - start) / 60:.1f} minutes, {cpu_seconds() - before:.0f} CPU seconds")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
