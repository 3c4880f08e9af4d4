"""Plant faults in a copy of the project, one at a time, and print which of them the quick tests see.

    python -m benchmarks.planted_faults [--only WORD] [--at COMMIT] [--seconds 60]
    python -m benchmarks.planted_faults --draw 40 --seed 1

The table is `planted_faults.yaml` beside this file. A fault is a line of a function and what stands in its place; a line
that is not found, or found twice, is an error, so that the table survives moves. A fault dies where a quick test of the
files that it names fails; those that change no result say why (`equivalent`) and are not planted. The exit code is 1
where one survives. The files are run without a fault first: what fails there is no evidence.

`--at` plants in another commit, whose files may lack some of the tests. `--draw` prints new rows instead: lines of
functions drawn over the rooms by their share of lines, each with one change of `OPERATORS`, and test files that import
the module.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue

import yaml

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_suffix(".yaml")
ROOMS = ("trainers", "attacks", "audits", "reports", "fedaudit")
PROCESSES = 2
PYTEST = (sys.executable, "-m", "pytest", "-m", "not slow", "-q", "--no-header", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Fault:
    """A change of one line: `line` of `function` (module:qualified name) becomes `text`."""

    kind: str
    function: str
    line: str
    text: str
    tests: tuple[str, ...]  # files of tests/, or tests of one
    drawn: bool = False
    equivalent: str = ""  # why it changes nothing

    @property
    def name(self) -> str:
        return f"{self.function}  {self.text.strip()}"

    def plant(self, tree: Path) -> tuple[Path, str]:
        """The file that holds it and that file's text with the fault."""
        path = file_of(tree, self.function.partition(":")[0])
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        start, end = span(lines, self.function.partition(":")[2])
        found = [i for i in range(start, end) if lines[i].strip() == self.line.strip()]
        if len(found) != 1:
            sys.exit(f"{self.function}: {len(found)} lines are {self.line!r}; a fault needs one")
        indent = lines[found[0]][: len(lines[found[0]]) - len(lines[found[0]].lstrip())]
        lines[found[0]] = f"{indent}{self.text.strip()}\n"
        ast.parse("".join(lines))
        return path, "".join(lines)


def table() -> list[Fault]:
    rows = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return [Fault(**row | {"tests": tuple(row["tests"])}) for row in rows]


def file_of(tree: Path, module: str) -> Path:
    path = tree.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def span(lines: Sequence[str], qualified: str) -> tuple[int, int]:
    """First and last line, counted from 0, of a function or class, or of the whole file where no name is given."""
    node: ast.AST = ast.parse("".join(lines))
    if not qualified:
        return 0, len(lines)
    for name in qualified.split("."):
        inner = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name]
        if not inner:
            sys.exit(f"there is no {qualified}")
        node = inner[0]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    assert node.end_lineno is not None
    return node.lineno - 1, node.end_lineno


# planting


