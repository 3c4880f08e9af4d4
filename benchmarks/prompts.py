"""Prompt learning as one batched problem: against the straightforward loop, and from 10 to 1000 clients.

    python -m benchmarks.prompts [--part speed|scale|transport] [--quick]

speed: DP-FPL on a ViT-B/16 with random weights. The straightforward loop takes one client after the other, encodes images at every step and at
every evaluation, and encodes all prompts at the full 77 positions, both with open_clip's own modules; where gradients are private, every record
has a forward and a backward pass of its own. Each row of the table adds one part; the last ones are the project's own code. All rows compute the
same numbers, which is checked before anything is timed. Preparing pixels counts nowhere; extracting features, once, is reported apart.
scale: private DP-FPL on the built-in model, each number of clients in fresh processes (Linux).
transport: FedOTP's plans between patches and prompts on the built-in model, all iterations of every problem against each frozen by itself.

Seconds are the processor's on one thread and the minimum of trials in which the rows take turns: other work on the machine spoils no ratio.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.memory import memory
from fedaudit.backbones import clip_text
from fedaudit.backbones.clip import FrozenCLIP, load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.machinery.executor import Executor, one_thread
from fedaudit.machinery.store import Folder, claim
from fedaudit.privacy.settings import Privacy
from fedaudit.tasks import drawings
from fedaudit.tasks.base import IMAGE, Record
from fedaudit.trainers import dpfpl, fedotp, prompt_model
from fedaudit.trainers.base import Participation, Schedule, generator
from fedaudit.trainers.evaluations import Recognition
from fedaudit.trainers.prompts import Cohort, Learner, PromptMethod, Settings
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import train
from fedaudit.trainers.steps import epoch_batch

BATCH = 8  # |B|
LENGTH = 16  # context vectors
NAMES = tuple([f"digit {c}" for c in drawings.CLASSES[:10]] + [f"capital letter {c}" for c in drawings.CLASSES[10:20]])
ALONE = 2  # records of a batch on which the loops over records are timed; the seconds are those of a whole batch
TRIALS = 2
FROZEN = 0.01  # of a patch's mass, the most that a frozen plan may be off
AGREEMENT = 1e-4  # of gradients with the straightforward loop's, relative to their largest entry
KINDS = ("step", "private step", "evaluation")
PRIVACY = {"step": Privacy(epsilon=math.inf), "private step": Privacy(epsilon=0.1)}

ROUND_ROWS = (  # the loop's step, the project's, what they are called
    ("step", "step", "without privacy"),
    ("private step", "private step", "private"),
    ("step", "private step", "a loop that clips the batch's mean"),
)

SIZES = (10, 100, 1000)  # clients
ROUNDS = 3
SMALL = 4  # |B| there
JOBS = {"_participate": "training", "_hits": "evaluation"}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("speed", "scale", "transport"), help="this part only")
    parser.add_argument(
        "--quick", action="store_true", help="a look at the tables: small model, few clients, one trial"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # in a fresh process: clients,batch
    arguments = parser.parse_args(words)
    one_thread()
    if arguments.measure:
        clients, clients_per_batch = map(int, arguments.measure.split(","))
        print(json.dumps(measure(clients, clients_per_batch)))
        return
    if arguments.part in (None, "speed"):
        clip = load(resolve_clip("", "") if arguments.quick else resolve_clip("ViT-B-16", "random"))
        with tempfile.TemporaryDirectory() as folder:
            clients, tests, trials = (2, 1, 1) if arguments.quick else (10, 2, TRIALS)
            speed(world(clip, NAMES, clients, tests, claim(Path(folder))), trials)
    if arguments.part in (None, "scale"):
        scale((2, 4) if arguments.quick else SIZES, trials=1 if arguments.quick else 2)
    if arguments.part in (None, "transport"):
        with tempfile.TemporaryDirectory() as folder:
            clients, tests, trials = (2, 1, 1) if arguments.quick else (10, 10, 3)
            made = world(load(resolve_clip("", "")), NAMES, clients, tests, claim(Path(folder)), patches=True)
            transport(made, trials)


# --- a federation, and the straightforward loop ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class World:
    """Drawn symbols: the classes are dealt to the clients in turn, every client holds BATCH records, which are its batch."""

    clip: FrozenCLIP
    learner: Learner
    training: list[list[str]]  # [client]
    test: list[str]
    pixels: dict[str, Tensor] = field(repr=False)  # prepared, by record id
    extraction: float  # seconds

    def clients(self) -> list[Participation]:
        return [Participation(k, 0, 0, ids, self.learner) for k, ids in enumerate(self.training)]

    def schedule(self, rounds: int) -> Schedule:
        return Schedule(rounds, len(self.training), len(self.training))

    def method(self, privacy: Privacy, rounds: int = 1) -> PromptMethod:
        made = dpfpl.DPFPL(dpfpl.Params(), self.learner.settings)  # every client's own prompt is evaluated
        return made.protected(privacy, self.schedule(rounds), [len(ids) for ids in self.training])


def world(
    clip: FrozenCLIP, names: Sequence[str], clients: int, tests: int, cache: Folder, *, patches: bool = False
) -> World:
    """A federation with `tests` test images of each class; their features are extracted here, of their patches too if asked."""
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image

    own = [range(k % len(names), len(names), clients) for k in range(clients)]  # classes
    labels = {f"{k}-{i}": classes[i % len(classes)] for k, classes in enumerate(own) for i in range(BATCH)}
    labels |= {f"test-{i}": i % len(names) for i in range(tests * len(names))}
    drawn = [c % len(drawings.CLASSES) for c in labels.values()]
    pictures = drawings.draw("print", drawn, np.random.default_rng(0))
    records = [Record(i, names[c], x, IMAGE, names[c]) for (i, c), x in zip(labels.items(), pictures, strict=True)]
    began = time.process_time()
    features = clip.encode(records, cache, say=print, patches=patches)
    spent = time.process_time() - began
    prepare = image_transform_v2(PreprocessCfg(**clip.model.visual.preprocess_cfg), is_train=False)
    settings = Settings(prompt_length=min(LENGTH, clip.context_length // 2), batch=BATCH)
    return World(
        clip,
        Learner(clip, features, labels, names, settings),
        training=[[f"{k}-{i}" for i in range(BATCH)] for k in range(clients)],
        test=[i for i in labels if i.startswith("test")],
        pixels={record.id: prepare(Image.fromarray(record.image)) for record in records},
        extraction=spent,
    )


class Text:
    """Class features [C, E] of one prompt [b, d]: by open_clip's own transformer, and with a part of what the project does."""

    def __init__(self, clip: FrozenCLIP, names: Sequence[str], context: int) -> None:
        self.model, self.tower, self.context = clip.model, clip._tower, context
        rows = [self.tower.tokenizer.encode(f"{name} .") for name in names]  # [SOS] name . [EOS]
        self.tokens = sorted({len(row) - 1 for row in rows})  # behind the context
        self.ends = torch.tensor([context + len(row) - 1 for row in rows])
        self.ids = torch.tensor([row + [0] * (clip.context_length - context - len(row)) for row in rows])
        self.texts = clip.classes(names, context)

    @property
    def longest(self) -> int:
        return int(self.ends.max()) + 1

    def full(self, prompt: Tensor) -> Tensor:
        """[SOS][prompt][name]["."][EOS][padding] of every class."""
        return self._upto(prompt, self.context + self.ids.shape[1])

    def cut(self, prompt: Tensor) -> Tensor:
        """Without what stands behind the longest class's EOS."""
        return self._upto(prompt, self.longest)

    def shared(self, prompt: Tensor) -> Tensor:
        """[SOS][prompt] once for all classes."""
        tower, texts = self.tower, self.texts
        sos = tower.embedding[tower.start][None]
        prefix, suffix = torch.cat([sos, prompt])[None] + tower.positions[: self.context + 1], texts.tokens[None]
        for block in tower.blocks:
            prefix, suffix = clip_text._layer(block, prefix, suffix, texts.groups)
        return self._project(clip_text._ends(suffix, texts.groups)[0])[texts.places]

    def _upto(self, prompt: Tensor, length: int) -> Tensor:
        model, words = self.model, self.model.token_embedding(self.ids)
        prompts = torch.cat([words[:, :1], prompt.expand(len(words), *prompt.shape), words[:, 1:]], dim=1)
        x = prompts[:, :length] + model.positional_embedding[:length]
        x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
        return self._project(x[torch.arange(len(x)), self.ends])

    def _project(self, ends: Tensor) -> Tensor:
        return F.normalize(self.model.ln_final(ends) @ self.model.text_projection, dim=-1)


