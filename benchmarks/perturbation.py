"""To how many digits a training repeats: `python -m benchmarks.perturbation [PRESET ...] [flags]`.

Each preset's methods are trained three times, without noise and with seed 0: in float32, in float64, and in float64 from
a start whose entries are moved by 1e-7 of the largest at most, in a random direction. A row has the largest distance
after the last round, in any tensor that the server or a client holds, as a share of the tensor's largest entry: of the
moved run from the one in float64 (`moved`), and of float32 from float64 (`float32`). Where users are clustered, `same`
says whether they were in the same clusters in all rounds of all three. `embedded` has a row for every method at its
defaults. Further flags are the command's, as --global-rate=.03; `CPU s` are of the three trainings.

All runs have the same pictures, records, batches and random numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedaudit.backbones import vlm, vlm_loading
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.pipeline.methods import method_of, schedule_of
from fedaudit.pipeline.plan import Cell, Plan, Variant
from fedaudit.pipeline.workers import federation_of, make_bench
from fedaudit.tasks.base import Federation
from fedaudit.trainers.base import State, generator
from fedaudit.trainers.learners import METHODS
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import train
from fedaudit.trainers.transcript import Transcript

MOVED = 1e-7  # of the largest entry
DEFAULTS = "embedded"
PRESETS = (
    "secfpp",
    "secfpp-table2",
    DEFAULTS,
    "memorising",
    "private-demo",
    "dpfpl-table4",
    "dp2fl-tables",
    "fedrand-tables",
)


class Double(TorchFunctionMode):
    """Torch computes in float64 where it would in float32; random numbers are those of float32."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.randn, torch.rand):
            return func(*args, **kwargs | {"dtype": torch.float32}).double()
        if func is Tensor.float:
            return args[0].double()
        wider = {torch.float32: torch.float64}
        args = [wider.get(a, a) if isinstance(a, torch.dtype) else a for a in args]
        return func(*args, **{n: wider.get(a, a) if isinstance(a, torch.dtype) else a for n, a in kwargs.items()})


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Models that are loaded within this context, and all that is computed in it, are in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        with (
            Double(),
            mock.patch.dict(vlm_loading.DTYPES, float32=torch.float64),
            mock.patch.dict(vlm.TOLERANCE, {(torch.float64, "highest"): vlm.TOLERANCE[torch.float32, "highest"]}),
        ):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


class Unmeasured:
    """An evaluation that measures nothing."""

    def before(self, *_: Any) -> dict[str, dict[str, float]]:
        return {}

    def after(self, *_: Any, done: int, last: bool) -> dict[str, dict[str, float]]:
        return {}


@dataclass(frozen=True)
class Row:
    """How far apart a method's three trainings end, as shares of the largest entry; `same` is None without clusters."""

    method: str
    rounds: int
    clients: int
    moved: float
    float32: float
    same: bool | None
    seconds: float


def rows(plan: Plan, only: str | None = None) -> Iterator[Row]:
    """A row of each method of the plan, or of one of them, without noise."""
    cells = [cell for cell in plan.cells if wanted(cell.variant, only)]
    if not cells:
        return
    federation = federation_of(plan)
    benches = both(plan, federation)
    for cell in cells:
        yield row(cell, federation, *benches)


def both(plan: Plan, federation: Federation) -> tuple[Bench, Bench]:
    """The bench of a plan in float32 and in float64; each keeps its image features in a folder of its own."""
    single = make_bench(dataclasses.replace(plan, out=plan.out / "single"), federation)
    with in_double():
        return single, make_bench(dataclasses.replace(plan, out=plan.out / "double"), federation)


def row(cell: Cell, federation: Federation, single: Bench, double: Bench) -> Row:
    started = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        in_float32, in_float64, from_moved = three(cell, federation, single, double, Path(out))
        apart = distance(in_float64, from_moved), distance(in_float64, in_float32)
        clustered = "cluster" in in_float64.server(0)
        same = all(equal_clusters(in_float64, run) for run in (in_float32, from_moved)) if clustered else None
    return Row(cell.method, cell.plan.rounds, cell.plan.clients, *apart, same, time.process_time() - started)


