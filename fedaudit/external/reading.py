"""Reads the folder of an external run (docs/reference/run-folder.md) and checks it.

Importing this module is light, and `read` needs no torch: it reads only the headers of tensor files.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.external import prompts
from fedaudit.external.adapters import (
    SCALES,
    Adapters,
    check_tensors,
    notes_of,
    places,
    read_adapter,
    read_owners,
    read_scales,
    scaled,
    targets_of,
    without_b,
)
from fedaudit.external.coins import COINS, read_coins
from fedaudit.external.files import OwnFiles
from fedaudit.external.names import ClientNames
from fedaudit.external.peft_config import NAME as PEFT_CONFIG
from fedaudit.external.peft_config import PeftConfig, read_peft_config
from fedaudit.external.ranks import BASE, at_one_rank, read_bases
from fedaudit.external.recording import AGGREGATIONS, MEAN, PARTIAL
from fedaudit.external.records import LISTS, ListFile, check_clients, read_lists, without_copies
from fedaudit.external.round_notes import check_members, notes_by_interval, read_notes
from fedaudit.external.run import NOT_STATED, UNKNOWN, OwnRun
from fedaudit.external.schema import (
    BY_LAYER,
    COUNT,
    FORMATS,
    IMAGE,
    LINE,
    NAME,
    OBJECT,
    PATH,
    POSITIVE,
    ROUNDS,
    RUN,
    SCORES,
    SHARE,
    TEXT,
    UNIQUE_NAMES,
    fields,
    one_line,
    one_of,
    parse,
)
from fedaudit.external.tensors import Read, TensorFile, model_paths, numbered, read_by_round
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import at_once, each

ADAPTERS, PROMPTS = "adapters", "prompts"  # kinds of what was trained
NO_UPLOAD = TensorFile(Path(), {}, {}, 0)  # of a client that took part and sent nothing

_NEEDED = {"format": one_of(*FORMATS), "method": NAME, "task": NAME, "backbone": PATH}
_OPTIONAL = {"seed": COUNT, "claimed": LINE, "provable": LINE}
_OF_ADAPTERS = {
    "alpha": POSITIVE, "score": one_of(*SCORES), "prompt": TEXT, "scale": one_of(*SCALES), "scaling": BY_LAYER,
}  # fmt: skip
_NEEDED_OF_PROMPTS = {"classes": UNIQUE_NAMES}
_OF_PROMPTS = {"weights": PATH, "rule": OBJECT, "recipe": OBJECT, "privacy": OBJECT}
_SINCE_2 = {
    "kind": one_of(ADAPTERS, PROMPTS),
    "uploads": one_of("states", "changes"),
    "aggregation": one_of(*AGGREGATIONS),
    "clients": UNIQUE_NAMES,
    "gaps": one_of(True, False),
    "claim": OBJECT,
}
_NOT_IN_1 = {*_SINCE_2, "scale", "scaling"}
CLAIM = {
    "epsilon": POSITIVE,
    "delta": SHARE,
    "unit": one_of("record", "client"),
    "neighbours": one_of("zero-out", "add or remove", "replace"),
}


@dataclass(frozen=True)
class _Recorded:
    """The recorded rounds of a run, before what they hold is checked."""

    numbers: list[int]  # [rounds + 1] of the models, in the training
    models: list[TensorFile]  # [rounds + 1]
    uploads: list[dict[int, TensorFile]]  # [rounds], by client
    private: list[dict[int, TensorFile]]  # [rounds], by client
    notes: dict[str, Any]  # what rounds.json says, by recorded round


def read(folder: Path, *, linked: bool = False) -> OwnRun:
    """Read and check an external run. With `linked`, links and paths of pictures may lead outside of the folder.

    InputError names what is wrong. Values of tensors and pixels are checked by `OwnRun.remarks` only, and whether the
    tensors fit the backbone later still.
    """
    folder = Path(os.path.expanduser(folder))
    if not os.path.isdir(folder):
        raise InputError(
            f"{one_line(str(folder), most=5000)}: no such folder; it should hold {RUN}, models, uploads and "
            "lists of records"
        )
    _require_settled(folder)
    files = OwnFiles(folder, linked)
    about = _about(files)
    names = ClientNames(tuple(about.get("clients", ())))
    read_part = _read_prompts if about.get("kind") == PROMPTS else _read_adapters
    sources = {name: ListFile(files, folder / f"{name}.jsonl") for name in LISTS}
    (recorded, trained, texts), all_lists = at_once(
        lambda: read_part(files, about, names),
        lambda: read_lists(sources, about.get("prompt"), names=names, classes=about.get("classes", ())),
    )
    check_members(files.root / ROUNDS, recorded.notes, [entry.record.id for entry in all_lists["members"]])
    coins = read_coins(files, all_lists)
    lists, copies = without_copies(all_lists)
    check_clients(
        folder, lists, [{*sent, *kept} for sent, kept in zip(recorded.uploads, recorded.private, strict=True)]
    )
    texts = [folder / RUN, *(sources[name].path for name, entries in all_lists.items() if entries), *texts]
    texts += [folder / ROUNDS] * bool(recorded.notes) + [folder / COINS] * bool(coins)
    return OwnRun(
        path=folder,
        method=about["method"],
        task=about["task"],
        seed=about.get("seed", 0),
        backbone=about["backbone"],
        aggregation=about.get("aggregation", MEAN),
        changes=about.get("uploads") == "changes",
        score=about.get("score", SCORES[0]),
        claimed=_claimed(files.root / RUN, about),
        provable=about.get("provable", UNKNOWN),
        trained=trained,
        models=recorded.models,
        uploads=recorded.uploads,
        private=recorded.private,
        lists=lists,
        copies=copies,
        texts={path.relative_to(folder).as_posix(): path for path in texts},
        notes=recorded.notes,
        numbers=recorded.numbers,
        names=names,
        coins=coins,
        claim=about.get("claim", {}),
    )


def _require_settled(folder: Path) -> None:
    """InputError if `fedaudit_recorder` was killed while it put a round in its place, or dropped rounds."""
    hidden = folder / ".recorder"
    if (hidden / "rewind.json").exists() or any(hidden.glob("round-*/whole.json")):
        raise InputError(
            f"{one_line(str(folder), most=5000)}: the recorder was stopped while it moved files; python -m "
            "fedaudit_recorder with this folder behind it finishes that"
        )


def _read_adapters(
    files: OwnFiles, about: Mapping[str, Any], names: ClientNames
) -> tuple[_Recorded, Adapters, list[Path]]:
    """The rounds of a run of adapters, what is said of these, and further files that were read for it."""
    read_header = functools.partial(read_adapter, files)
    recorded = _read_rounds(files, names, about, read_header, read_header, without_b)
    models, uploads = recorded.models, recorded.uploads
    owners = read_owners(files, names)
    config = read_peft_config(files, (files.root, files.root / "models"))
    bases = _bases(files, about, recorded)
    if config and config.of_backbone:
        bases = [_taken_out(config, recorded, any(bases))] * len(models)
    scale, changes = about.get("scale"), about.get("uploads") == "changes"
    rank = check_tensors(models, uploads, owners, config, several=scale is not None)
    scales = read_scales(files.root / RUN, about.get("scaling", {}), models[0], config)
    alpha = _alpha(files.root / RUN, about, config, next(iter(scales.values())) * rank if scales else None)
    last = {k: max(r for r, sent in enumerate(uploads) if k in sent) for k in owners}
    private = [{k: owner for k, owner in owners.items() if last[k] == r} for r in range(len(uploads))]
    if scale is not None or any(bases):
        if not config and len(set(scales.values())) > 1:
            raise InputError(
                f"{files.root / RUN}: scaling differs between layers, and adapters of several ranks, or with a base, "
                f"need peft's {PEFT_CONFIG} to say so"
            )
        own_rank = scale == SCALES[0]
        models, uploads, private, rank = at_one_rank(
            models, uploads, private, bases, alpha=alpha, config=config, own_rank=own_rank, changes=changes
        )
    elif config or scales:
        scale_of, one = (config.scale, config.scale("")) if config else (scales.__getitem__, alpha / rank)
        models, uploads, private = scaled(models, uploads, private, scale_of, one)
    merged = tuple({base.path: base for base in bases if base is not None}.values())
    all_files = [*recorded.models, *owners.values(), *(file for sent in recorded.uploads for file in sent.values())]
    trained = Adapters(
        alpha, rank, targets_of(models[0], config), merged, bool(config or scales), places(all_files), notes_of(config)
    )
    further = [config.path] if config else []
    return _Recorded(recorded.numbers, models, uploads, private, recorded.notes), trained, further


def _bases(files: OwnFiles, about: Mapping[str, Any], recorded: _Recorded) -> list[TensorFile | None]:
    """Return what was merged into the backbone before each recorded model. InputError: a file is wrong, the format is
    1, or the server's rule is one that is checked."""
    if about["format"] == 1 and os.path.lexists(files.root / BASE):
        raise InputError(f'{files.root / BASE}: a base needs "format": 2 in {RUN}')
    bases = read_bases(files, recorded.numbers, recorded.models[0])
    if any(bases) and about.get("aggregation", MEAN) in (MEAN, PARTIAL):
        raise InputError(
            f"{files.root / RUN}: a run with {BASE}/ takes no mean that could be checked, as what was received is "
            'merged into the backbone; "aggregation" must name the rule: "stacking", or "other"'
        )
    return bases


