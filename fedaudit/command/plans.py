"""Builds a plan from parsed options, and checks its numbers, folders and device. Imports nothing heavy."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.audits.facts import AUDITS
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.clip_source import ClipSource, resolve_clip
from fedaudit.backbones.resolve import resolve
from fedaudit.command import sweeps
from fedaudit.command.argv import LARGEST, LARGEST_SEED
from fedaudit.command.choices import adversary_class, canaries_class
from fedaudit.external import single
from fedaudit.external.prompts import Prompts
from fedaudit.external.reading import read
from fedaudit.external.run import OwnRun
from fedaudit.external.schema import RUN
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin
from fedaudit.pipeline.plan import Plan, Variant
from fedaudit.tasks.facts import TaskFacts
from fedaudit.trainers.learners import METHODS, LearnerFacts, facts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# one of these is there if the machine has a driver for GPUs: NVIDIA's, Windows' under WSL2, AMD's
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))


def training_plan(
    options: argparse.Namespace, made: Mapping[str, Any], methods: sweeps.Named, task: Plugin[TaskFacts],
    trained: LearnerFacts, faults: list[str],
) -> Plan:  # fmt: skip
    """The plan of a training; `made` holds the parameter object of each group, by title. `faults` as in
    `_frozen_model`. InputError: a wrong number."""
    clients = _within(options, "clients", 1, 10_000)
    newcomers = _newcomers(options, methods)
    present = clients - newcomers
    plan = Plan(
        methods=sweeps.variants(methods, options, twins=getattr(options, "twin", False)),
        settings=made["local training"],
        task=task.name,
        task_params=made[f"task {task.name}"],
        rounds=_within(options, "rounds", 1, 100_000),
        clients=clients,
        per_round=present if options.per_round is None else _within(options, "per_round", 1, LARGEST),
        seed=_within(options, "seed", 0, LARGEST_SEED),
        seeds=_within(options, "seeds", 1, 1000),
        **_shared(options, made),
        adversary=made.get("the adversary") or adversary_class(trained)(),
        canaries=made["canaries"],
        backbone=_frozen_model(lambda: _backbone(options, trained.backbone), trained.backbone, options, faults),
        newcomers=newcomers,
    )
    if plan.per_round > plan.present:
        without = " without newcomers" if newcomers else ""
        raise InputError(
            f"--per-round {plan.per_round}: at most as many as there are clients{without} ({plan.present})"
        )
    return plan


def _newcomers(options: argparse.Namespace, methods: sweeps.Named) -> int:
    """Number of clients that join after training. InputError: no method supports it, or no other client is left."""
    newcomers = _within(options, "newcomers", 0, LARGEST)
    if newcomers and not any(plugin.facts.newcomers for plugin, _ in methods.values()):
        able = ", ".join(name for name, plugin in METHODS.items() if plugin.facts.newcomers)
        raise InputError(
            f"--newcomers {newcomers}: none of these methods says what a new client starts from; {able} does"
        )
    if newcomers >= options.clients:
        raise InputError(f"--newcomers {newcomers}: must be fewer than there are clients ({options.clients})")
    return newcomers


def _frozen_model(
    find: Callable[[], Path | ClipSource], kind: str, options: argparse.Namespace, faults: list[str]
) -> Path | ClipSource:
    """The frozen model that `find` returns. With --check, its InputError is added to `faults`, and the built-in model
    stands for it, so that the rest can be checked too."""
    try:
        return find()
    except InputError as error:
        if not options.check:
            raise
        faults.append(str(error))
        return resolve_clip("", "") if kind == "clip" else resolve(str(EMBEDDED))


def _backbone(options: argparse.Namespace, kind: str) -> Path | ClipSource:
    if kind == "clip":
        return resolve_clip(options.backbone or "", options.weights or "")
    return resolve(options.backbone or str(EMBEDDED), processor=not options.backbone_code)


def external_run(run: str, options: argparse.Namespace) -> OwnRun:
    """The external run of --run: a folder with run.json, or one model with --members and --nonmembers."""
    place = Path(os.path.expanduser(run))
    named = {f"--{name}": getattr(options, name) for name in ("members", "nonmembers", "classes")}
    read_single = None if os.path.lexists(place / RUN) else single.find_single(place)
    if read_single is not None:
        return read_single(place, single.Flags(options.linked_files, *named.values()))
    for flag, value in named.items():
        if value:
            raise InputError(f"{flag} {value}: goes with one adapter or checkpoint, and --run {place} is none")
    return read(place, linked=options.linked_files)


def own_run_plan(options: argparse.Namespace, made: Mapping[str, Any], external: OwnRun, faults: list[str]) -> Plan:
    """The plan that audits an external run; `faults` as in `_frozen_model`."""
    folder, trained = plugins.package_folder("fedaudit.trainers"), external.trained
    settings: Callable[..., DataclassInstance] = plugins.dataclass_of(folder / f"{external.learner}.py", "Settings")
    variant = Variant(trained.rule, trained.params, trained.privacy) if isinstance(trained, Prompts) else None
    return Plan(
        methods={external.method: variant},
        settings=settings(**trained.settings),
        task=external.task,
        task_params=None,
        rounds=external.rounds,
        clients=external.clients,
        per_round=max(1, *map(len, external.cohorts)),
        seed=external.seed,
        seeds=1,
        **_shared(options, made),
        adversary=made.get("the adversary") or adversary_class(facts(external.learner))(),
        canaries=canaries_class()(),
        backbone=_frozen_model(
            lambda: _backbone_of(external, options), facts(external.learner).backbone, options, faults
        ),
        own=external,
        accepted_doubts=options.accept_doubts,
    )


def _backbone_of(external: OwnRun, options: argparse.Namespace) -> Path | ClipSource:
    """The frozen model of an external run: the one that the command names, or else the run itself."""
    name = options.backbone or external.backbone
    if not name:
        raise InputError(f"--run {external.path}: does not name the model that was trained on; --backbone must")
    if not isinstance(external.trained, Prompts):
        return resolve(str(EMBEDDED) if name == "embedded" else name, processor=not options.backbone_code)
    weights = options.weights or ("" if options.backbone else external.trained.weights)
    return resolve_clip("" if name == "embedded" else name, weights)


def _shared(options: argparse.Namespace, made: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a plan that every kind of plan takes from the options."""
    code = getattr(options, "backbone_code", None)
    if code is not None and not Path(code).is_file():
        raise InputError(f"--backbone-code {code}: no such file; it takes a Python file (docs/reference/backbones.md)")
    params = {
        kind: {name.removeprefix(f"{kind} "): p for name, p in made.items() if name.startswith(f"{kind} ")}
        for kind in ("attack", "audit")
    }
    across = {name for name in params["audit"] if AUDITS[name].facts.across}
    return {
        "attacks": params["attack"],
        "audits": {name: p for name, p in params["audit"].items() if name not in across},
        "across": {name: p for name, p in params["audit"].items() if name in across},
        "backbone_code": code or "",
        "dtype": getattr(options, "dtype", "float32"),
        "precision": options.matmul_precision,
        "device": (device := _device(options)),
        "gpus": _gpus(device),
        "memory": options.memory or 0,
        "keep_rounds": options.keep_rounds,
        "show_records": options.show_records,
        **_workers(options),
    }


