"""Whether a change of the code changes a number: small runs of this tree and of an earlier commit, compared to the last digit.

    python -m benchmarks.same_findings [COMMIT] [--threads 2]

COMMIT (default: HEAD) is checked out beside this tree. The runs are LoRA with canaries, three LoRA methods on questions,
prompts under every attack with canaries, private prompts with shadow models, prompts without an attack, and a run that
was trained elsewhere. Names the columns of findings and tables that differ; exit code 1 where one does. Takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parent.parent
SMALL = "--clients 4 --per-round 2 --records 8 --reference 12 --novel 12 --test 6 --local-steps 4"
PROMPTS = "--clients 4 --train 12 --test 2 --rounds 6"
ATTACKS = "cosine,entropy,fedmia,gradnorm,lira,loss,quantile,rmia,shadow,slope,source"  # `all` grows
RUNS = {
    "fedrand with canaries": f"--method fedrand --rounds 3 {SMALL} --canaries 6",
    "three methods, questions": f"--method fedavg,fedper,fedpara --task vqa --rounds 2 {SMALL}",
    "fedotp, eleven attacks": f"--method fedotp --attack {ATTACKS} {PROMPTS} --shadows 6 --canaries 8",
    "private prompts": f"--method dpfpl,promptfl --epsilon 1 --attack lira,shadow {PROMPTS} --shadows 6",
    "prompts, utility": f"--method zeroshot,local,fedpgp {PROMPTS}",
    "fedavg, exported": f"--method fedavg --rounds 2 {SMALL} --export-run {{own}}",
    "trained elsewhere": "--run {own}",
}
NAMES_OF_CODE = {"run", "schema"}  # fields of findings that say which code made them


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="HEAD", help="the code to compare with")
    parser.add_argument("--threads", default="2")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(before), given.commit)
        try:
            pairs = [(tree, Path(folder) / name) for tree, name in ((before, "before"), (ROOT, "now"))]
            differ = sum(_compare(name, words, pairs, given.threads) for name, words in RUNS.items())
        finally:
            _git("worktree", "remove", "--force", str(before))
    print(f"{differ} of {len(RUNS)} runs differ")
    return int(differ > 0)


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True)


def _compare(name: str, words: str, pairs: list[tuple[Path, Path]], threads: str) -> bool:
    """Run a command in both trees; prints and returns whether anything differs, by the columns that do."""
    (first, second) = (_results(tree, out, name, words, threads) for tree, out in pairs)
    differences = []
    for file in sorted(first.keys() | second.keys()):
        one, other = first.get(file, {}), second.get(file, {})
        columns = sorted(column for column in one.keys() | other.keys() if one.get(column) != other.get(column))
        differences += [f"{file} ({', '.join(columns)})"] if columns else []
    print(
        f"{name:<28}{len(first)} files   {'differ: ' + ', '.join(differences) if differences else 'same'}", flush=True
    )
    return bool(differences)


def _results(tree: Path, out: Path, name: str, words: str, threads: str) -> dict[str, dict[str, list[str]]]:
    """The columns of the findings and of the report's tables, by the names of their files; numbers as they are written."""
    command = [sys.executable, "audit.py", *words.format(own=out / "own").split(), "--threads", threads, "--quiet"]
    place = out / name.replace(" ", "-")
    done = subprocess.run(
        [*command, "--out", str(place)], cwd=tree, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tree)},
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    (report,) = place.glob("reports/*")
    findings = json.loads((report / "findings.json").read_text())
    names = dict.fromkeys(name for finding in findings for name in finding if name not in NAMES_OF_CODE)
    columns = {"findings": {name: [repr(finding.get(name)) for finding in findings] for name in names}}
    for path in sorted(report.rglob("*.csv")):
        if path.name not in ("findings.csv", "runs.csv"):
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
            columns[str(path.relative_to(report))] = {str(name): list(values) for name, values in table.items()}
    return columns


if __name__ == "__main__":
    sys.exit(main())
