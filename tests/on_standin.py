"""What runs on the stand-in GPU, in a process of its own; each writes JSON.

`python -m tests.on_standin serve`: these programs, one after the other, as standard input names them.
`python -m tests.on_standin faults FILE`: what the stand-in itself refuses and counts.
`python -m tests.on_standin LEARNER FILE [all]`: everything that a learner computes, on the processor and on the device,
for every method as it is, or with `all` in every variant, clipped and noised too. A row for each thing that a method
does: how far the device's numbers are from the processor's (0: the same bytes), and the lines at which the host waited.
`python -m tests.on_standin command FILE WORDS`: an audit where `--device auto` finds a GPU.
`python -m tests.on_standin apple:LEARNER FILE [all]` and `apple:command`: as above, on a stand-in as poor as Apple's GPU.
`python -m tests.on_standin cuda:LEARNER FILE [all]`: as LEARNER, on a real GPU, where rounding is another.
"""

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaudit.attacks import gradients
from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.messages.contents import refusal as refusal_of_contents
from fedaudit.attacks.threats import lacks, refusal
from fedaudit.contracts.method_worlds import CLIENTS, ROUNDS, WORLDS, World
from fedaudit.machinery import devices
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Method
from fedaudit.trainers.learners import METHODS, facts
from fedaudit.trainers.protection import Protection
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.steps import PrivateMethod
from fedaudit.trainers.transcript import Transcript
from tests import asking_toy, prompt_toy, standin

VARIANTS: Mapping[str, tuple[dict[str, Any], ...]] = {  # beside a method's own defaults
    "fedotp": ({"match": "ot"},),
    "dpfpl": ({"rank": 0}, {"residual": False}),
    "secfpp": ({"clustered": "prompt", "together": 1},),
}
QUICK = ("fedotp:match=ot", "dpfpl, clipped by record")  # beside every method as it is
ATTACKED = ("promptfl", "fedotp:match=ot", "fedpgp", "secfpp", "dp2fl")  # with a message of its own each


DEVICE = standin.NAME


def main(what: str, file: Path, *more: str) -> None:
    global DEVICE
    if what.startswith("cuda:"):
        DEVICE, what = what.split(":")
    else:
        standin.install(apple=what.startswith("apple:"))
        what = what.removeprefix("apple:")
    if standin.APPLE:
        devices.WITHOUT_FLOAT64.add(standin.NAME)
    os.fsync = lambda _: None
    torch.set_num_threads(1)  # the threads of a process that was forked are not there
    if what == "faults":
        file.write_text(json.dumps(apple_faults() if standin.APPLE else faults()))
    elif what == "doubles":
        file.write_text(json.dumps(doubles()))
    elif what == "command":
        file.write_text(json.dumps(command(more)))
    else:
        file.write_text(json.dumps([*rows(what, everything="all" in more)]))


def faults() -> dict[str, str]:
    """What the stand-in makes of things that CUDA refuses, and the reads that it counts."""
    here, there = torch.arange(4.0), torch.arange(4.0, device=standin.NAME)
    tries: dict[str, Callable[[], object]] = {
        "two devices": lambda: here + there, "a host matrix": lambda: there @ here, "numpy": lambda: there.numpy(),
        "a host generator": lambda: torch.rand(2, generator=torch.Generator(), device=standin.NAME),
        "a host scalar": lambda: there + torch.tensor(1.0), "a host index": lambda: there[torch.tensor([1, 2])],
        "a copy": lambda: there.cpu().numpy(), "item": lambda: float(there[1]), "tolist": lambda: there.tolist(),
        "a mask": lambda: there[there > 1],
        "gradient": lambda: (there * here.clone().requires_grad_().to(standin.NAME)).sum().backward(),
    }  # fmt: skip
    return {name: tried(attempt) for name, attempt in tries.items()}


def tried(attempt: Callable[[], object]) -> str:
    standin.READS.clear()
    try:
        attempt()
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{standin.READS.total()} reads"


