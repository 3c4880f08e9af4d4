"""Where a doubt about a recording is heard: `python -m benchmarks.heard [--only WORDS]`, some fifteen minutes.

Each wrong recording of `benchmarks.recordings` that is doubted is audited as users would: at a terminal, once more with
--quiet and once more without (the report is reused), with a gate, in the library, and as a night of one cell. A column says whether the doubt was heard there; the program ends with 1 if one was not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

import fedaudit
from benchmarks.recordings import RECORDINGS, Change, exported
from fedaudit.reports.doubts import DOUBTS

WHERE = ("terminal", "quiet", "reused", "gate", "summary", "page", "JUnit", "index")
GATE = "server auroc.low > 0.99"


def doubted() -> dict[str, Change]:
    """Recordings that are doubted, by name."""
    return {
        n: one.change for n, one in RECORDINGS.items() if one.expected in DOUBTS and "not be checked" not in one.words
    }


def listen(run: Path, out: Path) -> Iterator[bool]:
    """Whether a doubt is heard, place by place of WHERE."""
    words = [sys.executable, "audit.py", "--run", str(run), "--attack", "loss", "--out", str(out)]
    for more, code in (([], 0), (["--quiet"], 0), ([], 0), (["--fail-if", GATE, "--quiet"], 2)):
        done = subprocess.run([*words, *more], capture_output=True, text=True)
        yield (
            "doubt: " in done.stderr if code == 0 else "no gate goes by a number" in done.stderr
        ) and done.returncode == code
    with warnings.catch_warnings(record=True) as warned:
        audit = fedaudit.audit(run=str(run), attack="loss", out=str(out), quiet=True)
    yield audit.summary.startswith("Doubted: ") and bool(audit.doubts) and bool(warned)
    yield "<h1>Doubted: " in audit.report.read_text()
    night = run.with_suffix(".yaml")
    night.write_text(json.dumps({"matrix": [{"run": str(run), "attack": "loss"}], "fail_if": ["doubt"]}))
    done = subprocess.run([*words[:2], "--nightly", str(night), "--out", str(out)], capture_output=True, text=True)
    (written,) = out.rglob("junit.xml")
    yield done.returncode == 1 and any(
        "doubt" in (f.text or "") + f.get("message", "") for f in ET.parse(written).iter("failure")
    )
    yield "doubted" in (out / "index.html").read_text().rpartition("</style>")[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="recordings whose names hold one of these words, separated by commas"
    )
    options = parser.parse_args()
    silent = 0
    print("recording", *WHERE, sep=" · ")
    with tempfile.TemporaryDirectory() as place:
        right = exported(Path(place), "loss")
        for name, change in doubted().items():
            if any(words in name for words in options.only.split(",")):
                run = shutil.copytree(right, Path(place) / "run")
                change(run)
                places: Sequence[bool] = [*listen(run, Path(place) / "audits")]
                print(name, *("yes" if one else "NO" for one in places), sep=" · ", flush=True)
                silent += places.count(False)
                for folder in (run, Path(place) / "audits"):
                    shutil.rmtree(folder)
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