@dataclass(frozen=True, eq=False)
class Variant:
    """The same three computations, each by other means; `clients` are computed together."""

    name: str
    step: Callable[[], Tensor]  # first client: gradient [b, d] of its batch
    private: Callable[[], Tensor]  # first client: gradients [ALONE, b, d] of records, or of all of its batch
    evaluation: Callable[[], Tensor]  # first client: which test images are recognised
    clients: int = 1
    records: int = BATCH  # of `private`, over all clients

    def computed(self) -> dict[str, Callable[[], Tensor]]:
        return dict(zip(KINDS, (self.step, self.private, self.evaluation), strict=True))

    def share(self, kind: str) -> float:
        """What the seconds of a computation are multiplied with to be those of one client."""
        return BATCH / self.records if kind == "private step" else 1 / self.clients


def variants(w: World, prompt: Tensor) -> Iterator[Variant]:
    """The straightforward loop, and one part more in each that follows."""
    text = Text(w.clip, w.learner.classes, len(prompt))
    yield loop("straightforward loop", w, prompt, functools.partial(_encoded, w), text.full)
    see = w.learner.images
    yield loop("+ image features cached", w, prompt, see, text.full)
    yield loop(f"+ text cut from {w.clip.context_length} to {text.longest} positions", w, prompt, see, text.cut)
    yield loop("+ [SOS][prompt] once for all classes", w, prompt, see, text.shared)
    yield loop("+ only EOS in the last layer", w, prompt, see, w.learner.text)
    yield batched("+ one forward pass for all records", w, prompt, w.clients()[:1])
    yield batched(f"+ {len(w.training)} clients as one problem", w, prompt, w.clients())


