"""The main job, cold and again: seconds, peak memory over all processes, and what was found.

    python benchmarks/main_job.py [--method fedavg,fedrand] [any other option of audit.py]

Memory is proportional (PSS): pages that several processes share count once in the sum. Linux only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    words = sys.argv[1:] or ["--method", "fedrand", "--attack", "maxrenyi"]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(ROOT / "audit.py"), *words, "--out", out]
        cold, peak, report = measured(command)
        again, peak_again, _ = measured(command)
        print(f"{'run':<8}{'seconds':>10}{'peak PSS, MB':>14}")
        print(f"{'cold':<8}{cold:>10.1f}{peak:>14.0f}")
        print(f"{'again':<8}{again:>10.1f}{peak_again:>14.0f}{'':>4}{cold / again:.0f} times faster")
        show(json.loads((Path(report).parent / "findings.json").read_text()))


def measured(command: list[str]) -> tuple[float, float, str]:
    """Wall seconds, peak MB and the path of the report."""
    started, peak = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        while True:
            peak = max(peak, sum(map(pss, family(running.pid))))
            try:
                running.wait(timeout=2)  # not more often: reading the memory costs the measured processes time
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - started
        assert running.stdout is not None
        printed = running.stdout.read()
    if running.returncode:
        sys.exit(f"{' '.join(command)} ended with {running.returncode}")
    found = re.search(r"^report: (.*)$", printed, re.MULTILINE)
    assert found is not None
    return seconds, peak, found[1]


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        children = [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(p for child in children for p in family(child))]


def pss(pid: int) -> float:
    """Proportional set size in MB."""
    try:
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def show(findings: list[dict]) -> None:
    columns = ("method", "threat_model", "way", "population", "nonmembers", "signal")
    widths = (8, 15, 12, 18, 14, 20)
    print(
        "\n"
        + "".join(f"{name:<{w}}" for name, w in zip(columns, widths, strict=True))
        + "AUROC [95 %]            base   blind  verdict"
    )
    for f in findings:
        if f["metric"] == "auroc":
            row = "".join(f"{f[name]:<{w}}" for name, w in zip(columns, widths, strict=True))
            controls = "".join("    n/a" if f[c] is None else f"{f[c]:7.3f}" for c in ("base_value", "blind_value"))
            print(f"{row}{f['value']:.3f} [{f['low']:.3f}, {f['high']:.3f}]  {controls}  {f['verdict']}")


if __name__ == "__main__":
    main()
