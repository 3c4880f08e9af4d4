"""ScienceQA questions with a picture from local files: the answer is to be learnt as text, utility is exact match.

Clients draw by topic, Dirichlet(0.5). Questions without picture are left out. Nobody plays the non-member from outside:
each client's own held-out records do. Source of the set-up: FedRand, section 4.1, appendix A; prompt: A.2, see `questions`.
Layouts, downloads and costs: docs/data.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaudit.errors import InputError
from fedaudit.tasks.base import Federation
from fedaudit.tasks.local import (
    Item,
    Row,
    choose_splits,
    federate,
    folder,
    need,
    parquet_files,
    parquet_rows,
    read_json,
)
from fedaudit.tasks.metrics import answer_scores
from fedaudit.tasks.questions import question_prompt

SOURCE = (
    "problems.json and images/ (train.zip, val.zip, test.zip unpacked) of the ScienceQA project, or its parquet files"
)
PARQUET = {name: (name,) for name in ("question", "choices", "answer", "hint", "topic")}


@dataclass(frozen=True)
class Params:
    data_root: str = field(
        default="", metadata={"help": "folder of ScienceQA: problems.json and images/, or parquet files"}
    )
    records: int = field(default=25, metadata={"help": "expected training records per client; as many are held out"})
    background: int = field(
        default=0, metadata={"help": "further training records per client that are not asked about"}
    )
    reference: int = field(default=75, metadata={"help": "records per client kept for thresholds"})
    test: int = field(default=40, metadata={"help": "test questions for utility"})
    dirichlet: float = field(default=0.5, metadata={"help": "concentration of the partition by topic"})

    def __post_init__(self) -> None:
        for name, least in (("records", 2), ("background", 0), ("reference", 2), ("test", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 1e-3 <= self.dirichlet <= 1e6:
            raise ValueError(f"dirichlet must lie between 0.001 and 1000000, not {self.dirichlet}")


def scienceqa(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on the ScienceQA files of `data_root`."""
    root = folder(params.data_root, flag="--data-root", source=SOURCE)
    pool, test = _official(root) or _parquet(root)
    return federate(pool, test, params=params, clients=clients, seed=seed, score=answer_scores)


def _official(root: Path) -> tuple[list[Item], list[Item]] | None:
    """The project's own layout, also inside data/scienceqa/ as in its repository; None if there is no problems.json."""
    bases = (root, root / "data" / "scienceqa", root / "scienceqa")
    base = next((one for one in bases if (one / "problems.json").is_file()), None)
    if base is None:
        return None
    path = base / "problems.json"
    problems = {pid: one for pid, one in _object(path).items() if need(one, "image", f"{path}, question {pid}")}
    splits = _splits(problems, base)
    folders = _images((base, root), sorted(set(splits.values())))
    pool, test = choose_splits(folders, ("test", "val", "train"))
    items: dict[str, list[Item]] = {split: [] for split in folders}
    for pid, split in splits.items():
        if split in (pool, test):
            picture = folders[split] / pid / str(problems[pid]["image"])
            items[split].append(_item(f"scienceqa-{pid}", picture, problems[pid], f"{path}, question {pid}"))
    return items[pool], items[test] if test is not None else []


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold one JSON object, not {type(content).__name__}")
    return content


def _splits(problems: Mapping[str, Any], base: Path) -> dict[str, str]:
    """Question to split: as it says itself, or else as pid_splits.json does."""
    path = base / "pid_splits.json"
    if all("split" in one for one in problems.values()):
        return {pid: str(one["split"]) for pid, one in problems.items()}
    listed = {str(pid): split for split in ("train", "val", "test") for pid in need(_object(path), split, path, list)}
    return {pid: need(listed, pid, path) for pid in problems}


def _images(bases: Sequence[Path], splits: list[str]) -> dict[str, Path]:
    """The folder of each split's pictures; splits that were not unpacked are not there."""
    options = [(split, base / part / split) for split in splits for base in bases for part in (".", "images")]
    found = {split: path for split, path in options if path.is_dir()}
    if not found:
        raise InputError(
            f"{bases[0]}: there is no images/train/ and no train/; unpack train.zip and test.zip of ScienceQA"
        )
    return found


def _parquet(root: Path) -> tuple[list[Item], list[Item]]:
    files = parquet_files(root)
    if not files:
        raise InputError(
            f"--data-root {root}: no data set recognised; looked for problems.json (also in data/scienceqa/) and for "
            f"*.parquet anywhere below; it should hold {SOURCE}"
        )
    pool, test = choose_splits(files, ("test", "val", "train"))
    items = {
        split: [
            _item("-".join(filter(None, ("scienceqa", split, f"{n:06d}"))), row, values, str(row))
            for n, (row, values) in enumerate(
                parquet_rows(files[split], PARQUET, needed=("question", "choices", "answer"))
            )
        ]
        for split in (pool, test)
        if split is not None
    }
    return items[pool], items[test] if test is not None else []


def _item(name: str, source: Path | Row, question: Mapping[str, Any], where: str) -> Item:
    """One question. InputError if its answer is none of its choices."""
    options, answer = need(question, "choices", where), need(question, "answer", where)
    if not isinstance(options, list) or not isinstance(answer, int) or not 0 <= answer < len(options):
        raise InputError(f"{where}: answer {answer} must be the index of one of its choices, {options}")
    if not str(options[answer] or "").strip():
        raise InputError(f"{where}: the right choice ({answer}) is empty")
    prompt = question_prompt(
        question=str(need(question, "question", where)),
        options=[str(option) for option in options],
        context=str(question.get("hint") or ""),
    )
    return Item(name, str(question.get("topic") or "none"), source, prompt, (str(options[answer]).strip(),))