def _taken_out(config: PeftConfig, recorded: _Recorded, merged: bool) -> TensorFile:
    """Return what was taken out of the backbone before training, as a base: the first adapter with the other sign.
    InputError: that adapter is not in the run, or what clients received was merged into the backbone."""
    first = recorded.models[0]
    if first.factors or merged:
        what = "a run whose adapters are merged into the backbone" if merged else "a run without its first model"
        raise InputError(
            f"{config.path}: init_lora_weights {config.start} takes the first adapter out of the backbone's weights, "
            f"and {what} does not tell which it was; save the changed backbone as a model, name it by --backbone, and "
            "write init_lora_weights true"
        )
    return dataclasses.replace(
        first, factors={name: -config.scale(name[:-2]) for name in first.shapes if name.endswith(".B")}
    )


def _read_prompts(
    files: OwnFiles, about: Mapping[str, Any], names: ClientNames
) -> tuple[_Recorded, prompts.Prompts, list[Path]]:
    """The rounds of a run of prompts, what is said of these, and further files that were read for it: none."""
    read_own = functools.partial(prompts.read_prompts, files, own=True)
    read_shared = functools.partial(prompts.read_prompts, files)
    recorded = _read_rounds(files, names, about, read_shared, read_own, prompts.untrained)
    revealed, held_shares = (_read_numbered(files, k, recorded.numbers, read_own) for k in ("revealed", "held"))
    private = [file for kept in recorded.private for file in kept.values()]
    models = prompts.with_own_start(recorded.models, private)
    start_token = prompts.read_start(files, models[0].path)
    trained = prompts.describe(files.root / RUN, about, models, private, revealed, held_shares, start_token)
    return _Recorded(recorded.numbers, models, recorded.uploads, recorded.private, recorded.notes), trained, []


