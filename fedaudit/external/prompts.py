"""Prompts of an external run: which of this project's methods its files are read by, and how it was trained.

A prompt is a context of b vectors of width d, `p_G` where clients share it and `p_L` where a client keeps it. Other
code calls both `ctx`: its folder tells which it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedaudit.external.checkpoints import read_checkpoint
from fedaudit.external.files import OwnFiles
from fedaudit.external.headers import ITEM, read_header
from fedaudit.external.names import unwrapped
from fedaudit.external.schema import RUN, one_line
from fedaudit.external.tensors import ROUNDING, TensorFile, precision_of, size_of
from fedaudit.machinery.errors import InputError, nearest
from fedaudit.machinery.plugins import dataclass_of, package_folder
from fedaudit.trainers.learners import METHODS, facts, privacy_of, private

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.privacy.settings import Privacy
    from fedaudit.trainers.base import State

SHARED, OWN = "p_G", "p_L"
SGD = "sgd"
_PREFIX = "prompt_learner."  # of tensors in a CoOp model's state
START_TOKEN = "token_prefix"  # the start token's embedding, a row per class
_CLASS_NAMES = "token_suffix"  # of the classes of the training; nothing is read from it
_FACTORS = ("u", "v")  # of a low-rank prompt of a client's own
OWN_PARTS = (OWN, *_FACTORS)  # what a client keeps


@dataclass(frozen=True, eq=False)
class Prompts:
    """Facts about the prompts of an external run, from its run.json and the headers of its files."""

    notes: ClassVar[tuple[str, ...]] = ()  # sentences on a configuration

    rule: str  # the method of this project by which the files are read
    params: DataclassInstance  # of that method
    privacy: Privacy | None  # clipping and noise; None for a method that cannot be noised
    training: DataclassInstance  # the learner's Settings
    untold: str  # why the training cannot be repeated; "" if it can be
    classes: tuple[str, ...]
    weights: str  # of the backbone, as --weights names them
    start_token: TensorFile | None = None  # the start token's embedding where the prompts were trained
    revealed: Mapping[int, TensorFile] = field(default_factory=dict)  # by round: what computing on shares revealed
    shares: Mapping[int, TensorFile] = field(default_factory=dict)  # by round: the shares that users hold

    @property
    def learner(self) -> str:
        return METHODS[self.rule].facts.learner

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of the learner's Settings."""
        return dataclasses.asdict(self.training)

    @property
    def nothing_private(self) -> bool:
        """Whether clients keep no part of their own, so that what they send is their whole model."""
        return not getattr(METHODS[self.rule].load(), "local", ())

    @property
    def files(self) -> list[TensorFile]:
        """Tensor files that belong to whole rounds, beside the global models."""
        return [*self.revealed.values(), *self.shares.values()]

    def more_tensors(self, r: int) -> State:
        """Tensors of round r as in a transcript that are neither models nor clients': "revealed/NAME", "held/NAME"."""
        parts = {"revealed": self.revealed, "held": self.shares}
        return {f"{p}/{n}": t for p, files in parts.items() if r in files for n, t in files[r].raw().items()}

    def sent_state(self, before: State, upload: State) -> State:
        """The state that an upload amounts to, if the model `before` was sent out: an upload of a gradient is the step
        that the server takes along it."""
        if "gradient" not in upload:
            return upload
        rate: float = self.settings["global_rate"]
        return {SHARED: before[SHARED] - rate * upload["gradient"]}


@dataclass(frozen=True)
class CheckpointFile(TensorFile):
    """A checkpoint of CoOp or MaPLe. It is read again when its tensors are asked for."""

    files: OwnFiles = field(kw_only=True)

    @classmethod
    def of(cls, files: OwnFiles, path: Path, *, own: bool) -> CheckpointFile:
        """The prompts of a checkpoint. InputError as `read_checkpoint`."""
        state = read_checkpoint(files, path).state
        names = {tensor_name(name, own=own): name for name in state}
        shapes = {name: tuple(state[in_file].shape) for name, in_file in names.items()}
        size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        return cls(path, names, shapes, size, ROUNDING["F16"], files=files)

    @classmethod
    def start(cls, files: OwnFiles, path: Path) -> CheckpointFile | None:
        """The start token's embedding in a checkpoint; None if it has none."""
        token = read_checkpoint(files, path).start_token
        return None if token is None else cls(path, {START_TOKEN: START_TOKEN}, {}, 0, files=files)

    def raw(self) -> State:
        checkpoint = read_checkpoint(self.files, self.path)
        tensors = checkpoint.state if checkpoint.start_token is None else {
            **checkpoint.state, START_TOKEN: checkpoint.start_token,
        }  # fmt: skip
        return {name: tensors[in_file] for name, in_file in self.names.items()}


