"""Draws captioned scenes for three clients, with FedAudit installed: `python examples/make_photos.py photos`, or
`python examples/make_photos.py photos site-1 site-2 site-3` with names in place of numbers.

They are candidates, listed in records.jsonl: `audit.py --split` decides which of them the clients train on.
"""

import json
import sys
from pathlib import Path

from PIL import Image

from fedaudit.tasks.captions import Params, captions


def main(folder: Path, names: list[str], records: int = 12) -> None:
    lines = []
    (folder / "images").mkdir(parents=True)
    clients = captions(Params(records=records), clients=len(names) or 3, seed=0).clients
    for k, client in enumerate(clients):
        for record in client.records:
            Image.fromarray(record.picture).save(folder / "images" / f"{record.id}.png")
            line = {"id": record.id, "client": names[k] if names else k, "image": f"images/{record.id}.png"}
            lines.append(json.dumps(line | {"text": record.text, "prompt": record.prompt}) + "\n")
    (folder / "records.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