def copy_of(tree: Path, place: Path) -> Path:
    """A copy of the files that git knows or would take."""
    known = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(known, cwd=tree, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (tree / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, place / name, follow_symlinks=False)
    return place


def pytest(tree: Path, words: Sequence[str], seconds: float) -> tuple[int | None, float, str]:
    """Exit code (None: out of time), seconds, and the end of what pytest says in a tree."""
    start = time.monotonic()
    running = subprocess.Popen(
        [*PYTEST, *words], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = running.communicate(timeout=seconds)
        return running.returncode, time.monotonic() - start, said
    except subprocess.TimeoutExpired:
        return None, time.monotonic() - start, ""
    finally:  # and what tests left behind
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def outcome(fault: Fault, tree: Path, seconds: float) -> tuple[str, float, str]:
    """died, survived or out of time; seconds; and the first test that saw it."""
    words = [f"tests/{name}" for name in fault.tests if (tree / "tests" / name.partition("::")[0]).exists()]
    if not words:  # of another commit: pytest would run all
        return "no tests", 0.0, ""
    path, faulty = fault.plant(tree)
    sound = path.read_bytes()
    path.write_text(faulty, encoding="utf-8")
    try:
        code, took, said = pytest(tree, ["-x", "-n0", *words], seconds)
    finally:
        path.write_bytes(sound)
    seen = next((line.split(" - ")[0] for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
    if code in (1, 2):
        return "died", took, seen.partition("tests/")[2]
    return ("survived" if code == 0 else "out of time" if code is None else f"pytest: {code}"), took, ""


def run(faults: Sequence[Fault], tree: Path, seconds: float) -> int:
    """Plants all, two at a time; 1 where one did not die."""
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for i in range(PROCESSES):
            copies.put(copy_of(tree, Path(folder) / str(i)))
        sound(faults, copies.queue[0])

        def planted(fault: Fault) -> str:
            copy = copies.get()
            try:
                found, took, seen = outcome(fault, copy, seconds)
            finally:
                copies.put(copy)
            kind = f"{fault.kind}{' (drawn)' if fault.drawn else ''}"
            print(f"{found:<12}{took:5.0f} s  {kind:<34}{fault.name:<100.100}  {seen}", flush=True)
            return found

        with ThreadPoolExecutor(PROCESSES) as pool:
            results = list(pool.map(planted, faults))
    print(", ".join(f"{number} {result}" for result, number in Counter(results).items()))
    return int(any(result != "died" for result in results))


def sound(faults: Sequence[Fault], tree: Path) -> None:
    """Ends the program where a test fails without any fault."""
    for fault in faults:
        fault.plant(tree)
    names = dict.fromkeys(name for fault in faults for name in fault.tests)
    words = [f"tests/{name}" for name in names if (tree / "tests" / name.partition("::")[0]).exists()]
    code, _, said = pytest(tree, words, 3600)
    if code:
        sys.exit(f"a test fails without a fault:\n{said[-2000:]}")


# drawing

Change = tuple[ast.expr, str]  # an expression, and its text afterwards
BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
REVERSED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}


def boundaries(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BOUNDARY:
        sides = (ast.unparse(node.left), ast.unparse(node.comparators[0]))
        yield node, f" {BOUNDARY[type(node.ops[0])]} ".join(sides)


def constants(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        yield node, repr(not node.value if isinstance(node.value, bool) else node.value + 1)


def dropped_terms(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in REVERSED:
        yield node, ast.unparse(node.left)
        yield node, ast.unparse(node.right)
        yield node, f"({ast.unparse(node.left)}) {REVERSED[type(node.op)]} ({ast.unparse(node.right)})"
    if isinstance(node, ast.BoolOp):
        yield node, ast.unparse(node.values[0])


def swapped_arguments(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call) and len(node.args) == 2 and not any(isinstance(a, ast.Starred) for a in node.args):
        swapped = ast.Call(node.func, node.args[::-1], node.keywords)
        yield node, ast.unparse(swapped)


def negated_conditions(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node.test, f"not ({ast.unparse(node.test)})"
    if isinstance(node, ast.comprehension):
        yield from ((test, f"not ({ast.unparse(test)})") for test in node.ifs)


OPERATORS: tuple[Callable[[ast.AST], Iterator[Change]], ...] = (
    boundaries, constants, dropped_terms, swapped_arguments, negated_conditions,
)  # fmt: skip


def changes(path: Path, module: str) -> Iterator[Fault]:
    """All faults that the operators make of one line of a file's functions."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for function, name in functions(ast.parse(text)):
        inside = [line.strip() for line in lines[function.lineno - 1 : function.end_lineno]]
        for node in (n for statement in function.body for n in ast.walk(statement)):
            for operator in OPERATORS:
                for old, new in operator(node):
                    line = lines[old.lineno - 1]
                    alone = old.lineno == old.end_lineno and inside.count(line.strip()) == 1 and line.isascii()
                    if alone and _is_there(old, line):
                        changed = f"{line[: old.col_offset]}{new}{line[old.end_col_offset :]}"
                        kind = operator.__name__.replace("_", " ")
                        yield Fault(kind, f"{module}:{name}", line.strip(), changed.strip(), (), True)


def _is_there(node: ast.expr, line: str) -> bool:
    """Whether a line has an expression where it says; before Python 3.12 those in f-strings may say otherwise."""
    try:
        found = ast.parse(line[node.col_offset : node.end_col_offset].strip(), mode="eval").body
    except SyntaxError:
        return False
    return ast.dump(found) == ast.dump(node)


def functions(tree: ast.AST, outer: str = "") -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions of modules and classes, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{outer}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield node, f"{outer}{node.name}"


def importing(module: str, function: str) -> list[str]:
    """The files of tests that import a module, those first that name the function most often, four at most."""
    package, _, stem = module.rpartition(".")
    found = {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        if any(n.module == module or (n.module == package and stem in {a.name for a in n.names}) for n in nodes):
            found[path.name] = text.count(function.rpartition(".")[2])
    return sorted(found, key=lambda name: -found[name])[:4]


def draw(number: int, seed: int) -> list[Fault]:
    """Faults on lines drawn evenly over the product's functions, of modules that a test imports; one of each file."""
    paths = [path for top in ROOMS for path in sorted((ROOT / top).rglob("*.py")) if "__init__" not in path.name]
    paths = [path for path in paths if not any(parent.is_symlink() for parent in path.parents)]
    sizes = [path.read_text(encoding="utf-8").count("\n") for path in paths]
    generator, drawn = random.Random(seed), dict[Path, Fault]()
    while len(drawn) < number:
        (path,) = generator.choices(paths, sizes)
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts if parts[0] == "fedaudit" else ("fedaudit", *parts))
        offered = list(changes(path, module))
        if path in drawn or not offered:
            continue
        fault = generator.choice(offered)
        if tests := importing(module, fault.function.partition(":")[2]):
            drawn[path] = replace(fault, tests=tuple(tests))
    return list(drawn.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose row has this word")
    parser.add_argument("--at", metavar="COMMIT", help="whose code and tests are used (default: this tree)")
    parser.add_argument("--seconds", type=float, default=60, help="of the tests of one fault (default: 60)")
    parser.add_argument("--draw", type=int, metavar="N", help="print so many new rows")
    parser.add_argument("--seed", type=int, default=0, help="of --draw (default: 0)")
    given = parser.parse_args()
    if given.draw:
        rows = [vars(fault) | {"tests": list(fault.tests)} for fault in draw(given.draw, given.seed)]
        print(yaml.safe_dump(rows, sort_keys=False, width=1000))
        return 0
    faults = [f for f in table() if given.only in f"{f.kind} {f.name} {f.tests}" and not f.equivalent]
    if not given.at:
        return run(faults, ROOT, given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", tree, given.at], cwd=ROOT, check=True, capture_output=True
        )
        try:
            return run(faults, tree, given.seconds)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
