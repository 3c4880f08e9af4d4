"""Reads the matrix of a nightly audit: a YAML file of options, their combinations, exclusions and gates.

    base: {rounds: 20}                                # options of all cells, as in a configuration file
    matrix:                                           # each combination is a cell; a list holds several matrices
      - {method: [fedavg, fedrand], attack: maxrenyi, seed: [0, 1]}
      - {method: dpfpl, epsilon: [none, 1], attack: "loss,cosine"}
    exclude: [{method: fedrand, seed: 1}]             # leaves out cells that have all of these values
    fail_if:                                          # gates, as of --fail-if, of every cell that can answer them
      - server auroc.low > 0.6
      - {gate: accuracy/local < 70, only: {epsilon: none}}

Error messages name the line. Imports nothing heavy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.attacks.facts import ATTACKS
from fedaudit.command import gates
from fedaudit.command.argv import LARGEST_SEED, short_repr, words_of
from fedaudit.command.gates import Gate
from fedaudit.command.listing import KINDS
from fedaudit.command.yaml_lines import YamlFile
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.plan import Plan

if TYPE_CHECKING:
    import yaml

PARTS = ("base", "matrix", "exclude", "fail_if")
OF_GATE = ("gate", "only")
BEFORE = "limits"  # an earlier name of `fail_if`, whose entries said the opposite
ELSEWHERE = {  # options that a matrix must not have, and what to do instead
    "config": "write its options into base",
    "list": "it is a command of its own",
    "version": "it is a command of its own",
    "help": "it is a command of its own",
    "paper": "it is a command of its own",
    "new": "it is a command of its own",
    "nightly": "it is a command of its own",
    "debug": "give --debug on the command line",
    "open": "give --open on the command line",
    "out": "give --out on the command line",
    "plugins": "give --plugins on the command line",
    "quiet": "give --quiet on the command line",
    "dry_run": "give --dry-run on the command line",
    "fail_if": "it stands beside base and matrix",
    "export_run": "a matrix exports nothing",
    "export_adapters": "a matrix exports nothing",
}
MOST = 5000  # cells of a file

Values = Mapping[str, Any]  # of options, by name with underscores
Read = Callable[[Sequence[str]], Plan]  # turns the words of a cell into its plan


@dataclass(frozen=True)
class MatrixCell:
    """One combination of a matrix."""

    values: Values  # of the matrix, without base
    words: Sequence[str]  # command-line words, with base
    plan: Plan
    gates: Sequence[Gate]  # those that it can answer

    @property
    def seedless(self) -> str:
        """The name without the seed."""
        return _label({name: value for name, value in self.values.items() if name != "seed"}) or "all"

    @property
    def name(self) -> str:
        """The values as text, "method fedavg, seed 0"; "all" if there are none."""
        return _label(self.values) or "all"


@dataclass(frozen=True)
class Matrix:
    """A checked matrix file; `name` is the stem of the file, `gates` are in its order."""

    name: str
    cells: Sequence[MatrixCell]
    gates: Sequence[Gate]


def read(path: Path, plan: Read) -> Matrix:
    """The matrix in a file, checked; `plan` turns the command-line words of a cell (one combination of options) into
    its plan. InputError names the wrong line."""
    file = YamlFile(path, flag="--nightly", holds=f"{', '.join(PARTS)} (docs/reference/nightly.md)")
    top = file.mapping(file.root, "the matrix", (*PARTS, BEFORE))
    if BEFORE in top:
        raise file.error(
            top[BEFORE],
            f"{BEFORE} said what must hold; write fail_if with what fails, as in --fail-if: 'server auroc.low > 0.6' "
            "instead of 'server auroc.low < 0.6', 'leak' instead of 'no leak'",
        )
    if "matrix" not in top:
        raise file.error(file.root, f"has no matrix; it holds {', '.join(PARTS)}, of which matrix must be there")
    base = _base(file, top["base"]) if "base" in top else {}
    combined = _combinations(file, top["matrix"], base)
    remaining = _not_excluded(file, top, combined, base)
    all_gates = (
        [_read_gate(file, node) for node in file.sequence(top["fail_if"], "fail_if")] if "fail_if" in top else []
    )
    cells, answered = [], set()
    for values, node in remaining:
        try:
            words = words_of({**base, **values})
            cell_plan = plan(words)
        except InputError as error:
            raise file.error(
                _blamed_node(file, top, node, str(error)), f"{_label(values) or 'its cell'}: {error}"
            ) from error
        answerable = [
            one for one in all_gates if _has({**base, **values}, one.only) and not _refusal(one.gate, cell_plan)
        ]
        answered |= {id(one) for one in answerable}
        cells.append(MatrixCell(values, words, cell_plan, [one.gate for one in answerable]))
    for one in all_gates:
        if id(one) not in answered:
            why = _why_unanswered(one, remaining, base, cells)
            raise InputError(f"{one.gate.source}: no cell of the matrix can answer it{why}")
    return Matrix(path.stem, cells, [one.gate for one in all_gates])


@dataclass(frozen=True, eq=False)
class _Gate:
    """A gate, and the values of the cells that it is about."""

    gate: Gate
    only: Values


def _base(file: YamlFile, node: yaml.Node) -> dict[str, Any]:
    """The options in `base` (shared by all cells) by name, with underscores. InputError as in `_option`."""
    return {
        key.replace("-", "_"): _option(file, key, value, value) for key, value in file.mapping(node, "base").items()
    }


def _option(file: YamlFile, key: str, where: yaml.Node, node: yaml.Node) -> Any:
    """The value of the option `key` in plain types; `node` is the value, or one of its list. InputError: the option
    must not be in a matrix (at node `where`), the value is impossible, or there is no such method, attack, audit or
    task (at `node`)."""
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


Combinations = list[tuple[dict[str, Any], "yaml.Node"]]  # values of a cell, and the node of its matrix


def _combinations(file: YamlFile, node: yaml.Node, base: Values) -> Combinations:
    """All combinations of options of all matrices, each once, as (values, node of its matrix). InputError: a matrix is
    empty, or there are too many."""
    import yaml

    matrices = file.sequence(node, "matrix") if isinstance(node, yaml.SequenceNode) else [node]
    by_label: dict[str, tuple[dict[str, Any], yaml.Node]] = {}
    for matrix in matrices:
        axes = dict(_axes(file, matrix))
        if not axes:
            raise file.error(matrix, "the matrix is empty; name at least one option, as in 'method: [fedavg, fedrand]'")
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, combination, strict=True))
            by_label.setdefault(_label({**base, **values}), (values, matrix))
            if len(by_label) > MOST:
                raise file.error(matrix, f"the matrix has more than {MOST} cells; split it into several files")
    return list(by_label.values())


def _axes(file: YamlFile, node: yaml.Node) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield (option, list of its values) for every option of a matrix. InputError as in `_option`."""
    import yaml

    for key, value in file.mapping(node, "the matrix").items():
        several = file.sequence(value, key) if isinstance(value, yaml.SequenceNode) else [value]
        yield key.replace("-", "_"), [_option(file, key, value, one) for one in several]