def _workers(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a plan that say where workers run. InputError: numbers that fit no worker, or not this engine."""
    out, ray = Path(options.out), options.engine == "ray"
    threads = _within(options, "threads", 1, 4096 if ray else max(64, os.cpu_count() or 1))
    shares = [name for name in ("worker_cpus", "worker_gpus") if getattr(options, name) is not None]
    for name in shares:
        if not ray:
            raise InputError(f"--{name.replace('_', '-')}: only --engine ray gives workers processors and GPUs")
        _within(options, name, 0, 1024)
    gpus = options.worker_gpus or 0
    if ray and options.device == "cuda" and not gpus:
        raise InputError("--device cuda: with --engine ray each worker needs a GPU, as --worker-gpus 1")
    return {
        "threads": threads,
        "out": out.absolute() if ray else out,  # workers run in other folders
        "engine": options.engine,
        **{name: getattr(options, name) for name in shares},
    }


def check_exports(plan: Plan, options: argparse.Namespace) -> None:
    """InputError if --export-run or --export-adapters is given and the plan cannot be exported so."""
    flags = [flag for flag in ("--export-run", "--export-adapters") if getattr(options, flag[2:].replace("-", "_"))]
    if flags and len(plan.cells) > 1:
        raise InputError(f"{flags[0]}: exports one training, and this command asks for {len(plan.cells)}")
    silent = [label for label, variant in plan.methods.items() if variant and not variant.plugin.facts.trains]
    if flags and silent:
        raise InputError(f"{flags[0]}: {silent[0]} trains nothing, so that there is no run to export")
    if options.export_adapters and plan.trained.records != "texts":
        raise InputError(
            f"--export-adapters: exports LoRA trainings, and {next(iter(plan.methods))} trains {plan.trained.noun}"
        )
    if options.export_run and plan.canaries.canaries:
        raise InputError(
            "--export-run: the format of docs/reference/run-folder.md knows no canaries; leave out --canaries"
        )
    if len(flags) == 2 and Path(options.export_run).absolute() == Path(options.export_adapters).absolute():
        raise InputError(f"--export-adapters {options.export_adapters}: --export-run writes there; name another folder")


def empty_folder(text: str | None, flag: str) -> Path | None:
    """The folder that `flag` names; None if it is not given. InputError: the folder is not empty, or is a file or below
    one."""
    if text is None:
        return None
    path = Path(text)
    file = next((p for p in (path, *path.parents) if p.is_file()), None)
    if file is not None or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"{flag} {text}: there is something already; name a folder that is empty or not there yet")
    return path


def _within(options: argparse.Namespace, name: str, least: int, most: int) -> Any:
    """The option `name`. InputError: it is not between `least` and `most`."""
    value = getattr(options, name)
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InputError(f"--{name.replace('_', '-')} {value}: must be {limit}")
    return value


def _device(options: argparse.Namespace) -> str:
    """The device of a plan, "cpu", "cuda" or "mps". InputError: torch finds it not here, or it cannot do what is
    asked."""
    ray = options.engine == "ray"
    if ray and options.device == "mps":
        raise InputError("--device mps: Ray gives workers no Apple GPU; use --engine local")
    device = _find_device("cpu" if ray and not options.worker_gpus else options.device, apple=not ray)
    if device == "mps" and options.matmul_precision == "tf32":
        raise InputError("--matmul-precision tf32: Apple's GPU has no TF32; use highest, or --device cpu")
    return device


def _find_device(name: str, *, apple: bool = True) -> str:
    """The device for a value of --device: `auto` is cuda before mps (if `apple`), and cpu without either; without a
    driver torch is not imported for it. InputError: torch finds no such device."""
    if name == "auto" and sys.platform != "darwin" and not any(driver.exists() for driver in DRIVERS):
        return "cpu"
    if name != "cpu":
        import torch

        if name != "mps" and torch.cuda.is_available():
            return "cuda"
        if name != "cuda" and apple and torch.backends.mps.is_available():
            return "mps"
        if name != "auto":
            kind = {"cuda": "CUDA device", "mps": "Apple GPU"}[name]
            raise InputError(f"--device {name}: torch finds no {kind} here; use cpu or auto")
    return "cpu"


def _gpus(device: str) -> list[str]:
    """The names of this machine's GPUs for CUDA_VISIBLE_DEVICES; [] if the device is a processor, one without a name if
    it is Apple's GPU."""
    if device != "cuda":
        return [] if device == "cpu" else [""]
    import torch

    count = max(1, torch.cuda.device_count())
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (visible or [str(i) for i in range(count)])[:count]
