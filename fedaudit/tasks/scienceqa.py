"""ScienceQA questions with a picture, from local files: the model learns the answer as text, utility is exact match.

Clients draw by topic, Dirichlet(0.5). Questions without picture are left out. There are no out-of-distribution
non-members: each client's held-out records serve. Source of the set-up: FedRand, section 4.1, appendix A; prompt: A.2,
see `questions`. Layouts, downloads and costs: docs/reference/data.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, number, text, whole
from fedaudit.tasks.base import Federation
from fedaudit.tasks.local_files import (
    Item,
    choose_splits,
    federate,
    folder,
    need,
    one_line,
    path_below,
    read_json,
    table_items,
)
from fedaudit.tasks.metrics import answer_scores
from fedaudit.tasks.questions import question_prompt
from fedaudit.tasks.tables import Row, table_rows

SOURCE = (
    "problems.json and images/ (train.zip, val.zip, test.zip unpacked) of the ScienceQA project, or its parquet files"
)
OFFICIAL = ("train", "val", "test")  # splits
PARQUET = {name: (name,) for name in ("question", "choices", "answer", "hint", "topic")}


@dataclass(frozen=True)
class Params(Parameters):
    data_root: str = text("", "folder of ScienceQA: problems.json and images/, or parquet files")
    records: int = whole(25, "expected training records per client; as many are held out", least=2, most=10**6)
    background: int = whole(0, "further training records per client that are not asked about", least=0, most=10**6)
    reference: int = whole(75, "records per client kept for thresholds", least=2, most=10**6)
    test: int = whole(40, "test questions for utility", least=1, most=10**6)
    dirichlet: float = number(0.5, "concentration of the partition by topic", least=0.001, most=10**6)


def scienceqa(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on the ScienceQA files of `data_root`."""
    pool, test = load(params)
    return federate(pool, test, params=params, clients=clients, seed=seed, score=answer_scores, classes="topic")


def load(params: Params) -> tuple[list[Item], list[Item]]:
    """(Items that clients draw from, items for testing, maybe none). InputError for whatever is missing or
    unreadable."""
    root = folder(params.data_root, flag="--data-root", source=SOURCE)
    return _official(root) or _parquet(root)


def _official(root: Path) -> tuple[list[Item], list[Item]] | None:
    """(Pool, test) items in the project's layout, also in data/scienceqa/ or scienceqa/; None without problems.json.
    Questions without a picture are left out."""
    bases = (root, root / "data" / "scienceqa", root / "scienceqa")
    base = next((one for one in bases if user_files.exists(one / "problems.json")), None)
    if base is None:
        return None
    path = base / "problems.json"
    problems = {pid: one for pid, one in _object(path).items() if need(one, "image", _where(path, pid))}
    splits = _splits(problems, path)
    folders = _images((base, root), sorted(set(splits.values())))
    pool, test = choose_splits(folders, ("test", "val", "train"))
    items: dict[str, list[Item]] = {split: [] for split in folders}
    for pid, split in splits.items():
        if split in (pool, test):
            where = _where(path, pid)
            picture = path_below(folders[split] / pid, need(problems[pid], "image", where, str), where)
            items[split].append(_item(f"scienceqa-{pid}", picture, problems[pid], where))
    return items[pool], items[test] if test is not None else []


def _where(path: Path, pid: str) -> str:
    """The question's place for messages: file and number. InputError if `pid`, which is also the name of its folder,
    cannot be one."""
    path_below(path.parent, pid, f"{path}, question {short_repr(pid)}")
    if Path(pid).name != pid:
        raise InputError(f"{path}: the question {pid} must be one name, as its pictures lie in a folder of this name")
    return f"{path}, question {pid}"


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold one JSON object, not {type(content).__name__}")
    return content


def _splits(problems: Mapping[str, Any], path: Path) -> dict[str, str]:
    """{question: its split}, as it says itself, or as pid_splits.json does. InputError: a split is none of
    `OFFICIAL`."""
    if all("split" in one for one in problems.values()):
        split_of = {pid: need(one, "split", _where(path, pid), str) for pid, one in problems.items()}
    else:
        path = path.with_name("pid_splits.json")
        split_of = _listed(_object(path), problems, path)
    for pid, split in split_of.items():
        if split not in OFFICIAL:
            raise InputError(f"{_where(path, pid)}: the split must be {', '.join(OFFICIAL)}, not {short_repr(split)}")
    return split_of


def _listed(content: dict[str, Any], problems: Mapping[str, Any], path: Path) -> dict[str, str]:
    """{question: its split} by the lists of pid_splits.json. InputError: a question is in none, or in two."""
    split_of: dict[str, str] = {}
    for split in OFFICIAL:
        for pid in need(content, split, path, list):
            if not one_line(pid):
                raise InputError(f"{path}: {split!r} must list the numbers of questions as text, not {short_repr(pid)}")
            if split_of.setdefault(pid, split) != split:
                raise InputError(f"{path}: question {pid} is in {split_of[pid]!r} and in {split!r}; download it again")
    return {pid: need(split_of, pid, path) for pid in problems}


def _images(bases: Sequence[Path], splits: list[str]) -> dict[str, Path]:
    """{split: folder of its pictures}; splits that were not unpacked are left out. InputError: there is none."""
    options = [(split, base / part / split) for split in splits for base in bases for part in (".", "images")]
    folders = {split: path for split, path in options if user_files.is_dir(path)}
    if not folders:
        raise InputError(
            f"{bases[0]}: there is no images/train/ and no train/; unpack train.zip and test.zip of ScienceQA"
        )
    return folders


def _parquet(root: Path) -> tuple[list[Item], list[Item]]:
    def read(split: str, files: list[Path]) -> list[Item]:
        rows = table_rows(files, PARQUET, needed=("question", "choices", "answer"))
        first = "-".join(filter(None, ("scienceqa", split)))
        return [_item(f"{first}-{n:06d}", row, values, str(row)) for n, (row, values) in enumerate(rows)]

    official = "problems.json (also in data/scienceqa/)"
    return table_items(root, read, test=("test", "val", "train"), official=official, source=SOURCE)


def _item(name: str, source: Path | Row, question: Mapping[str, Any], where: str) -> Item:
    """One question with its picture as an item, whose text is the right answer. InputError if the answer is not the
    index of one of the choices."""
    options, answer = need(question, "choices", where), need(question, "answer", where)
    whole = isinstance(answer, int) and not isinstance(answer, bool)
    if not isinstance(options, list) or not whole or not 0 <= answer < len(options):
        raise InputError(
            f"{where}: answer {short_repr(answer)} must be the index of one of its choices, {short_repr(options)}"
        )
    if not all(isinstance(option, str) for option in options):
        raise InputError(f"{where}: its choices must be texts, not {short_repr(options)}")
    if not options[answer].strip():
        raise InputError(f"{where}: the right choice ({answer}) is empty")
    text = need(question, "question", where, str)
    if not text.strip():
        raise InputError(f"{where}: the question is empty")
    hint, topic = (_optional(question, key, where) for key in ("hint", "topic"))
    prompt = question_prompt(question=text, options=options, context=hint)
    return Item(name, topic or "none", source, prompt, (options[answer].strip(),), where)


def _optional(question: Mapping[str, Any], key: str, where: str) -> str:
    """The text at a key of a question; "" if the key is missing or null."""
    return need(question, key, where, str) if question.get(key) is not None else ""