@torch.no_grad()
def _encoded(w: World, ids: Sequence[str]) -> Tensor:
    """Image features [n, E], computed."""
    return F.normalize(w.clip.model.encode_image(torch.stack([w.pixels[i] for i in ids])), dim=-1)


def loop(
    name: str, w: World, prompt: Tensor, see: Callable[[Sequence[str]], Tensor], text: Callable[[Tensor], Tensor]
) -> Variant:
    """A client, and for privacy a record, after the other by plain autograd; `see` gives image features [n, E] of records."""
    ids = w.training[0]

    def logits(prompt: Tensor, ids: Sequence[str]) -> Tensor:
        return w.learner.scale * see(ids) @ text(prompt).T

    def gradient(ids: Sequence[str]) -> Tensor:
        leaf = prompt.clone().requires_grad_()
        loss = F.cross_entropy(logits(leaf, ids), w.learner.labels(ids))
        return torch.autograd.grad(loss, leaf)[0]

    @torch.no_grad()
    def recognised() -> Tensor:
        return logits(prompt, w.test).argmax(1) == w.learner.labels(w.test)

    def records() -> Tensor:
        return torch.stack([gradient([record]) for record in ids[:ALONE]])

    return Variant(name, lambda: gradient(ids), records, recognised, records=ALONE)


def batched(name: str, w: World, prompt: Tensor, clients: Sequence[Participation]) -> Variant:
    """The project's own code, for some clients together."""
    prompts = prompt.expand(len(clients), *prompt.shape)
    method = w.method(PRIVACY["step"])
    back = [epoch_batch(clients[0], BATCH, 0).index(i) for i in range(BATCH)]  # a batch has an order of its own

    def gradients(kind: str) -> Tensor:
        (step,) = Cohort(w.learner, clients, w.method(PRIVACY[kind])).steps()
        return step.gradient(prompts)[:, 0]

    def recognised() -> Tensor:
        return torch.from_numpy(w.learner.recognised([{"prompt": p} for p in prompts], w.test, method)[0])

    n = len(clients)
    return Variant(
        name,
        lambda: gradients("step")[0],
        lambda: gradients("private step")[back],
        recognised,
        clients=n,
        records=n * BATCH,
    )


