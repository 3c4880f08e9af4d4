"""Small trainings that are recorded, for processes of their own: it imports little."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedaudit_recorder import Recorder
from tests.small_run import A, B

SAID = {"method": "mine", "task": "photos", "backbone": "embedded", "alpha": 2, "prompt": "<image> What is it?"}


def recorder(folder: Path, **changes: Any) -> Recorder:
    return Recorder(folder, **SAID | changes)


def model(r: int) -> dict[str, torch.Tensor]:
    """The global model of a small training: A and B move differently."""
    return {A: torch.full((1, 2), float(r)), B: torch.full((3, 1), r * r / 2)}


def sent(r: int, k: int) -> dict[str, torch.Tensor]:
    """What client k sends in round r: two clients' mean is the next model."""
    return {name: tensor + 0.25 * (1 - 2 * k) for name, tensor in model(r + 1).items()}


def train_round(recording: Recorder, r: int, client: Callable[[int], Any] = int) -> None:
    recording.broadcast(r, model(r))
    for k in (0, 1):
        recording.upload(r, client(k), sent(r, k), records=4)
        recording.owner(r, client(k), {name: tensor + 100 for name, tensor in sent(r, k).items()})
    recording.failed(r, client(2))
    recording.utility(r, {"global": {"loss": 1 / (r + 1)}})


def plain(folder: Path, start: int = 0, client: Callable[[int], Any] = int) -> None:
    recording = recorder(folder)
    for r in range(start, 2):
        train_round(recording, r, client)
    recording.close(model(2))


def by_texts(folder: Path, start: int = 0) -> None:
    plain(folder, start, lambda k: f"node-{k}")


def thinned(folder: Path, start: int = 0) -> None:
    recording = recorder(folder, every=3)
    for r in range(start, 5):
        recording.broadcast(r, model(r))
        for k in (0, 1):
            recording.upload(r, k, sent(r, k), records=1)
    recording.close(model(5))


def silent(folder: Path, start: int = 0) -> None:
    recording = recorder(folder)
    for r in range(start, 3):
        recording.broadcast(r, model(r - (r > 1)))
        for k in (0, 1):
            recording.failed(r, k) if r == 1 else recording.upload(r, k, sent(r - (r > 1), k))
    recording.close(model(2))


def gone_back(folder: Path, start: int = 0) -> None:
    recording = recorder(folder)
    for r in (*range(start, 3), *(range(1, 3) if not start else ())):
        recording.broadcast(r, model(r))
        for k in (0, 1):
            recording.upload(r, k, sent(r, k))
        recording.owner(r, 1, sent(r, 1))
    recording.close(model(3))


def of_prompts(folder: Path, start: int = 0) -> None:
    about = {"method": "m", "task": "t", "backbone": "b", "classes": ["a", "b"]}
    recording = Recorder(folder, kind="prompts", **about)
    for r in range(start, 2):
        recording.broadcast(r, {"ctx": torch.full((4, 2), float(r))})
        for k in (0, 1):
            recording.upload(r, k, {"ctx": torch.full((4, 2), r + 0.5 + k)}, records=2)
            recording.owner(r, k, {"ctx": torch.full((4, 2), r - 0.5 - k)})
    recording.close({"ctx": torch.full((4, 2), 2.0)})


LOOPS = {f.__name__: f for f in (plain, by_texts, thinned, silent, gone_back, of_prompts)}


def uploaded(folder: Path, r: int, clients: list[int]) -> None:
    recording = recorder(folder)
    for k in clients:
        recording.upload(r, k, {name: tensor + k for name, tensor in model(r).items()}, records=k + 1)
    recording.failed(r, 90 + clients[0])