def apple_faults() -> dict[str, str]:
    """Return the errors that the stand-in for Apple's GPU raises at double precision, and at an operation that it lacks."""
    here, there = torch.eye(2), torch.eye(2, device=standin.NAME)
    tries: dict[str, Callable[[], object]] = {
        "made": lambda: torch.zeros(2, dtype=torch.float64, device=standin.NAME),
        "moved": lambda: here.double().to(standin.NAME), "converted": lambda: there.double(),
        "converted on the way": lambda: there.to("cpu", torch.float64),
        "copied into": lambda: here.double().copy_(there), "complex": lambda: there.to(torch.complex128),
        "no kernel": lambda: torch.linalg.eig(there),
        "narrowed on the way": lambda: here.double().to(standin.NAME, torch.float32),
        "by a double": lambda: there * np.float64(0.5) @ there,
    }  # fmt: skip
    said = {name: tried(attempt) for name, attempt in tries.items()}
    return {name: "" if text.endswith(" reads") else text.partition(":")[0] for name, text in said.items()}


def doubles() -> dict[str, float]:
    """How far what is computed in double precision of tensors on the device is from that of the same on the host."""
    from fedaudit.attacks.messages import adapters, ridge
    from fedaudit.attacks.tokens.signals import row_signals

    generator = torch.Generator().manual_seed(0)
    rows, message = torch.randn(6, 40, generator=generator), torch.randn(40, generator=generator)
    space = torch.linalg.qr(torch.randn(40, 3, dtype=torch.float64, generator=generator)).Q.T
    computed: dict[str, Callable[[Tensor], Any]] = {
        "double": lambda rows: devices.double(rows).cpu(),
        "residuals": lambda rows: adapters.residuals(rows, space).cpu(),
        "inner products": lambda rows: ridge.inner_products(rows, message),
        "signals": lambda rows: row_signals(rows, [1] * len(rows)),
        "clamped signals": lambda rows: row_signals(rows, [1] * len(rows), compat="vlmia"),
    }
    return {name: difference(of(rows), of(rows.to(standin.NAME))) for name, of in computed.items()}


def command(words: Sequence[str]) -> dict[str, Any]:
    """Return the device that `--device auto` (of Apple's GPU `--device mps`) chose where torch finds one, and how far
    the command's findings are from the processor's, by the fields that differ."""
    from fedaudit.backbones.vlm_loading import Opened
    from fedaudit.command import cli, plans

    chosen: list[str] = []
    find, load = plans._device, Opened.open

    def device(options: argparse.Namespace) -> str:
        # in this block only: torch asks it too, where it imports parts of itself
        with mock.patch("torch.backends.mps.is_available", return_value=bool(standin.APPLE)):
            chosen.append(find(options))
        return "cpu" if chosen[-1] == "cpu" else standin.NAME

    def on_host(self: Opened) -> Any:
        """From the host the model goes to the device: transformers fills a real GPU's memory by itself."""
        place, self.device = self.device, torch.device("cpu")
        try:
            return load(self)
        finally:
            self.device = place

    plans._device, plans.DRIVERS, Opened.open = device, (Path(__file__),), on_host  # type: ignore[assignment, method-assign]
    if not standin.APPLE:
        torch.cuda.is_available = lambda: True
    with tempfile.TemporaryDirectory() as folder, sdpa_kernel(SDPBackend.MATH):
        both = []
        for name in ("mps" if standin.APPLE else "auto", "cpu"):
            out = Path(folder) / name
            code = cli.main([*words, "--device", name, "--threads", "1", "--quiet", "--debug", "--out", str(out)])
            assert code == 0
            (findings,) = (json.loads(path.read_text()) for path in out.glob("reports/*/findings.json"))
            both.append([{name: value for name, value in f.items() if name != "run"} for f in findings])
    assert [list(finding) for finding in both[0]] == [list(finding) for finding in both[1]]
    names = dict.fromkeys(name for finding in both[0] for name in finding)
    off = {name: difference(*([finding.get(name) for finding in findings] for findings in both)) for name in names}
    return {"chosen": chosen, "findings": len(both[0]), "off": {name: far for name, far in off.items() if far}}