def differences(found: Sequence[Variant]) -> dict[str, float]:
    """By kind the largest difference of any variant from the first: of gradients relative to their largest entry, of recognition in images."""
    largest = dict.fromkeys(KINDS, 0.0)
    expected = {kind: compute() for kind, compute in found[0].computed().items()}
    for variant in found[1:]:
        for kind, compute in variant.computed().items():
            a, b = compute()[: len(expected[kind])].float(), expected[kind].float()
            off = float((a - b).abs().mean()) if kind == "evaluation" else float((a - b).abs().max() / b.abs().max())
            largest[kind] = float(np.maximum(largest[kind], off))  # which keeps NaN
    return largest


# --- speed ----------------------------------------------------------------------------------------------------------


def speed(w: World, trials: int) -> None:
    """Check, time and print."""
    prompt = w.learner.initial(generator(0, "initial"))["p_G"]
    found = list(variants(w, prompt))
    largest = differences(found)
    if not all(off <= AGREEMENT for off in largest.values()):
        sys.exit(f"the variants do not compute the same: {largest}")
    spent = Spent()
    with Rounds(w, trials) as rounds:
        for _ in range(trials):
            for variant in found:
                for kind, compute in variant.computed().items():
                    spent.time((variant.name, kind), compute)
            for kind in PRIVACY:
                spent.time(("round", kind), lambda kind=kind: rounds.next(kind))
    text = Text(w.clip, w.learner.classes, len(prompt))
    print(
        f"DP-FPL on {w.clip.name}: {len(w.training)} clients, |B| = {BATCH}, {len(w.learner.classes)} classes of {text.tokens} tokens with EOS, "
        f"{len(prompt)} context vectors, {len(w.test)} test images; one thread, minimum of {trials} trials\n"
        f"largest difference from the straightforward loop: gradients {largest['step']:.0e}, of records {largest['private step']:.0e} (relative), "
        f"recognised test images {largest['evaluation']:.0%}\n"
        f"extracting features, once: {w.extraction:.1f} s for {len(w.pixels)} images\n"
    )
    _show_parts(found, spent)
    _show_rounds(found, spent, len(w.training))


class Spent:
    """The smallest seconds of each thing that was timed: of the processor, and of the clock."""

    def __init__(self) -> None:
        self.least: dict[tuple[str, str], tuple[float, float]] = {}

    def time(self, name: tuple[str, str], compute: Callable[[], Any]) -> None:
        began = time.process_time(), time.perf_counter()
        compute()
        now = time.process_time() - began[0], time.perf_counter() - began[1]
        before = self.least.get(name, now)
        self.least[name] = min(now[0], before[0]), min(now[1], before[1])

    def of(self, variant: Variant, kind: str, clock: int = 0) -> float:
        """Seconds of one client."""
        return variant.share(kind) * self.least[variant.name, kind][clock]


class Rounds:
    """Whole rounds of the project, evaluation and files included, a run for each kind of step. A context manager: it owns the runs' folder."""

    def __init__(self, w: World, rounds: int) -> None:
        self.w, self.schedule = w, w.schedule(rounds)
        self.bench = Bench(w.learner, w.training, w.test)
        self.evaluation = Recognition(_local(w.learner, w.training, w.test))
        self.done = dict.fromkeys(PRIVACY, 0)

    def __enter__(self) -> Rounds:
        self.folder = tempfile.TemporaryDirectory()
        for kind in PRIVACY:
            self._train(kind)  # the evaluation of the start, which is no round's
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()

    def next(self, kind: str) -> None:
        self.done[kind] += 1
        self._train(kind)

    def _train(self, kind: str) -> None:
        method, folder = self.w.method(PRIVACY[kind], self.schedule.rounds), claim(Path(self.folder.name) / kind)
        with Executor(lambda: self.bench) as executor:
            train(
                method, self.schedule, self.evaluation, folder=folder, executor=executor, say=print, advance=lambda: None,
                until=self.done[kind],
            )  # fmt: skip


def _local(learner: Learner, training: Sequence[Sequence[str]], test: Sequence[str]) -> np.ndarray:
    """Which test images [client, image] are of the client's own classes."""
    own = [set(learner.labels(ids).tolist()) for ids in training]
    labels = learner.labels(test).tolist()
    return np.array([[label in classes for label in labels] for classes in own])