def read_prompts(files: OwnFiles, path: Path, *, own: bool = False) -> TensorFile:
    """Read the header of a file of prompts, or a checkpoint; a context without a name of ours is a client's own if
    `own`, else the shared one. InputError: unreadable, truncated, a tensor twice or of a dtype that is not read."""
    if path.suffix != ".safetensors":
        return CheckpointFile.of(files, path, own=own)
    entries = read_header(files, path)
    names: dict[str, str] = {}
    for in_file, entry in entries.items():
        name = tensor_name(in_file, own=own)
        if name in names:
            raise InputError(
                f"{path}: {one_line(names[name])} and {one_line(in_file)} are both {one_line(name)}; each tensor once"
            )
        if entry["dtype"] not in ITEM or (0 in entry["shape"]):
            raise InputError(
                f"{path}: {one_line(in_file)} is {one_line(entry['dtype'])} {one_line(str(entry['shape']))}; valid are "
                f"tensors with numbers in them, of {', '.join(ITEM)}"
            )
        if name not in (START_TOKEN, _CLASS_NAMES):
            names[name] = in_file
    shapes = {name: tuple(entries[in_file]["shape"]) for name, in_file in names.items()}
    return TensorFile(path, names, shapes, size_of(entries), precision_of(entries))


def read_start(files: OwnFiles, path: Path) -> TensorFile | None:
    """The start token's embedding in a file of prompts, as a file that holds nothing else; None if it has none."""
    if path.suffix != ".safetensors":
        return CheckpointFile.start(files, path)
    entries = read_header(files, path)
    in_file = next((name for name in entries if tensor_name(name, own=False) == START_TOKEN), None)
    shape = tuple(entries[in_file]["shape"]) if in_file else ()
    return TensorFile(path, {START_TOKEN: in_file}, {START_TOKEN: shape}, 0) if in_file else None


def tensor_name(in_file: str, *, own: bool) -> str:
    """This project's name of a tensor: p_G or p_L for a context `ctx`, else its own."""
    name = unwrapped(in_file).removeprefix(_PREFIX)
    return (OWN if own else SHARED) if name == "ctx" else name


def with_own_start(models: Sequence[TensorFile], private: Sequence[TensorFile]) -> list[TensorFile]:
    """The models, the first one also with the start of clients' own tensors: zero where it is not recorded."""
    shapes = {name: shape for file in private for name, shape in file.shapes.items()}
    first, *later = models
    zeros = {name: shape for name, shape in shapes.items() if name in OWN_PARTS and name not in first.shapes}
    return [dataclasses.replace(first, zeros=zeros), *later]


def untrained(model: TensorFile) -> TensorFile:
    """The model with all prompts zero, close to which they start."""
    return dataclasses.replace(model, factors=dict.fromkeys(model.shapes, 0.0))


def describe(
    path: Path, about: Mapping[str, Any], models: Sequence[TensorFile], private: Sequence[TensorFile],
    revealed: Mapping[int, TensorFile], shares: Mapping[int, TensorFile], start_token: TensorFile | None,
) -> Prompts:  # fmt: skip
    """The facts that run.json (`path`, of content `about`) and the files' headers state of the prompts. InputError: a
    rule, a parameter or a part of the recipe is wrong, or tensors do not fit each other."""
    names = {name for file in private for name in file.shapes}
    stated = dict(about.get("rule", {}))
    rule = stated.pop("method", None) or _rule(path, models[0].shapes.keys(), names)
    plugin = METHODS.get(rule)
    readable = [name for name, one in METHODS.items() if facts(one.facts.learner).records == "classes"]
    if plugin is None or rule not in readable:
        raise InputError(
            f"{path}, rule: {one_line(rule)} is no method whose files are prompts{nearest(rule, readable)}; valid are "
            f"{', '.join(readable)}"
        )
    learner = plugin.facts.learner
    if not stated and rule == "fedpgp":
        stated = {"rank": _factor_rank(private), "mu": 0.0}
    recipe = dict(about.get("recipe", {}))
    optimizer = recipe.pop("optimizer", SGD)
    settings = dataclass_of(package_folder("fedaudit.trainers") / f"{learner}.py", "Settings")
    # where clients compute on shares the server keeps a prompt per group, and their number changes
    shape = {} if plugin.facts.on_shares else _shape(path, models, about["classes"])
    noise = about.get("privacy", {})
    return Prompts(
        rule=rule,
        params=_made(plugin.params, stated, f"{path}, rule"),
        privacy=_privacy(rule, noise, path),
        training=_made(settings, shape | recipe, f"{path}, recipe"),
        untold=_untold(about, optimizer),
        classes=tuple(about["classes"]),
        weights=about.get("weights", ""),
        start_token=start_token,
        revealed=revealed,
        shares=shares,
    )