def _read_numbered(files: OwnFiles, kind: str, numbers: Sequence[int], read: Read) -> dict[int, TensorFile]:
    """The files `KIND/round-000.safetensors` by the index of the recorded round; {} without such a folder."""
    folder = files.root / kind
    paths = numbered(files, folder, "round") if os.path.lexists(folder) else {}
    return {numbers.index(r): read(path) for r, path in sorted(paths.items()) if r in numbers[:-1]}


def _read_rounds(
    files: OwnFiles, names: ClientNames, about: Mapping[str, Any], read: Read, read_own: Read,
    untrained: Callable[[TensorFile], TensorFile],
) -> _Recorded:  # fmt: skip
    """The recorded rounds. `read` reads a header, `read_own` that of a file in `private/`; `untrained` makes a model
    that was not trained of one that was, for a run whose start was not kept. InputError: a file is missing or wrong."""
    gaps = about.get("gaps", False)
    paths = model_paths(files, gaps=gaps)
    private = about.get("kind") == PROMPTS and os.path.lexists(files.root / "private")
    uploads = not private or os.path.lexists(files.root / "uploads")
    models_by_round, private_by_round, uploads_by_round = at_once(
        lambda: dict(zip(paths, each(read, paths.values()), strict=True)),
        lambda: read_by_round(files, "private", paths, names, read_own) if private else {},
        lambda: read_by_round(files, "uploads", paths, names, read) if uploads else {},
    )
    silent = {r: dict.fromkeys(kept, NO_UPLOAD) for r, kept in private_by_round.items()}
    senders = {r: {**silent.get(r, {}), **uploads_by_round.get(r, {})} for r in silent | uploads_by_round}
    notes_by_round = read_notes(files, senders, max(models_by_round), names, gaps=gaps)
    if gaps and 0 not in models_by_round:
        models_by_round = {0: untrained(next(iter(models_by_round.values()))), **models_by_round}
    numbers, models = [*models_by_round], [*models_by_round.values()]
    for r in numbers[:-1]:
        present = uploads_by_round.get(r) or private_by_round.get(r)
        if not (present or gaps or notes_by_round.get(str(r), {}).get("failed")):
            raise InputError(
                f"{files.root / 'uploads'}/round-{r:03d} is missing or empty; it holds what the server received in "
                f"round {r}, one file client-{names.example}.safetensors per client (if all clients failed, "
                f'{ROUNDS} names them under "failed")'
            )
    return _Recorded(
        numbers,
        models,
        [uploads_by_round.get(r, {}) for r in numbers[:-1]],
        [private_by_round.get(r, {}) for r in numbers[:-1]],
        notes_by_interval(notes_by_round, numbers),
    )