def _show_parts(found: Sequence[Variant], spent: Spent) -> None:
    print(f"{'seconds of one client':<42}" + "".join(f"{kind:<26}" for kind in KINDS))
    print(" " * 42 + f"{'s':>6}{'part':>7}{'all':>7}{'':6}" * len(KINDS))
    for before, variant in zip([found[0], *found], found, strict=False):
        line = f"{variant.name:<42}"
        for kind in KINDS:
            now, previous, first = (spent.of(one, kind) for one in (variant, before, found[0]))
            line += f"{now:6.2f}{previous / now:7.1f}{first / now:7.1f}{'':6}"
        print(line)
    print("part: times faster by this part; all: times faster than the first row.")
    print(f"Loops over records are timed on {ALONE} records of a batch's {BATCH}.")


def _show_rounds(found: Sequence[Variant], spent: Spent, clients: int) -> None:
    """A straightforward round is its clients one after the other, without aggregation and files; the project's is a whole one."""
    title = f"a round of {clients} clients, evaluated"
    print(f"\n{title:<42}{'straightforward, s':>20}{'project, s':>12}{'times':>8}{'by the clock':>14}")
    for theirs, ours, name in ROUND_ROWS:
        alone = [spent.of(found[0], theirs, clock) + spent.of(found[0], "evaluation", clock) for clock in (0, 1)]
        fast = spent.least["round", ours]
        ratios = [clients * a / b for a, b in zip(alone, fast, strict=True)]
        print(f"{name:<42}{clients * alone[0]:>20.1f}{fast[0]:>12.2f}{ratios[0]:>8.1f}{ratios[1]:>14.1f}")
    print(
        f"straightforward: {clients} times the step and the evaluation of one client; project: trainers.rounds.train."
    )
    print(
        "The last row's loop clips only the mean of the batch, as DP-FPL's released code does: one pass back for all of its records."
    )


# --- transport -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def transport(w: World, trials: int) -> None:
    """Check, time and print: the plans by which all clients' prompts are scored on all test images."""
    starts = (w.learner.initial(generator(k, "initial")) for k in range(len(w.training)))
    text = w.learner.text(torch.stack([torch.stack([start["p_G"], start["p_L"]]) for start in starts]))
    cost = 1 - torch.einsum("npce,bme->nbcmp", text, w.learner.images(w.test, patches=True))
    M = cost.shape[-2]
    far = float((all_iterations(cost) - fedotp.transport_plan(cost)).abs().max()) * M
    if not far <= FROZEN:
        sys.exit(f"a frozen plan is {far:.1%} of a patch's mass off that of all iterations")
    spent = Spent()
    for _ in range(trials):
        for name, plan in (("all", all_iterations), ("frozen", fedotp.transport_plan)):
            spent.time((name, "plan"), lambda plan=plan: plan(cost))
    every, frozen = (spent.least[name, "plan"][0] for name in ("all", "frozen"))
    print(
        f"\nFedOTP's plans on {w.clip.name}: {cost[..., 0, 0].numel()} problems of {M} patches and two prompts\n"
        f"all {fedotp.ITERATIONS} iterations {every:.2f} s, each problem frozen when it stands still {frozen:.2f} s: "
        f"{every / frozen:.1f} times; largest difference {far:.1%} of a patch's mass"
    )


def all_iterations(cost: Tensor) -> Tensor:
    """The plan [.., M, P] after all iterations of every problem."""
    M, P = cost.shape[-2:]
    costs = cost.reshape(-1, M, P).permute(2, 0, 1).contiguous()
    kernel, of_prompts = (-costs / fedotp.REGULARISATION).exp(), torch.ones(P, costs.shape[1], 1)
    for _ in range(fedotp.ITERATIONS):
        of_patches, of_prompts = fedotp.scaling_step(kernel, of_prompts)
    return (kernel * of_patches * of_prompts).permute(1, 2, 0).reshape(cost.shape)


# --- scale ----------------------------------------------------------------------------------------------------------