def rows(learner: str, *, everything: bool) -> Iterator[dict[str, Any]]:
    here: World = WORLDS[learner]()
    there = moved(here)
    for method, title in methods(here, learner):
        if everything or title in QUICK or title in METHODS:
            with sdpa_kernel(SDPBackend.MATH):  # the stand-in has no other; the processor's own differs by rounding
                yield from compared(here, there, method, title, learner, everything=everything)


def moved(world: World) -> World:
    learner, clip = world.learner, prompt_toy.clip(DEVICE)
    parts = [learner.features, *([learner._tokens] if hasattr(learner, "_tokens") else [])]
    on_device = [dataclasses.replace(part, _features=part._features.to(DEVICE)) for part in parts]
    again = type(learner)(clip, *on_device, learner._labels, learner.classes, learner.settings)
    return dataclasses.replace(world, learner=again)


def methods(world: World, learner: str) -> Iterator[tuple[Method[Any], str]]:
    """Every method of a learner, its variants, and of those that can be noised each way to clip."""
    for name, plugin in METHODS.items():
        if plugin.facts.learner != learner:
            continue
        for params in ({}, *VARIANTS.get(name, ())):
            method = dataclasses.replace(world.make(plugin), params=plugin.params(**params))  # type: ignore[type-var]
            title = ":".join([name, *(f"{key}={value}" for key, value in params.items())])
            yield method, title
            if isinstance(method, PrivateMethod) and (method.local or method.shared):
                for clip in ("record", "batch"):
                    stds = dict.fromkeys((*method.local, *method.shared), 0.01)
                    noise = Protection(Privacy(epsilon=1.0, clip=clip, clip_norm=0.5), stds, method.settings.batch)
                    yield dataclasses.replace(method, protection=noise), f"{title}, clipped by {clip}"


def compared(
    here: World, there: World, method: Method[Any], title: str, learner: str, *, everything: bool
) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        with standin.on_host():
            run = here.run(method, Path(folder) / "here", evaluation=here.evaluation)
        standin.READS.clear()
        again = there.run(method, Path(folder) / "there", evaluation=there.evaluation)
        yield row(title, "train", states(run), states(again), dict(standin.READS))
        yield row(title, "evaluate", utilities(run), utilities(again))
        if not everything and title not in ATTACKED:
            return
        there.run(method, Path(folder) / "resumed", evaluation=there.evaluation, until=1)
        resumed = there.run(method, Path(folder) / "resumed", evaluation=there.evaluation)
        yield row(title, "resume", *(states(run) | utilities(run) for run in (again, resumed)))
        adversaries = adversaries_of(method, run, learner)[: None if everything else 1]
        with standin.on_host():
            said = answers(here, method, run, learner, adversaries)
        standin.READS.clear()
        said_there = answers(there, method, run, learner, adversaries)
        yield row(title, "what attacks ask", said, said_there, dict(standin.READS))


def row(method: str, what: str, here: Any, there: Any, reads: Mapping[str, int] | None = None) -> dict[str, Any]:
    return {"method": method, "what": what, "off": difference(here, there), "reads": reads or {}}


def states(run: Transcript) -> dict[str, Any]:
    of_clients = {f"{r}, {k}": [run.upload(r, k), run.private(r, k)] for r in range(ROUNDS) for k in range(CLIENTS)}
    return {f"{r}": run.broadcast(r + 1) for r in range(ROUNDS)} | of_clients


def utilities(run: Transcript) -> dict[str, Any]:
    return {f"utility {r}": run.round(r)["utility"] for r in range(ROUNDS)}


