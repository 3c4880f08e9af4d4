"""Rounds of dual prompts: ten clients as one batched problem beside one after the other, and what their answers cost.

python -m benchmarks.maple             CPU seconds on one thread, on the built-in model
python -m benchmarks.maple memory 4    peak memory of a step of four clients together, ViT-B/16 with random weights
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedaudit.backbones.clip import ImageFeatures, load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.machinery.store import claim
from fedaudit.tasks.fewshots import Params as FewShots
from fedaudit.tasks.fewshots import fewshots
from fedaudit.trainers.base import Participation, generator
from fedaudit.trainers.dp2fl import DP2FL, Params
from fedaudit.trainers.maple import Learner, Settings

CLIENTS, STEPS, REPEATS = 10, 5, 3


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest of some repetitions."""
    found = []
    for _ in range(REPEATS):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return min(found)


def memory(clients: int, classes: int = 20, batch: int = 4) -> None:
    """Of this process, which must be a new one: before the step and at its peak."""
    clip = load(resolve_clip("ViT-B-16", "random"))
    labels = {str(i): i % classes for i in range(clients * (batch + 1))}  # of each list one is held back
    with torch.no_grad():
        size = clip.model.visual.image_size
        tokens = torch.cat([clip.vision.tokens(torch.randn(1, 3, *size)) for _ in labels])
    row = {record: i for i, record in enumerate(labels)}
    seen = ImageFeatures(row, torch.zeros(len(labels), 512), None), ImageFeatures(row, tokens[:, 0], list(tokens))
    settings = Settings(batch=batch, local_epochs=0, local_steps=1)
    learner = Learner(clip, *seen, labels, [f"class {i}" for i in range(classes)], settings)
    method, ids = DP2FL(Params()), list(labels)
    start = method.start(learner.initial(generator(0, "initial")))
    own = [ids[k * (batch + 1) : (k + 1) * (batch + 1)] for k in range(clients)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    working = [Participation(k, 0, 0, records, learner) for k, records in enumerate(own)]
    learner.work(method, [start] * clients, [start] * clients, working)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{clients} clients, {classes} classes, batches of {batch}: {before / 1e6:.2f} GB before, {peak / 1e6:.2f} GB peak"
    )


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["memory"]:
        memory(int(sys.argv[2]))
        return
    federation, clip = fewshots(FewShots(), clients=CLIENTS, seed=0), load(resolve_clip("", ""))
    records = list(federation.records.values())
    number = {name: i for i, name in enumerate(federation.classes)}
    with tempfile.TemporaryDirectory() as folder:
        features, tokens = (see(records, claim(Path(folder)), say=print) for see in (clip.encode, clip.tokens))
    labels = {record.id: number[record.group] for record in records}
    settings = Settings(local_epochs=0, local_steps=STEPS)
    learner, method = Learner(clip, features, tokens, labels, federation.classes, settings), DP2FL(Params())
    start = method.start(learner.initial(generator(0, "initial")))
    clients = [
        Participation(k, 0, 0, [r.id for r in client.training_records], learner)
        for k, client in enumerate(federation.clients)
    ]
    test = [record.id for record in federation.test]
    everybody = [start] * CLIENTS
    together = seconds(lambda: learner.work(method, everybody, everybody, clients)) / STEPS
    alone = seconds(lambda: [learner.work(method, [start], [start], [one]) for one in clients]) / STEPS
    answers = seconds(lambda: learner.recognised(everybody, test, method))
    print(f"a step of {CLIENTS} clients together     {together:.3f} s")
    print(f"one after the other           {alone:.3f} s ({together / alone:.2f} of it together)")
    print(f"answers of {CLIENTS} models to {len(test)}   {answers:.2f} s")


if __name__ == "__main__":
    main()