def scale(sizes: Sequence[int], trials: int) -> None:
    """A row for each number of clients, and one for the largest without batches."""
    cases = [(clients, prompt_model.TOGETHER) for clients in sizes]
    runs = {case: [_in_fresh_process(*case)] for case in cases}
    for _ in range(trials - 1):
        for case in cases:
            runs[case].append(_in_fresh_process(*case))
    whole = sizes[-1], sizes[-1]
    runs[whole] = [_in_fresh_process(*whole)]
    print(
        f"\nprivate DP-FPL on the built-in model: {len(drawings.CLASSES)} classes, Dirichlet 0.3, |B| = {SMALL}, {LENGTH} context vectors; "
        f"one thread,\nthe cheapest of rounds 2 to {ROUNDS} in {trials} processes (without batches: one)"
    )
    parts = (*JOBS.values(), "files and server", "all")
    print(f"{'':16}{'milliseconds per client and round':^72}{'resident memory, MB':>26}")
    heads = "".join(f"{name:>18}" for name in parts)
    print(f"{'clients':>8}{'batch':>8}{heads}{'before':>10}{'peak':>8}{'more':>8}")
    for (clients, clients_per_batch), found in runs.items():
        best = min((one["seconds"] for one in found), key=lambda seconds: sum(seconds.values()))
        each = "".join(f"{1000 * s / clients:>18.2f}" for s in (*best.values(), sum(best.values())))
        before, peak = (min(one[name] for one in found) / 1e6 for name in ("before", "peak"))
        print(f"{clients:>8}{clients_per_batch:>8}{each}{before:>10.0f}{peak:>8.0f}{peak - before:>8.0f}")


def _in_fresh_process(clients: int, clients_per_batch: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.prompts", "--measure", f"{clients},{clients_per_batch}"]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, env=one, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(clients: int, clients_per_batch: int) -> dict[str, Any]:
    """Seconds of the cheapest round after the first by what they were spent on, and highest resident bytes before and after the run."""
    prompt_model.TOGETHER, settings = clients_per_batch, Settings(prompt_length=LENGTH, batch=SMALL)
    method = dpfpl.DPFPL(dpfpl.Params(), settings)
    schedule = Schedule(ROUNDS, clients, clients)
    with tempfile.TemporaryDirectory() as folder:
        bench = crowded(clients, settings, claim(Path(folder) / "cache"))
        method = method.protected(PRIVACY["private step"], schedule, [len(ids) for ids in bench.training])
        bench.learner.memory = 10**12  # so that the number alone decides
        evaluation = Recognition(_local(bench.learner, bench.training, bench.test))
        Path("/proc/self/clear_refs").write_text("5")  # the highest resident memory so far is forgotten
        before, _ = memory()
        rounds = []
        for until in range(ROUNDS + 1):
            with Timed(lambda: bench) as executor:
                began = time.process_time()
                train(
                    method, schedule, evaluation, folder=claim(Path(folder) / "run"), executor=executor, say=print,
                    advance=lambda: None, until=until,
                )  # fmt: skip
                rest = time.process_time() - began - sum(executor.spent.values())
                rounds.append(executor.spent | {"files and server": rest})
        best = min(rounds[2:], key=lambda seconds: sum(seconds.values()))  # nobody holds anything in the first round
        return {"seconds": best, "before": before, "peak": memory()[0]}


def crowded(clients: int, settings: Settings, cache: Folder, *, pictures: int = 16, records: int = 16) -> Bench:
    """Each client draws its class proportions from Dirichlet(0.3) and by them `records` records out of a common stock: none stays empty."""
    C, rng = len(drawings.CLASSES), np.random.default_rng(0)
    labels = {f"{c}-{i}": c for c in range(C) for i in range(pictures)} | {f"test-{i}": i % C for i in range(5 * C)}
    drawn = drawings.draw("print", list(labels.values()), rng)
    names = drawings.CLASSES
    all_records = [Record(i, names[c], x, IMAGE, names[c]) for (i, c), x in zip(labels.items(), drawn, strict=True)]
    clip = load(resolve_clip("", ""))
    learner = Learner(clip, clip.encode(all_records, cache, say=print), labels, names, settings)
    training = [
        [f"{c}-{rng.integers(pictures)}" for c in rng.choice(C, size=records, p=p)]
        for p in rng.dirichlet(np.full(C, 0.3), size=clients)
    ]
    return Bench(learner, training, [i for i in labels if i.startswith("test")])


class Timed(Executor[Bench]):
    """Runs jobs in this process and adds up their seconds."""

    def __init__(self, build: Callable[[], Bench]) -> None:
        super().__init__(build)
        self.spent = dict.fromkeys(JOBS.values(), 0.0)

    def map(self, function: Callable[[Bench, Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        began = time.process_time()
        found = list(super().map(function, jobs))
        if function.__name__ in JOBS:
            self.spent[JOBS[function.__name__]] += time.process_time() - began
        yield from found


if __name__ == "__main__":
    main()
