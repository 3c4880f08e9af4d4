"""Draws captioned scenes for three clients, with FedAudit installed: `python examples/make_photos.py photos`, or
`python examples/make_photos.py photos site-1 site-2 site-3` with names in place of numbers.

For each scene a coin decides whether its client trains on it (members.jsonl) or not (nonmembers.jsonl).
"""

import json
import sys
from pathlib import Path

from PIL import Image

from fedaudit.tasks.captions import Params, captions


def main(folder: Path, names: list[str], records: int = 8) -> None:
    lists: dict[str, list[str]] = {"members": [], "nonmembers": []}
    (folder / "images").mkdir(parents=True)
    clients = captions(Params(records=records), clients=len(names) or 3, seed=0).clients
    for k, client in enumerate(clients):
        for record, member in zip(client.records, client.member, strict=True):
            Image.fromarray(record.picture).save(folder / "images" / f"{record.id}.png")
            line = {"id": record.id, "client": names[k] if names else k, "image": f"images/{record.id}.png"}
            line |= {"text": record.text, "prompt": record.prompt}
            lists["members" if member else "nonmembers"].append(json.dumps(line) + "\n")
    for name, lines in lists.items():
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
