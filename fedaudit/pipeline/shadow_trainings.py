"""Trains the shadow models of a plan: which ones a recipe and a target need, and in which folders. Those on disk are
not trained again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.finished import finish, on_disk
from fedaudit.pipeline.methods import method_of, schedule_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.sharing import free_chains_first
from fedaudit.pipeline.trainings import Training, blocks, train_block
from fedaudit.pipeline.workers import Workshop
from fedaudit.tasks.base import Federation
from fedaudit.trainers.base import Method, Schedule, plugin_name
from fedaudit.trainers.protocols import AttackBench
from fedaudit.trainers.transcript import Transcript


@dataclass(frozen=True)
class ShadowRecipe:
    """How the shadow models of a cell are trained, and where they lie."""

    method: Method[Any]
    schedule: Schedule
    folder: Path
    # the attacked training, if its recorded messages are used for the other clients; None: their messages are simulated
    observed: Path | None
    whole: bool  # whether shadows are whole simulated federations, not single clients
    together: bool  # whether all shadows of a target are trained as one batched problem
    shadows: int  # per target
    trajectories: int  # simulated federations along which shadow clients are trained
    seed: int
    description: dict[str, Any]  # written as run.json of each simulated federation
    start: Path | None = None  # the folder of the attacked training, if its start was not drawn by its seed

    @property
    def federations(self) -> range:
        """The numbers of the simulated federations: from 0 if they are the shadows themselves, else from `SIMULATED`;
        none if the training's own recorded messages are used."""
        if self.observed:
            return range(0)
        first = 0 if self.whole else shadow_models.SIMULATED
        return range(first, first + (self.shadows if self.whole else self.trajectories))

    def federation(self, shadow: int) -> Path:
        """The folder of a simulated federation, by its number."""
        return self.folder / (
            f"federation-{shadow:03d}" if self.whole else f"simulated-{shadow - shadow_models.SIMULATED:03d}"
        )

    @property
    def parts(self) -> list[range]:
        """The numbers of a target's shadows, split into jobs."""
        size = self.shadows if self.together else math.ceil(self.shadows / self.trajectories)
        return [range(self.shadows)[first : first + size] for first in range(0, self.shadows, size)]

    def client(self, client: int, shadows: range) -> Path:
        """The folder of one job's shadows of a target client."""
        return self.folder / f"client-{client:03d}-from-{shadows[0]:03d}"

    def simulated(self, shadow: int) -> Transcript:
        """The transcript of a simulated federation, by its number."""
        schedule = shadow_models.simulated_schedule(self.schedule, self.seed, shadow)
        return Transcript.of(claim(self.federation(shadow)), schedule, self.method)

    @property
    def others(self) -> list[Transcript]:
        """The trajectories along which shadow clients are trained: readers of federations that have the other clients'
        messages."""
        if self.observed:
            return [Transcript.of(claim(self.observed), self.schedule, self.method)]
        return [self.simulated(s) for s in self.federations]

    @property
    def twin(self) -> int | None:
        """The number of the simulated federation whose messages are attacked too, as a control; None: none was
        simulated."""
        return next(iter(self.federations), None)


def recipe_of(cell: Cell, federation: Federation) -> ShadowRecipe | None:
    """How the shadow models of a cell are trained; None where no attack needs them."""
    if not cell.needs_shadows:
        return None
    plan, method = cell.plan, method_of(cell, federation.sizes)
    observed = cell.training_folder if plan.adversary.trajectory == "observed" else None
    whole = plan.adversary.shadow_kind == "federations"
    return ShadowRecipe(
        method, schedule_of(cell), cell.bank_folder, observed, whole, plan.trained.together, plan.adversary.shadows,
        plan.adversary.trajectories, plan.seed, cell.bank_description,
        start=None if cell.trained_here else cell.training_folder,
    )  # fmt: skip


Simulation = tuple[ShadowRecipe, int]  # a simulated federation, by its number
ShadowJob = tuple[ShadowRecipe, int, range]  # a target client, and the numbers of some of its shadows


