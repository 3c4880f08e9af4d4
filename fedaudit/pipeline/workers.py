"""The workers of a plan, each with the frozen model, the records, and the clients' training lists."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import fedaudit
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.keys import NUMERIC_LIBRARIES, versions
from fedaudit.pipeline.plan import Plan
from fedaudit.trainers.resources import Resources

if TYPE_CHECKING:
    from fedaudit.machinery.executor import Executor
    from fedaudit.tasks.base import Federation
    from fedaudit.trainers.protocols import AttackBench, Bench, Evaluation

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def federation_of(plan: Plan) -> Federation:
    """The clients and records of a plan, with its canaries: a coin decides which of these are trained on."""
    if plan.own is not None:
        return plan.own.federation
    from fedaudit.tasks.canaries import insert

    return insert(plan.data.federation, plan.canaries, plan.seed, holders=plan.canary_holders)


def resources_of(plan: Plan, *, sample: bool = False) -> Resources:
    """The arguments that a plan's learner is made from."""
    threads = 1 if plan.device == "mps" else plan.threads  # torch promises threads nothing on Apple's GPU
    return Resources(
        plan.backbone, plan.settings, plan.out / "cache", plan.device, plan.dtype, plan.backbone_code, plan.workers,
        threads, plan.memory, sample,
    )  # fmt: skip


def make_bench(plan: Plan, federation: Federation, progress: Progress | None = None, *, sample: bool = False) -> Bench:
    """The data of a plan's workers: the frozen model, which is loaded here, the records, encoded here, and the ids of
    those that each client trains on. With `sample` only a batch of pictures is encoded (`Resources`)."""
    from fedaudit.machinery.executor import one_thread, set_precision
    from fedaudit.pipeline.methods import method_of
    from fedaudit.trainers.protocols import Bench

    one_thread()
    set_precision(plan.precision)
    learner = importlib.import_module(f"fedaudit.trainers.{plan.learner}")
    methods = [method_of(cell) for cell in plan.cells if cell.variant]
    return Bench(
        learner.prepared(resources_of(plan, sample=sample), federation, methods, progress or Progress(quiet=True)),
        training=[[record.id for record in client.training_records] for client in federation.clients],
        test=[record.id for record in federation.test],
        novel_test=[record.id for record in federation.novel_test],
        candidates=[client.candidates for client in federation.clients],
        canaries=frozenset(r.id for client in federation.clients if client.weightless for r in client.canaries),
        left_out=frozenset[str]().union(*(client.left_out for client in federation.clients)),
    )


def make_evaluation(plan: Plan, federation: Federation) -> Evaluation:
    """The evaluation that measures the utility of a plan's models."""
    return importlib.import_module(f"fedaudit.trainers.{plan.learner}").evaluation(resources_of(plan), federation)


class Workshop:
    """The workers of a plan, started when they are first needed. A context manager: leaving it ends them."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self.plan, self.progress = plan, progress
        self._running = contextlib.ExitStack()
        self._executor: Executor[Bench] | None = None
        self._scorers: Executor[Any] | None = None  # those of `each`: beside a GPU workers of their own

    @functools.cached_property
    def federation(self) -> Federation:
        return federation_of(self.plan)

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        return make_evaluation(self.plan, self.federation)

    @property
    def executor(self) -> Executor[Bench]:
        if self._executor is None:
            from fedaudit.machinery.executor import Executor

            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            self.progress.require_idle("starting the workers")
            self.progress.say("loading the model and its image embeddings")
            if isinstance(self.plan.backbone, ClipSource):
                self.progress.say(self.plan.backbone.summary)
            build = functools.partial(make_bench, self.plan, self.federation, self.progress)
            if self.plan.workers < self.plan.threads:  # forked before this process touches the GPU
                scorers = Executor(_no_bench, workers=self.plan.threads, say=self.progress.say)
                self._scorers = self._running.enter_context(scorers)
            options = dict[str, Any]()
            if self.plan.engine == "local" and len(self.plan.gpus) > 1:
                build = functools.partial(make_bench, dataclasses.replace(self.plan, gpus=[""]), self.federation)
                options = {"gpus": self.plan.gpus}
            if self.plan.engine == "ray":
                there = dataclasses.replace(self.plan, threads=1)  # on its node a worker has as many as it is given
                build = functools.partial(make_bench, there, self.federation)
                options = {
                    "folder": self.plan.out / "cache", "cpus": self.plan.worker_cpus, "gpus": self.plan.worker_gpus,
                    "environment": environment,
                }  # fmt: skip
            executor = Executor(
                build, workers=self.plan.workers, engine=self.plan.engine, options=options, say=self.progress.say
            )
            self._executor = self._running.enter_context(executor)
            self._scorers = self._scorers or self._executor
        return self._executor

    @property
    def attackers(self) -> Attackers:
        """The workers without the training lists, as attacks get them; starts them if needed."""
        return Attackers(self.executor)

    def each(self, function: Callable[[Argument], Result], jobs: Iterable[Argument]) -> Iterable[Result]:
        """As the builtin `map`, in the workers if they have been started, else in this process."""
        if self._scorers is None:
            return map(function, jobs)
        return self._scorers.map(_apply, ((function, job) for job in jobs))

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.__exit__(kind, error, trace)


class Attackers:
    """The workers for functions of (AttackBench, argument): that bench has no training lists, so no attack can read the
    truth."""

    def __init__(self, executor: Executor[Bench]) -> None:
        self._executor = executor

    def map(self, function: Callable[[AttackBench, Argument], Result], jobs: Iterable[Argument]) -> Iterator[Result]:
        """Results in the order of the jobs (`Executor.map`)."""
        return self._executor.map(_attack, ((function, job) for job in jobs))

    def chains(
        self, function: Callable[[AttackBench, Argument], Result], chains: Iterable[Iterable[Argument]]
    ) -> Iterator[Result]:
        """Results as they come; the jobs of one chain run one after the other (`Executor.chains`)."""
        return self._executor.chains(_attack, (((function, job) for job in chain) for chain in chains))


def environment() -> dict[str, str]:
    """Describe what must be alike on all machines: Python, the source of FedAudit, numeric libraries; and the vector
    instructions that torch uses, which may differ."""
    import torch

    from fedaudit.machinery.engines.ray import SIMD

    package, source = Path(fedaudit.__file__).parent, hashlib.sha256()
    paths = [Path(top) / name for top, _, names in os.walk(package, followlinks=True) for name in names]
    for path in sorted(path for path in paths if path.suffix == ".py"):
        source.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return {
        "Python": platform.python_version(),
        "FedAudit": f"{fedaudit.__version__} ({source.hexdigest()[:12]})",
        **versions(NUMERIC_LIBRARIES),
        SIMD: torch.backends.cpu.get_cpu_capability(),
    }


def _no_bench() -> None:
    """Make the bench of workers that need none."""


def _apply(_: Any, job: tuple[Callable[[Argument], Result], Argument]) -> Result:
    function, argument = job
    return function(argument)


def _attack(bench: Bench, job: tuple[Callable[[AttackBench, Argument], Result], Argument]) -> Result:
    function, argument = job
    return function(bench.attack_bench, argument)