def _check_known(file: YamlFile, node: yaml.Node, name: str, value: Any) -> None:
    """Raise InputError if a value of the option `name` is no method, attack, audit or task that there is, or a seed is
    no whole number from 0."""
    if name == "seed" and not (isinstance(value, int) and 0 <= value <= LARGEST_SEED):
        raise file.error(node, f"seed {short_repr(value)}: must be a whole number from 0")
    if name not in KINDS:
        return
    for word in value if isinstance(value, list) else str(value).split(","):
        label = str(word).strip().partition(":")[0]
        if label not in ("all", "none"):
            try:
                KINDS[name].find(label, flag=name)
            except InputError as error:
                raise file.error(node, str(error)) from None


def _not_excluded(file: YamlFile, top: Mapping[str, yaml.Node], cells: Combinations, base: Values) -> Combinations:
    """The combinations that no entry of `exclude` matches. InputError: an entry matches none, or none is left."""
    if "exclude" not in top:
        return cells
    for node in file.sequence(top["exclude"], "exclude"):
        excluded = _conditions(file, node, "exclude")
        remaining = [(values, where) for values, where in cells if not _has({**base, **values}, excluded)]
        if len(remaining) == len(cells):
            raise file.error(
                node, f"excludes nothing: no cell has {_label(excluded)} (that an earlier line has not excluded)"
            )
        cells = remaining
    if not cells:
        raise file.error(top["exclude"], "excludes every cell; nothing is left to run")
    return cells


