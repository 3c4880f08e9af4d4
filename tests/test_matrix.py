"""Matrices of nightly audits: which cells they give, and what is said of those that are wrong, with the line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedaudit.command import cli, exits, gates, nightly
from fedaudit.command.matrix import MOST, Matrix, read
from fedaudit.machinery.errors import InputError


def matrix(tmp_path: Path, text: str) -> Matrix:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    return read(path, lambda words: cli.read_command(words).plan)


def names(found: Matrix) -> list[str]:
    return [cell.name for cell in found.cells]


class TestCells:
    def test_every_combination_is_a_cell(self, tmp_path: Path) -> None:
        found = matrix(tmp_path, "base: {rounds: 3}\nmatrix: {method: [fedavg, fedrand], seed: [0, 1]}")
        assert names(found) == [f"method {m}, seed {s}" for m in ("fedavg", "fedrand") for s in (0, 1)]
        assert [cell.seedless for cell in found.cells] == ["method fedavg"] * 2 + ["method fedrand"] * 2
        assert [cell.plan.seed for cell in found.cells] == [0, 1, 0, 1]
        assert {cell.plan.rounds for cell in found.cells} == {3}

    def test_several_matrices_share_base_and_a_cell_of_two_comes_once(self, tmp_path: Path) -> None:
        text = "base: {clients: 5}\nmatrix:\n- {method: fedavg, per-round: 2}\n- {method: dpfpl, epsilon: [none, 1]}"
        found = matrix(tmp_path, text)
        assert names(found) == ["method fedavg, per_round 2", "method dpfpl, epsilon none", "method dpfpl, epsilon 1"]
        assert {cell.plan.clients for cell in found.cells} == {5}
        twice = matrix(tmp_path, "matrix: [{method: [fedavg, fedper]}, {method: fedavg}]")
        assert names(twice) == ["method fedavg", "method fedper"]

    def test_several_attacks_of_one_cell_anchors_and_merges(self, tmp_path: Path) -> None:
        (cell,) = matrix(tmp_path, "matrix: {method: fedotp, attack: [[loss, cosine]]}").cells
        assert list(cell.plan.attacks) == ["loss", "cosine"]
        text = "base: &few {rounds: 2}\nmatrix:\n- {<<: *few, method: fedavg}\n- {<<: *few, method: fedper}"
        assert names(matrix(tmp_path, text)) == ["rounds 2, method fedavg", "rounds 2, method fedper"]

    def test_exclusions_may_go_by_base(self, tmp_path: Path) -> None:
        text = "matrix: {method: [fedavg, fedper], seed: [0, 1, 2]}\nexclude:\n- {method: fedavg, seed: [1, 2]}\n"
        found = names(matrix(tmp_path, f"{text}- {{seed: 0, method: fedper}}"))
        assert found == ["method fedavg, seed 0", "method fedper, seed 1", "method fedper, seed 2"]
        text = "base: {rounds: 2}\nmatrix: {method: [fedavg, fedper]}\nexclude: [{rounds: 2, method: fedper}]"
        assert names(matrix(tmp_path, text)) == ["method fedavg"]


class TestGates:
    def test_cells_have_the_gates_that_they_can_answer(self, tmp_path: Path) -> None:
        text = "matrix: [{method: fedavg}, {method: fedotp, attack: loss}, {method: fedotp, attack: none}]\n"
        cells = matrix(tmp_path, f"{text}fail_if: [server auroc.low > 0.6, accuracy/local < 70]").cells
        found = [[gate.text for gate in cell.gates] for cell in cells]
        auroc, accuracy = "server auroc.low > 0.6", "accuracy/local < 70"
        assert found == [[auroc], [auroc, accuracy], [accuracy]]
        text = "matrix: {method: dpfpl, epsilon: [none, 1]}\n"
        found = matrix(tmp_path, f"{text}fail_if: [{{gate: accuracy/local < 70, only: {{epsilon: none}}}}]")
        assert [len(cell.gates) for cell in found.cells] == [1, 0]

    def test_they_are_those_of_the_command(self, tmp_path: Path) -> None:
        words = ["leak", "server leak", "measured > claimed", "auroc >= 0.6"]
        text = "matrix: {method: dpfpl, epsilon: 1, attack: loss, canaries: 20}\n"
        found = matrix(tmp_path, f"{text}fail_if: [{', '.join(words)}]").gates
        assert [replace(gate, source="") for gate in found] == [replace(gates.parse(word), source="") for word in words]


BAD = {
    "empty": ("", "is empty"), "no mapping": ("[1]", "line 1: the matrix must be a mapping"),
    "no matrix": ("base: {rounds: 2}", "line 1: has no matrix"),
    "an unknown part": ("matrix: {method: fedavg}\nfail: []", "line 2: 'fail' is nothing that the matrix holds (did you mean 'fail_if'?)"),
    "an unknown method": ("matrix:\n  method:\n  - fedavg\n  - fedavgg", "line 4: method fedavgg: no such method (did you mean 'fedavg'?)"),
    "an unknown attack": ("matrix:\n  method: fedavg\n  attack: [[loss, lossy]]", "line 3: attack lossy: no such attack"),
    "an unknown task": ("base:\n  task: capshuns\nmatrix: {method: fedavg}", "line 2: task capshuns: no such task"),
    "an unknown option": ("matrix:\n  method: fedavg\n  roundz: 3", "line 2: method fedavg, roundz 3: --roundz=3: no such option"),
    "a value that is none": ("matrix:\n  method: fedavg\n  rounds: [3, x]", "line 3: method fedavg, rounds x: --rounds"),
    "a wrong value in base": ("base:\n  rounds: -1\nmatrix: {method: fedavg}", "line 2: method fedavg: --rounds -1: must be at least 1"),
    "no value": ("matrix: {method: fedavg, rounds: }", "line 1: rounds must be a plain value"),
    "a seed that is none": ("matrix: {method: fedavg, seed: [-1]}", "line 1: seed -1: must be a whole number from 0"),
    "an empty matrix": ("matrix: {}", "line 1: the matrix is empty"),
    "an empty axis": ("matrix:\n  method: []", "line 2: method is empty"),
    "an anchor within itself": ("base: &a {rounds: *a}\nmatrix: {method: fedavg}", "line 1: an anchor stands within itself"),
    "an anchor that is nowhere": ("matrix: *a", "line 1: not valid YAML"),
    "anchors that unfold to millions": (
        "base: {a: &a [1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c], "
        "e: &e [*d,*d,*d,*d,*d,*d,*d,*d], f: &f [*e,*e,*e,*e,*e,*e,*e,*e], g: [*f,*f,*f,*f,*f,*f,*f,*f]}\nmatrix: {method: fedavg}",
        "is nested or repeated beyond",
    ),
    "no YAML": ("matrix: {method: [fedavg", "not valid YAML"),
    "a name twice": ("matrix: {method: fedavg, method: fedper}", "line 1: 'method' stands there twice"),
    "a place": ("matrix: {method: fedavg, out: x}", "line 1: out does not go into a matrix: give --out"),
    "a gate": ("base: {fail_if: leak}\nmatrix: {method: fedavg}", "line 1: fail_if does not go into a matrix: it stands beside base and matrix"),
    "a cell that cannot run": ("matrix: {method: fedavg, epsilon: [none, 1]}", "line 1: method fedavg, epsilon none: --epsilon: fedavg adds no noise"),
    "an exclusion of nothing": ("matrix: {method: fedavg}\nexclude:\n- {method: fedper}", "line 3: excludes nothing: no cell has method fedper"),
    "an exclusion of all": ("matrix: {method: fedavg}\nexclude: [{method: fedavg}]", "line 2: excludes every cell"),
    "an empty exclusion": ("matrix: {method: fedavg}\nexclude: [{}]", "line 2: exclude is empty"),
    "a gate that says nothing": ("matrix: {method: fedavg}\nfail_if: [auroc]", "line 2: gate 'auroc': not understood"),
    "a gate without an answer": (
        "matrix: {method: fedavg}\nfail_if: [accuracy/local < 70]",
        "line 2: gate 'accuracy/local < 70': no cell of the matrix can answer it (language models with adapters have no accuracy here)",
    ),
    "a gate that needs canaries": ("matrix: {method: fedavg}\nfail_if: [measured > claimed]", "no cell of the matrix can answer it (there are no canaries"),
    "a gate of no cell": ("matrix: {method: fedavg}\nfail_if: [{gate: leak, only: {method: x}}]", "no cell of the matrix can answer it: none has method x"),
    "a gate without a text": ("matrix: {method: fedavg}\nfail_if: [{only: {method: fedavg}}]", "line 2: a gate must say what fails"),
    "what must hold": ("matrix: {method: fedavg}\nlimits: [no leak]", "line 2: limits said what must hold; write fail_if with what fails, as in --fail-if: 'server auroc.low > 0.6' instead"),
    "a gate that is a number": ("matrix: {method: fedavg}\nfail_if: [3]", "line 2: a gate must be a text"),
    "no list of gates": ("matrix: {method: fedavg}\nfail_if: leak", "line 2: fail_if must be a list"),
    "too many cells": (f"matrix: {{method: fedavg, seed: {list(range(MOST + 1))}}}", f"the matrix has more than {MOST} cells"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_one_sentence_with_the_line(text: str, said: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    assert cli.main(["--nightly", str(path), "--out", str(tmp_path / "out")]) == exits.MENDABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --nightly {path}")
    assert said in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nightly {0} --method fedavg", "--method: has no place beside --nightly"),
        ("--nightly {0} --paper all", "--paper: has no place beside --nightly"),
        ("--nightly {0}.not", "cannot be read (No such file or directory)"),
        ("--nightly", "has no value behind it"),
    ],
)
def test_words_that_have_no_place(words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("matrix: {method: fedavg}")
    assert cli.main(words.format(path).split()) == exits.MENDABLE
    assert said in capsys.readouterr().err


def test_where_workers_run_is_said_beside_the_file(tmp_path: Path) -> None:
    """And wins over the file: the same matrix runs on a laptop and on a cluster."""
    path = tmp_path / "m.yaml"
    path.write_text("base: {method: promptfl, epsilon: none, engine: local, keep_rounds: all}\nmatrix: {seed: [0, 1]}")
    words = ["--nightly", str(path), *"--engine ray --worker-cpus 2 --keep-rounds=last --out".split(), str(tmp_path)]
    night = nightly.read(words, lambda cell: cli.read_command(cell).plan)
    plans = [cell.plan for cell in night.matrix.cells]
    assert [(p.engine, p.worker_cpus, p.keep_rounds, p.seed) for p in plans] == [("ray", 2, "last", s) for s in (0, 1)]
    with pytest.raises(InputError, match="--keep-rounds: 'none' must be all, last or every:N"):
        nightly.read([w.replace("=last", "=none") for w in words], lambda cell: cli.read_command(cell).plan)
    (tmp_path / "c.yaml").write_text("nightly: m.yaml")
    with pytest.raises(InputError, match="nightly does not go into a file"):
        cli.read_command(["--config", str(tmp_path / "c.yaml")])