def _untold(about: Mapping[str, Any], optimizer: str) -> str:
    """Why a training cannot be repeated; "" if run.json tells how it was done."""
    if "recipe" not in about:
        return f"{RUN} states no recipe of the training"
    if optimizer != SGD:
        return f"the recipe in {RUN} says {one_line(str(optimizer))}, and what is known of steps is known of {SGD}"
    return ""


def _rule(path: Path, shared: Iterable[str], own: Iterable[str]) -> str:
    """The method by which a run is read whose run.json names none, from the names of its tensors."""
    if {"Pt", "Pd"} <= {*shared}:
        return "fedmaple"
    if SHARED in shared:
        return "fedpgp" if {*_FACTORS} <= {*own} else "fedotp" if OWN in own else "promptfl"
    if OWN in own:
        return "local"
    raise InputError(
        f"{path}: the first global model holds {one_line(', '.join(sorted(shared)) or 'no tensor')}; valid are a "
        f'shared context ({SHARED} or ctx), or Pt and Pd of dual prompts; for others "rule" names the method'
    )


def _factor_rank(private: Iterable[TensorFile]) -> int:
    return next(file.shapes["u"][-1] for file in private if "u" in file.shapes)


def _shape(path: Path, models: Sequence[TensorFile], classes: Sequence[str]) -> dict[str, Any]:
    """The learner's settings that the shape of the prompts states. InputError: models differ in shape, or their number
    of classes is another one."""
    first, *later = models
    for model in later:
        for name, shape in model.shapes.items():
            if name in first.shapes and shape != first.shapes[name]:
                raise InputError(
                    f"{model.path}: {one_line(name)} has shape {list(shape)}, where {first.path} has "
                    f"{list(first.shapes[name])}"
                )
    if "Pt" in first.shapes:
        depth, tokens, _ = first.shapes["Pt"]
        return {"depth": depth, "tokens": tokens}
    shape = first.shapes.get(SHARED) or first.shapes.get(OWN) or ()
    if len(shape) not in (2, 3):
        raise InputError(
            f"{first.path}: a prompt of shape {list(shape)}; valid are [b, d], and [C, b, d] with a context for each "
            "class"
        )
    if len(shape) == 3 and shape[0] != len(classes):
        raise InputError(f"{first.path}: contexts of {shape[0]} classes, where {path} names {len(classes)} classes")
    return {"prompt_length": shape[-2]} | ({"class_contexts": True} if len(shape) == 3 else {})


def _privacy(rule: str, noise: Mapping[str, Any], path: Path) -> Privacy | None:
    """Clipping and noise of a run as its run.json states them; without noise if it states none."""
    method = METHODS[rule].facts
    if not (private(method) or facts(method.learner).private):
        if noise:
            raise InputError(f"{path}, privacy: the rule {rule} knows no noise; leave it out")
        return None
    return _made(privacy_of(method.learner), {"epsilon": math.inf, **noise}, f"{path}, privacy")


def _made(cls: Any, values: Mapping[str, Any], where: str) -> Any:
    """An object of a parameter class with these values. InputError, which begins with `where`, names what is wrong."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name, value in values.items():
        if name not in fields:
            valid = ", ".join(fields) or "none"
            raise InputError(f"{where}: unknown key {one_line(name)!r}; valid are {valid}{nearest(name, fields)}")
        usual = fields[name].default
        numbers = isinstance(usual, float) and isinstance(value, int) and not isinstance(value, bool)
        if type(value) is not type(usual) and not numbers:
            raise InputError(f"{where}: {name} must be as {usual!r}, not {one_line(repr(value))}")
    try:
        return cls(**{n: float(v) if isinstance(fields[n].default, float) else v for n, v in values.items()})
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
