"""The matrix of a nightly audit: a YAML file with options, what they are combined to, what is left out, and limits.

    base: {rounds: 20}                                # what every cell has, as in a configuration file
    matrix:                                           # every combination is a cell; several matrices are a list
      - {method: [fedavg, fedrand], attack: maxrenyi, seed: [0, 1]}
      - {method: dpfpl, epsilon: [none, 1], attack: "loss,cosine"}
    exclude: [{method: fedrand, seed: 1}]             # cells that have all of these values
    limits:                                           # what must hold, of cells that can answer it
      - server auroc.low < 0.6
      - {limit: accuracy/local > 70, only: {epsilon: none}}

Messages name the line of what is wrong. Imports nothing heavy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.facts import ATTACKS
from fedaudit.command import gates
from fedaudit.command.argv import LARGEST_SEED, shown, words_of
from fedaudit.command.gates import Gate
from fedaudit.command.listing import KINDS
from fedaudit.command.yaml_lines import Located
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.plan import Plan

if TYPE_CHECKING:
    import yaml

PARTS = ("base", "matrix", "exclude", "limits")
OF_LIMIT = ("limit", "only")
ELSEWHERE = {  # options that are no cell's own, and where they go
    "config": "write its options into base",
    "list": "it is a command of its own",
    "help": "it is a command of its own",
    "paper": "it is a command of its own",
    "nightly": "it is a command of its own",
    "debug": "give --debug on the command line",
    "out": "give --out on the command line",
    "quiet": "give --quiet on the command line",
    "dry_run": "give --dry-run on the command line",
    "fail_if": "state it as a limit",
    "export_run": "a matrix exports nothing",
    "export_adapters": "a matrix exports nothing",
}
MOST = 5000  # cells

Values = Mapping[str, Any]  # of options by name, with underscores
Read = Callable[[Sequence[str]], Plan]  # of a cell's words


@dataclass(frozen=True)
class MatrixCell:
    """One combination: what the matrix gives it, its words with those of base, its plan and the limits that it can
    answer."""

    values: Values
    words: Sequence[str]
    plan: Plan
    limits: Sequence[Gate]

    @property
    def seedless(self) -> str:
        """What it is called where seeds are repetitions."""
        return _named({name: value for name, value in self.values.items() if name != "seed"}) or "all"

    @property
    def name(self) -> str:
        return _named(self.values) or "all"


@dataclass(frozen=True)
class Matrix:
    """A whole file, checked: `limits` in its order."""

    name: str
    cells: Sequence[MatrixCell]
    limits: Sequence[Gate]


def read(path: Path, plan: Read) -> Matrix:
    """The matrix in a file. InputError names the line of what is wrong; every cell is read, nothing is computed."""
    file = Located(path, flag="--nightly", holds=f"{', '.join(PARTS)} (docs/nightly.md)")
    top = file.mapping(file.root, "the matrix", PARTS)
    if "matrix" not in top:
        raise file.error(file.root, f"has no matrix; it holds {', '.join(PARTS)}, of which matrix must be there")
    base = _base(file, top["base"]) if "base" in top else {}
    combined = _combined(file, top["matrix"], base)
    kept = _kept(file, top, combined, base)
    stated = [_stated(file, node, base) for node in file.sequence(top["limits"], "limits")] if "limits" in top else []
    cells, answered = [], set()
    for values, node in kept:
        try:
            words = words_of({**base, **values})
            own = plan(words)
        except InputError as error:
            raise file.error(
                _blamed(file, top, node, str(error)), f"{_named(values) or 'its cell'}: {error}"
            ) from error
        limits = [limit for limit in stated if limit.holds_for({**base, **values}) and _answers(limit.gate, own)]
        answered |= {id(limit) for limit in limits}
        cells.append(MatrixCell(values, words, own, [limit.gate for limit in limits]))
    for limit in stated:
        if id(limit) not in answered:
            raise InputError(
                f"{limit.gate.source}: no cell of the matrix can answer it{_why(limit, kept, base, cells)}"
            )
    return Matrix(path.stem, cells, [limit.gate for limit in stated])


@dataclass(frozen=True, eq=False)
class _Limit:
    gate: Gate
    only: Values

    def holds_for(self, values: Values) -> bool:
        return _has(values, self.only)


def _base(file: Located, node: yaml.Node) -> dict[str, Any]:
    """The options of every cell. InputError: one that no cell has, or a value that no flag takes."""
    return {
        key.replace("-", "_"): _option(file, key, value, value) for key, value in file.mapping(node, "base").items()
    }


def _option(file: Located, key: str, where: yaml.Node, node: yaml.Node) -> Any:
    """The value of an option in plain types. InputError: it has no place here, no flag takes it, or there is no such
    method, attack, audit or task."""
    name = key.replace("-", "_")
    if name in ELSEWHERE:
        raise file.error(where, f"{key} does not go into a matrix: {ELSEWHERE[name]}")
    plain = file.plain(node)
    try:
        words_of({name: plain})
    except InputError as error:
        raise file.error(node, str(error)) from None
    _check_known(file, node, name, plain)
    return plain


Combined = list[tuple[dict[str, Any], "yaml.Node"]]


def _combined(file: Located, node: yaml.Node, base: Values) -> Combined:
    """Every combination of every matrix, each once, with the node of its matrix."""
    import yaml

    matrices = file.sequence(node, "matrix") if isinstance(node, yaml.SequenceNode) else [node]
    found: dict[str, tuple[dict[str, Any], yaml.Node]] = {}
    for one in matrices:
        axes = {name: list(values) for name, values in _axes(file, one)}
        if not axes:
            raise file.error(one, "the matrix is empty; name at least one option, as in 'method: [fedavg, fedrand]'")
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, combination, strict=True))
            found.setdefault(_named({**base, **values}), (values, one))
            if len(found) > MOST:
                raise file.error(one, f"the matrix has more than {MOST} cells; split it into several files")
    return list(found.values())


def _axes(file: Located, node: yaml.Node) -> Iterator[tuple[str, Sequence[Any]]]:
    """The options of a matrix, each with its values; InputError: none, or what cannot be an option of a cell."""
    import yaml

    for key, value in file.mapping(node, "the matrix").items():
        several = file.sequence(value, key) if isinstance(value, yaml.SequenceNode) else [value]
        yield key.replace("-", "_"), [_option(file, key, value, one) for one in several]


def _check_known(file: Located, node: yaml.Node, name: str, value: Any) -> None:
    """InputError at the value itself, where a method, attack, audit or task does not exist, or a seed is none."""
    if name == "seed" and not (isinstance(value, int) and 0 <= value <= LARGEST_SEED):
        raise file.error(node, f"seed {shown(value)}: must be a whole number from 0")
    if name not in KINDS:
        return
    for word in value if isinstance(value, list) else str(value).split(","):
        label = str(word).strip().partition(":")[0]
        if label not in ("all", "none"):
            try:
                KINDS[name].find(label, flag=name)
            except InputError as error:
                raise file.error(node, str(error)) from None


def _kept(file: Located, top: Mapping[str, yaml.Node], cells: Combined, base: Values) -> Combined:
    """The cells that no exclusion meets. InputError: an exclusion meets none, or all are met."""
    if "exclude" not in top:
        return cells
    for node in file.sequence(top["exclude"], "exclude"):
        given = _conditions(file, node, "exclude")
        left = [(values, where) for values, where in cells if not _has({**base, **values}, given)]
        if len(left) == len(cells):
            raise file.error(
                node, f"excludes nothing: no cell has {_named(given)} (that an earlier line has not excluded)"
            )
        cells = left
    if not cells:
        raise file.error(top["exclude"], "excludes every cell; nothing is left to run")
    return cells


def _conditions(file: Located, node: yaml.Node, what: str) -> dict[str, Any]:
    """Values that a cell must have, of an option one of several; InputError: none."""
    found = {name.replace("-", "_"): file.plain(value) for name, value in file.mapping(node, what).items()}
    if not found:
        raise file.error(node, f"{what} is empty; name what a cell must have, as in 'method: fedavg'")
    return found


def _has(values: Values, given: Values) -> bool:
    """Whether a cell has one of the given values of every option."""
    return all(
        name in values
        and _text(values[name]) in {_text(one) for one in (wanted if isinstance(wanted, list) else [wanted])}
        for name, wanted in given.items()
    )


def _stated(file: Located, node: yaml.Node, base: Values) -> _Limit:
    """A limit, alone or with the cells that it is about. InputError: it cannot be read."""
    import yaml

    only: dict[str, Any] = {}
    text = node
    if isinstance(node, yaml.MappingNode):
        parts = file.mapping(node, "a limit", OF_LIMIT)
        if "limit" not in parts:
            raise file.error(
                node, "a limit must say what, as in '{limit: server auroc.low < 0.6, only: {method: fedavg}}'"
            )
        only = _conditions(file, parts["only"], "only") if "only" in parts else {}
        text = parts["limit"]
    said = file.plain(text)
    if not isinstance(said, str):
        raise file.error(text, f"a limit must be a text, as 'server auroc.low < 0.6', not {shown(said)}")
    return _Limit(gates.limit(said, f"{file.place(text)}: limit {said!r}"), only)


def _answers(gate: Gate, plan: Plan) -> bool:
    """Whether a run of a plan can answer a limit."""
    try:
        gate.check(plan.learner, [ATTACKS[name] for name in plan.attacks], plan.inserted)
    except InputError:
        return False
    return True


def _why(limit: _Limit, kept: Combined, base: Values, cells: Sequence[MatrixCell]) -> str:
    """Why none answers, of the first cell that the limit is about."""
    about = [c for c, (values, _) in zip(cells, kept, strict=True) if limit.holds_for({**base, **values})]
    if not about:
        return f": none has {_named(limit.only)}"
    try:
        plan = about[0].plan
        attacks = [ATTACKS[name] for name in plan.attacks]
        limit.gate.check(plan.learner, attacks, plan.inserted)
    except InputError as error:
        return f" ({str(error).rpartition('(')[2].rstrip(')')})"
    return ""


def _blamed(file: Located, top: Mapping[str, yaml.Node], matrix: yaml.Node, said: str) -> yaml.Node:
    """The node of the option that a message begins with; of none the matrix."""
    name = said.removeprefix("--").partition(" ")[0].partition(":")[0].replace("-", "_")
    for part in (matrix, *([top["base"]] if "base" in top else [])):
        for key, value in file.mapping(part, "the matrix").items():
            if key.replace("-", "_") == name:
                return value
    return matrix


def _named(values: Values) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