def _conditions(file: YamlFile, node: yaml.Node, what: str) -> dict[str, Any]:
    """The conditions on a cell in an entry of `exclude` or `only` (named by `what`), {option: value, or list of
    alternatives}. InputError: it is empty."""
    conditions = {name.replace("-", "_"): file.plain(value) for name, value in file.mapping(node, what).items()}
    if not conditions:
        raise file.error(node, f"{what} is empty; name what a cell must have, as in 'method: fedavg'")
    return conditions


def _has(values: Values, conditions: Values) -> bool:
    """Whether a cell with these values meets all conditions; a list is met by any of its items."""
    return all(
        name in values
        and _text(values[name]) in {_text(value) for value in (wanted if isinstance(wanted, list) else [wanted])}
        for name, wanted in conditions.items()
    )


def _read_gate(file: YamlFile, node: yaml.Node) -> _Gate:
    """The gate in an entry of `fail_if`: a text, or a mapping of `gate` and `only`. InputError: it is wrong."""
    import yaml

    only: dict[str, Any] = {}
    text_node = node
    if isinstance(node, yaml.MappingNode):
        parts = file.mapping(node, "a gate", OF_GATE)
        if "gate" not in parts:
            raise file.error(
                node, "a gate must say what fails, as in '{gate: server auroc.low > 0.6, only: {method: fedavg}}'"
            )
        only = _conditions(file, parts["only"], "only") if "only" in parts else {}
        text_node = parts["gate"]
    text = file.plain(text_node)
    if not isinstance(text, str):
        raise file.error(text_node, f"a gate must be a text, as 'server auroc.low > 0.6', not {short_repr(text)}")
    return _Gate(gates.parse(text, f"{file.place(text_node)}: gate {text!r}"), only)


def _refusal(gate: Gate, plan: Plan) -> str:
    """Why no run of a plan can answer a gate, as a message; "" if one can."""
    try:
        gate.check(plan.learner, [ATTACKS[name] for name in plan.attacks], plan.inserted, plan.noised)
    except InputError as error:
        return str(error)
    return ""


def _why_unanswered(one: _Gate, remaining: Combinations, base: Values, cells: Sequence[MatrixCell]) -> str:
    """Why no cell answers a gate, as end of a sentence: the reason of the first cell that the gate is about."""
    about = [c for c, (values, _) in zip(cells, remaining, strict=True) if _has({**base, **values}, one.only)]
    if not about:
        return f": none has {_label(one.only)}"
    return f" ({_refusal(one.gate, about[0].plan).rpartition('(')[2].rstrip(')')})"


def _blamed_node(file: YamlFile, top: Mapping[str, yaml.Node], matrix: yaml.Node, message: str) -> yaml.Node:
    """The node of the option whose name an error message begins with, in the matrix or in base; otherwise the
    matrix's."""
    name = message.removeprefix("--").partition(" ")[0].partition(":")[0].replace("-", "_")
    for part in (matrix, *([top["base"]] if "base" in top else [])):
        for key, value in file.mapping(part, "the matrix").items():
            if key.replace("-", "_") == name:
                return value
    return matrix


def _label(values: Values) -> str:
    """Values as text: "method fedavg, seed 0"."""
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    """A value as it stands on the command line."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
