"""Time and memory of checking an external run, by rounds: `python -m benchmarks.recording_cost [CLIENTS]`.

Writes runs of CLIENTS clients (default 100) that send 2 MB each, and checks each in a process of its own. One round
more must cost the same time whatever came before, and the memory must not grow: two rounds' uploads are in memory at
once.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file

ROUNDS = (2, 4, 8)
LAYERS, WIDTH, RANK = 16, 1024, 16  # 2 MB of float32


def write(run: Path, clients: int, rounds: int) -> None:
    """A run of plain means of random numbers."""
    rng = torch.Generator().manual_seed(0)
    names = [f"layers.{i}.q_proj" for i in range(LAYERS)]
    model = {f"{n}.A": torch.randn(RANK, WIDTH, generator=rng) for n in names}
    model |= {f"{n}.B": torch.zeros(WIDTH, RANK) for n in names}
    (run / "models").mkdir(parents=True)
    save_file(model, run / "models/round-000.safetensors")
    for r in range(rounds):
        (run / f"uploads/round-{r:03d}").mkdir(parents=True)
        total = {n: torch.zeros_like(t) for n, t in model.items()}
        for k in range(clients):
            sent = {n: t + 0.01 * torch.randn(t.shape, generator=rng) for n, t in model.items()}
            save_file(sent, run / f"uploads/round-{r:03d}/client-{k:02d}.safetensors")
            total = {n: t + sent[n] for n, t in total.items()}
        model = {n: t / clients for n, t in total.items()}
        save_file(model, run / f"models/round-{r + 1:03d}.safetensors")
    about = {"format": 2, "method": "m", "task": "t", "backbone": "embedded", "alpha": 16, "prompt": "<image>"}
    (run / "run.json").write_text(json.dumps(about))
    Image.new("RGB", (8, 8)).save(run / "x.png")
    for name in ("members", "nonmembers"):
        lines = [{"id": f"{name}-{k}", "client": k, "image": "x.png", "text": f"{name} {k}"} for k in range(clients)]
        (run / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def check(run: Path) -> None:
    """Check a run and print seconds and peak memory in MB."""
    from fedaudit.external.reading import read

    start = time.perf_counter()
    read(run).remarks  # noqa: B018
    print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("rounds  seconds a round, relative to the first row  peak memory (MB)")
    first = 0.0
    for rounds in ROUNDS:
        with tempfile.TemporaryDirectory() as place:
            write(Path(place), clients, rounds)
            command = [sys.executable, "-m", "benchmarks.recording_cost", "--check", place]
            seconds, memory = map(
                float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            )
        first = first or seconds / rounds
        print(f"{rounds:6d}  {seconds / rounds:7.2f} s ({seconds / rounds / first:.2f})  {memory:31.0f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(Path(sys.argv[2]))
    else:
        main()