def train_banks(cells: Sequence[Cell], workshop: Workshop, progress: Progress) -> None:
    """Train the shadow models of the cells' targets that are not on disk, simulated federations first."""
    federations, clients = untrained(cells, workshop.federation, lambda path: on_disk(path, progress.say))
    if not federations and not clients:
        return
    recipe = (federations or clients)[0][0]
    rounds, attackers = recipe.schedule.rounds, workshop.attackers
    kinds: list[tuple[str, int, Callable[..., int], Sequence[tuple[object, ...]], Sequence[int]]] = [
        ("federation", len(federations), simulate, federations, blocks(rounds)),
        ("model", sum(len(some) for *_, some in clients), _train, clients, shadow_models.stops(rounds)),
    ]
    for noun, number, function, jobs, untils in (kind for kind in kinds if kind[1]):
        parts = len(untils)  # of each training, one after the other
        what, step = f"training {number} shadow {noun}{'s' * (number > 1)}", f"shadow {noun}"
        with progress.stage(what, number * parts, step, parts) as advance:
            todo = [(*job, progress.quiet) for job in jobs]
            for trained in free_chains_first(attackers.chains, function, todo, untils):
                advance(trained)


def untrained(
    cells: Sequence[Cell], federation: Federation, done: Callable[[Path], bool]
) -> tuple[list[Simulation], list[ShadowJob]]:
    """The trainings that the cells' targets need and that are not done: simulated federations, as (recipe, number), and
    jobs of shadow clients, as (recipe, client, numbers of shadows). `done` says whether a folder is finished."""
    todo = [
        cell
        for cell in {c.bank_folder: c for c in cells if c.needs_shadows}.values()
        if cell.variant and cell.variant.plugin.facts.trains
    ]
    recipes = [(cell, recipe) for cell in todo if (recipe := recipe_of(cell, federation))]
    federations = [(recipe, s) for _, recipe in recipes for s in recipe.federations if not done(recipe.federation(s))]
    clients = [
        (recipe, k, some)
        for cell, recipe in recipes
        if not recipe.whole
        for k in cell.targets
        for some in recipe.parts
        if not done(recipe.client(k, some))
    ]
    return federations, clients


def simulate(bench: AttackBench, job: tuple[ShadowRecipe, int, bool, int, bool]) -> int:
    """Train, in a worker, a simulated federation in its folder, and return 1. A job is (recipe, number, quiet, rounds
    to train up to, whether to wait for a process that works on it)."""
    recipe, shadow, quiet, until, wait = job
    training = Training(
        f"the adversary's simulation of {plugin_name(recipe.method)}",
        recipe.method,
        shadow_models.simulated_schedule(recipe.schedule, recipe.seed, shadow),
        shadow_models.NoEvaluation(),
        recipe.federation(shadow),
        recipe.description,
        start=recipe.start,
        timed=False,
    )
    train_block(shadow_models.simulated_bench(bench, recipe.seed, shadow), (training, quiet, until, wait))
    return 1


def _train(bench: AttackBench, job: tuple[ShadowRecipe, int, range, bool, int, bool]) -> int:
    """Train, in a worker, shadow clients in their folder, and return their number. A job is (recipe, client, shadows,
    quiet, rounds to train up to, whether to wait for a process that works on it)."""
    recipe, client, shadows, quiet, until, wait = job
    say, folder = Progress(quiet=quiet).say, claim(recipe.client(client, shadows))
    with folder.lock(say, wait=wait):
        shadow_models.train_shadows(
            bench, recipe.method, recipe.others, client, folder, seed=recipe.seed, shadows=shadows, until=until, say=say
        )
        if until == recipe.schedule.rounds:
            finish(folder)
    return len(shadows)


def shadows_of(bench: AttackBench, recipe: ShadowRecipe, client: int) -> shadow_models.ShadowModels:
    """The finished shadows of a target client, read from disk."""
    if recipe.whole:
        return shadow_models.shadows_of_federations(bench, recipe.method, recipe.others, client, seed=recipe.seed)
    parts = {some: claim(recipe.client(client, some)) for some in recipe.parts}
    return shadow_models.shadows_of(bench, recipe.method, recipe.others, client, parts, seed=recipe.seed)
