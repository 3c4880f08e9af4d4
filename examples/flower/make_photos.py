"""Draws captioned scenes for three clients: `python examples/flower/make_photos.py photos`, with FedAudit installed.

For each scene a coin decides whether its client trains on it (members.jsonl) or not (nonmembers.jsonl).
"""

import json
import sys
from pathlib import Path

from PIL import Image

from fedaudit.tasks.captions import Params, captions


def main(folder: Path, clients: int = 3, records: int = 8) -> None:
    lists: dict[str, list[str]] = {"members": [], "nonmembers": []}
    (folder / "images").mkdir(parents=True)
    for k, client in enumerate(captions(Params(records=records), clients=clients, seed=0).clients):
        for record, member in zip(client.records, client.member, strict=True):
            Image.fromarray(record.picture).save(folder / "images" / f"{record.id}.png")
            line = {"id": record.id, "client": k, "image": f"images/{record.id}.png"}
            line |= {"text": record.text, "prompt": record.prompt}
            lists["members" if member else "nonmembers"].append(json.dumps(line) + "\n")
    for name, lines in lists.items():
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