def wanted(variant: Variant | None, only: str | None) -> bool:
    """Whether a method trains without noise, and is that of --only if this is given."""
    assert variant is not None
    noised = variant.privacy is not None and math.isfinite(variant.privacy.epsilon)
    return variant.plugin.facts.trains and not noised and only in (None, variant.method)


def three(
    cell: Cell, federation: Federation, single: Bench, double: Bench, out: Path
) -> tuple[Transcript, Transcript, Transcript]:
    """The trainings of a cell in float32, in float64, and in float64 from a moved start."""
    method, quiet = method_of(cell, federation.sizes), Progress(quiet=True)

    def trained(name: str, bench: Bench, initial: State) -> Transcript:
        with Executor(lambda: bench) as executor:
            return train(
                method, schedule_of(cell), Unmeasured(), folder=claim(out / name), executor=executor, say=quiet.say,
                advance=lambda: None, start=method.start(initial),
            )  # fmt: skip

    initial = single.learner.initial(generator(cell.seed, "initial"))
    in_float32 = trained("float32", single, initial)
    with in_double():
        initial = {name: tensor.double() for name, tensor in initial.items()}
        return in_float32, trained("float64", double, initial), trained("moved", double, move(initial, cell.seed))


def move(state: State, seed: int) -> State:
    """The state with every tensor moved in a random direction, no entry by more than MOVED of the tensor's largest."""
    chance = generator(seed, "moved")
    directions = {name: torch.randn(tensor.shape, generator=chance) for name, tensor in state.items()}
    return {n: t + MOVED * t.abs().max() * directions[n] / directions[n].abs().max() for n, t in state.items()}


def distance(one: Transcript, other: Transcript) -> float:
    """The largest difference of two trainings in the end, in any floating tensor that the server or clients hold, as a
    share of the largest entry that a tensor of its name has. Where the numbers of clusters differ, of clients alone."""
    a, b = ended(one), ended(other)
    return max(
        float((a[name].double() - b[name].double()).abs().max() / a[name].abs().max().clamp(min=torch.finfo().tiny))
        for name in a
        if a[name].shape == b[name].shape
    )


def ended(run: Transcript) -> State:
    """The tensors that a training makes, by name: the clients' own models together, and the server's state."""
    last = {k: rounds[-1] for k in range(run.schedule.clients) if (rounds := run.participations(k))}
    own = [model for k, r in last.items() if (model := run.own_model(r, k)) is not None]
    models = {f"own {name}": torch.stack([model[name] for model in own]) for name in own[0]}
    start, end = run.server(0), run.server(run.schedule.rounds)
    return models | {name: t for name, t in end.items() if name in start and t.is_floating_point()}


def equal_clusters(one: Transcript, other: Transcript) -> bool:
    """Whether users were in the same clusters at the end of every round."""
    rounds = range(1, one.schedule.rounds + 1)
    return all(torch.equal(one.server(r)["cluster"], other.server(r)["cluster"]) for r in rounds)


def plans(preset: str, only: str | None, more: Sequence[str], out: str) -> Iterator[Plan]:
    """The plan of a preset; of `embedded` that of each method at its defaults."""
    trained = [name for name, plugin in METHODS.items() if plugin.facts.trains and only in (None, name)]
    for words in [f"--method={name}" for name in trained] if preset == DEFAULTS else [f"--preset={preset}"]:
        yield read_command([words, "--seeds=1", "--threads=1", f"--out={out}", *more]).plan


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET")
    parser.add_argument("--only", metavar="METHOD", help="rows of this method alone, and of `embedded` only its run")
    chosen, more = parser.parse_known_args(sys.argv[1:] if words is None else words)
    print(f"{'preset':<18}{'method':<28}{'rounds':>6}{'clients':>8}{'moved':>10}{'float32':>10}{'same':>6}{'CPU s':>7}")
    with tempfile.TemporaryDirectory() as out:
        for preset in chosen.presets or PRESETS:
            for plan in plans(preset, chosen.only, more, out):
                for row in rows(plan, chosen.only):
                    same = "" if row.same is None else "yes" if row.same else "no"
                    print(f"{preset:<18}{row.method:<28}{row.rounds:>6}{row.clients:>8}{row.moved:>10.1e}"
                          f"{row.float32:>10.1e}{same:>6}{row.seconds:>7.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