def adversaries_of(method: Method[Any], run: Transcript, learner: str) -> list[str]:
    """The threat models of a method, the one that sees most first."""
    able = facts(learner)
    names = able.on_shares if "revealed" in run.round(0) else able.threat_models
    needs = {"released-model": method.sends, "server": method.sends, "peer": bool(method.by_client)}
    return sorted((one for one in names if needs.get(one, True)), key=lambda one: -len(one.sees))


def answers(
    world: World, method: Method[Any], run: Transcript, learner: str, adversaries: Sequence[str]
) -> dict[str, Any]:
    """What attacks ask of a learner about a client's records: some adversaries, and what is asked of shadow models."""
    own = list(world.training[0])
    others = [record for records in world.training[1:] for record in records]
    target = Target(0, own, others[:3], others[3:], True)
    own_part = method.messages.model_selector(0)
    models = [method.model(run.broadcast(0) | run.broadcast(r) | own_part) for r in (0, ROUNDS)]
    able = facts(learner)
    known = {
        "log_probs": world.learner.log_probs(method, models, target.records),
        "untrained": world.learner.untrained(target.records),
        "predicted": world.learner.predicted(models, target.records, method),
        "norms": gradients.gradient_norms(method, world.learner, models[1], target.records),
        "descents": gradients.descents(method, world.learner, models[1], target.records),
    }
    for threat_model in adversaries:
        attacks = {
            name: plugin.own(plugin.params()) for name, plugin in ATTACKS.items() if lacks(plugin, able) is None
            and not refusal(plugin, threat_model, able) and not plugin.facts.shadows
            and not (plugin.facts.contents and refusal_of_contents(method))
        }  # fmt: skip
        place, more = run.folder.path.with_name(f"asked-{threat_model}"), {"observed_rounds": ROUNDS}
        asking = asking_toy.asking(place, "classes", method, run, [target], {threat_model: attacks}, **more)
        candidates = [list(records) for records in world.training]
        asking = dataclasses.replace(asking, candidates=candidates, pictures=target.records)
        question_sets = asking_toy.asked(Bench(world.learner, [], [], candidates=asking.candidates), asking)
        known[threat_model] = [question_set.knowledge() for question_set in question_sets]
    return known


def difference(here: Any, there: Any) -> float:
    """The largest absolute difference of two nested things' numbers: 0 only where all have the same bytes, infinite where
    they are not built alike or a nan stands against a number."""
    if dataclasses.is_dataclass(here) and not isinstance(here, type):
        pairs = [(getattr(here, field.name), getattr(there, field.name)) for field in dataclasses.fields(here)]
    elif isinstance(here, Mapping):
        if list(here) != list(there):
            return math.inf
        pairs = [(here[name], there[name]) for name in here]
    elif isinstance(here, Tensor | np.ndarray) and here.dtype not in (object,):
        one, other = np.asarray(here), np.asarray(there)
        if one.shape != other.shape or one.dtype != other.dtype:
            return math.inf
        if one.tobytes() == other.tobytes():
            return 0.0
        far = np.abs(one.astype(float) - other.astype(float))
        alike = np.isnan(one.astype(float)) & np.isnan(other.astype(float))
        largest = float(np.nan_to_num(far[~alike], nan=math.inf).max(initial=0.0))
        return largest or math.ulp(0.0)  # -0 for 0 is another byte
    elif isinstance(here, Sequence) and not isinstance(here, str):
        if len(here) != len(there):
            return math.inf
        pairs = list(zip(here, there, strict=True))
    elif isinstance(here, float) and isinstance(there, float):
        return 0.0 if repr(here) == repr(there) else difference(np.array(here), np.array(there))
    else:
        return 0.0 if here == there else math.inf
    return max((difference(one, other) for one, other in pairs), default=0.0)


def serve() -> None:
    """Run each program that standard input names, [what, file, words] in JSON, in a fork of this process, which has all
    libraries and has computed nothing, and say its exit code. What programs print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        what, file, *words = json.loads(line)
        process = multiprocessing.get_context("fork").Process(target=main, args=(what, Path(file), *words))
        process.start()
        process.join()
        print(process.exitcode, file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