def _about(files: OwnFiles) -> dict[str, Any]:
    """Content of run.json. InputError: missing, or a key is missing, unknown or has a wrong value."""
    path = files.root / RUN
    value = parse(files.read(path, purpose="it says which method, task and backbone the run is of"), str(path))
    if isinstance(value, dict) and "format" in value:  # check this first: another format may have other keys
        fields({"format": value["format"]}, str(path), {"format": _NEEDED["format"]}, {})
        if newer := [key for key in value if key in _NOT_IN_1 and value["format"] == 1]:
            raise InputError(f'{path}: the key {newer[0]!r} needs "format": 2')
    of_prompts = isinstance(value, dict) and value.get("kind") == PROMPTS
    needed = _NEEDED | (_NEEDED_OF_PROMPTS if of_prompts else {})
    about = fields(value, str(path), needed, _OPTIONAL | _SINCE_2 | (_OF_PROMPTS if of_prompts else _OF_ADAPTERS))
    if "prompt" in about and about["prompt"].count(IMAGE) != 1:
        raise InputError(f"{path}: prompt must hold {IMAGE} once, not {about['prompt'].count(IMAGE)} times")
    return about


def _claimed(path: Path, about: Mapping[str, Any]) -> str:
    """The claimed epsilon in words: as `claimed` says it, or made of `claim`. InputError: both are there, or `claim`
    lacks a part without which it cannot be compared."""
    if "claim" not in about:
        return str(about.get("claimed", NOT_STATED))
    if "claimed" in about:
        raise InputError(f"{path}: claimed and claim say the same; one of them is enough")
    claim = fields(about["claim"], f"{path}, claim", CLAIM, {})
    return f"{claim['epsilon']:g} at delta {claim['delta']:g} for a {claim['unit']} ({claim['neighbours']})"


def _alpha(path: Path, about: Mapping[str, Any], config: PeftConfig | None, read: float | None) -> float:
    """LoRA's numerator: as run.json states it, or so that alpha / rank is the scale of peft's configuration, or of the
    model's first layer (`read`). InputError: nothing states it, or they differ."""
    source = config.path if config else "scaling"
    alpha = config.scale("") * config.rank if config else read
    if alpha is None:
        if "alpha" not in about:
            raise InputError(f"{path} lacks the key 'alpha', which is {POSITIVE.words} (or add peft's {PEFT_CONFIG})")
        return float(about["alpha"])
    if not math.isclose(about.get("alpha", alpha), alpha, rel_tol=1e-6):
        raise InputError(
            f"{path}: alpha is {about['alpha']:g}, and {source} makes it {alpha:g} (an update is alpha / rank * B A); "
            "leave alpha out"
        )
    return alpha
