"""Gates for continuous integration, on findings made by hand."""

import re
import shlex
from pathlib import Path

import pytest

import fedaudit
from fedaudit.command import cli
from fedaudit.command.gates import parse
from fedaudit.machinery.errors import InputError
from tests.kept_runs import LORA

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

ROOT = Path(__file__).parent.parent

COMMON = {"method": "fedavg", "seed": 0, "way": "final", "population": "all members", "signal": "loss", "status": "ok"}


def finding(threat, metric, value, low, high, **more):
    given = {"headline": True, "nonmembers": "held-out", "verdict": "leak"}
    return COMMON | given | {"threat_model": threat, "metric": metric, "value": value, "low": low, "high": high} | more


FINDINGS = [
    finding("released-model", "auroc", 0.62, 0.55, 0.69), finding("server", "auroc", 0.90, 0.85, 0.95),
    finding("server", "auroc", 0.99, 0.98, 1.00, nonmembers="novel objects", verdict="confounded"),
    finding("owner", "auroc", 0.97, 0.96, 0.99, headline=False),
    finding("server", "tpr@1%", 0.30, 0.10, 0.50, verdict=None),
    finding("server", "tpr@0.1%", None, None, None, status="not measurable (75)", verdict=None),
]  # fmt: skip
ACCURACIES = [
    {"method": "dpfpl", "seed": 1, "metric": "accuracy/local", "value": 40.0, "low": 33.75, "high": 46.25},
    {"method": "dpfpl", "seed": 1, "metric": "accuracy/neighbour", "value": 30.0, "low": None, "high": None},
]


@pytest.mark.parametrize(
    ("gate", "crossed"),
    [
        ("auroc > 0.6", 2),
        ("auroc.low > 0.6", 1),
        ("auroc.high > 0.7", 1),
        ("auroc > 0.9", 0),
        ("auroc >= 0.9", 1),
        ("released-model auroc > 0.6", 1),
        ("released-model auroc.low > 0.6", 0),
        ("server auroc.low>0.8", 1),
        ("auroc < 0.7", 1),
        ("auroc.low <= 0.55", 1),
        ("tpr@1% > 0.2", 1),
        ("tpr@1%.low > 0.2", 0),
        ("  tpr@1%.high>=5e-1 ", 1),
        ("accuracy/local < 50", 1),
        ("accuracy/local.low < 33.7", 0),
        ("accuracy/local.low < 33.8", 1),
        ("accuracy/neighbour >= 30", 1),
    ],
)
def test_counts_accuracies_and_headline_rows_against_held_out_records(gate, crossed):
    assert len(parse(gate).crossed([*FINDINGS, *ACCURACIES])) == crossed


def test_the_reason_names_gate_row_and_numbers():
    (reason,) = parse("auroc.low > 0.6").crossed(FINDINGS)
    wanted = ("auroc.low > 0.6", "fedavg", "server", "loss", "0.900 [0.850, 0.950]", "leak")
    assert all(word in reason for word in wanted)
    (reason,) = parse("accuracy/local < 50").crossed(ACCURACIES)
    assert reason == "accuracy/local < 50: dpfpl (seed 1): accuracy/local 40.0 [33.8, 46.2]"


@pytest.mark.parametrize(
    ("gate", "verdicts", "crossed"),
    [
        ("leak", ("leak", "no leak found"), 1),
        ("leak", ("leak, score reversed", "leak"), 2),
        ("server leak", ("leak", "no leak found"), 0),
        ("server leak", ("no leak found", "leak"), 1),
        (" released-model  leak ", ("leak", "leak"), 1),
        ("leak", ("inconclusive", "confounded"), 0),
        ("leak", (None, "no leak found"), 0),
    ],
)
def test_leak_goes_by_the_verdicts_of_headline_rows(gate, verdicts, crossed):
    found = [{**f, "verdict": word} for f, word in zip(FINDINGS[:2], verdicts, strict=True)]
    rest = [finding("server", "auroc", 0.9, 0.8, 1.0, headline=False), FINDINGS[2] | {"verdict": "leak"}, FINDINGS[4]]
    assert len(parse(gate).crossed([*found, *rest])) == crossed


def test_a_gate_that_nothing_answers_is_an_error_and_no_pass():
    gates = ("tpr@0.1% > 0", "owner auroc > 0.5", "balanced_accuracy > 0.5")
    for gate in (*gates, "accuracy/neighbour.low < 50", "accuracy/overall < 50"):
        with pytest.raises(InputError, match="nothing in this run can answer it"):
            parse(gate).crossed([*FINDINGS, *ACCURACIES])
    with pytest.raises(InputError, match=r"nothing in this run can answer it .not measurable .9"):
        parse("leak").crossed([finding("server", "auroc", None, None, None, verdict=None, status="not measurable (9)")])


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ("auroc", "not understood"),
        ("auroc > much", "much is no number"),
        ("auroc > 60", "between 0 and 1"),
        ("auc > 0.6", "no metric auc.*auroc"),
        ("accuracy/locall > 50", "no metric accuracy/locall.*accuracy/local"),
        ("accuracy/local > 101", "between 0 and 100"),
        ("server accuracy/local > 50", "accuracy/local is of no threat model"),
        ("sever auroc > 0.6", "no threat model sever.*'server'"),
        ("sever leak", "no threat model sever.*'server'"),
        ("server x leak", "not understood"),
    ],
)
def test_what_is_no_gate(gate, words):
    with pytest.raises(InputError, match=rf"--fail-if .*{words}"):
        parse(gate)


def lines_with_gates():
    """The commands of README and docs that have a gate."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
    return sorted({m for text in texts for m in re.findall(r"audit\.py (.*?--fail-if \"[^#\n]*\")", text)})


@pytest.mark.parametrize("line", lines_with_gates())
def test_a_gate_of_the_docs_can_be_answered(line):
    """TPR against the server's views of clients has a threshold of each client's reference records."""
    words = shlex.split(line)
    if "--run" in words:  # a folder of the reader's own
        assert parse(words[words.index("--fail-if") + 1]).metric == "auroc"
        return
    command = cli.read_command(words)
    assert command.gates
    for gate in command.gates:
        rate = re.fullmatch(r"tpr@(.*)%", gate.metric)
        assert rate is None or command.plan.task_params.reference * float(rate[1]) >= 100


def test_a_run_answers_the_gates_of_the_docs(kept_lora):
    lines = [line for line in lines_with_gates() if "fedrand" in line]
    texts = {gate.text for line in lines for gate in cli.read_command(shlex.split(line)).gates}
    assert len(texts) >= 2
    fedaudit.audit(**LORA, fail_if=sorted(texts), out=kept_lora.out)  # raises where there is no answer


@pytest.mark.parametrize("kind", ["provable", "claimed"])
def test_no_epsilon_is_exceeded_where_nothing_is_noised(kind):
    """Known before anything is trained; with noise in one of two trainings it is not known."""
    words = ["--method", "promptfl", "--attack", "loss", "--canaries", "20", "--fail-if", f"measured > {kind}"]
    with pytest.raises(InputError, match=f"no finite epsilon is {kind}; add --epsilon"):
        cli.read_command([*words, "--epsilon", "none"])
    assert all(cli.read_command([*words, "--epsilon", level]).gates for level in ("none,2", "2"))
