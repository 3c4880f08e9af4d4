"""Bad command lines, as a user or an unset shell variable gives them: a sentence names the flag, nothing is written."""

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedaudit.audits.facts import AUDITS
from fedaudit.command import cli, compare_runs, nightly, paper
from fedaudit.command.flags import Parser
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.workers import Workshop
from fedaudit.tasks.facts import TASKS
from fedaudit.trainers.learners import METHODS

LONG = "x" * 300  # more than a file's name may have
LINES = {
    **{line: (line, flag) for flag, lines in {  # which the sentence names
        # holes, and what is said twice
        "--method": (
            "--method fedavg,,fedrand", "--method :rho=0.3", "--method fedrand:=0.3", "--method fedrand:rho=",
            "--method Local", "--method fedper:shared_layers=2:shared-layers=4", "--method fedrand:rho=0,fedrand:rho=0",
        ),
        "--attack": ("--method dpfpl --attack lira,,loss",),
        "--past": ("--past --no-past",),
        "--domain": ("--paper dpfpl:figure3 --domain print",),  # a figure's own flag
        # numbers that are none, or none that a machine should be given
        "--epsilon": (
            "--method dpfpl --epsilon 0.1,,0.4", "--method dpfpl --epsilon 0.1,nan", "--method zeroshot --epsilon 0.1",
        ),
        "--rounds": (
            f"--rounds {10**23}", "--rounds 1_000", "--rounds ٣", "--rounds 2.0", "--rounds=3 --rounds 4",
            "--rounds --quiet",
        ),
        "--seed": (f"--seed {10**23}",),
        "--threads": (f"--threads {10**23}", "--threads 1000000"),
        "--learning-rate": ("--learning-rate 1e400",),
        # what would be cut down without a word
        "--targets": ("--method dpfpl --attack lira --targets 99",),
        "--shared-layers": (
            "--method fedper --shared-layers 7", "--method fedper --backbone {model} --shared-layers 3",
        ),
        "--observed-rounds": ("--method dpfpl --attack cosine --rounds 10 --observed-rounds 11",),
        "--solved-rounds": ("--method dpfpl --attack decompose --rounds 4 --solved-rounds 5",),
        "--last": ("--method dpfpl --rounds 5 --last 6",),
        "--per-round": ("--clients 3 --per-round 4",),
        # what would have no effect
        "--rho": ("--rho 0x1p-2", "--method fedrand:rho=0.3,fedavg --rho 0.7"),
        "--canary-kind": ("--canary-kind natural",),
        "--dirichlet": ("--method dpfpl --partition pathological --dirichlet 0.1",),
        "--local-steps": ("--local-epochs 1 --local-steps 4",),
        "--weights": ("--method dpfpl --backbone vit --weights openai", "--weights openai"),
        "--list": ("--list --method fedavg",),
        "--fail-if": (
            "--fail-if 'auroc > 1e400'", "--fail-if ' > 0.6'", "--fail-if 'auroc > 0.6' --fail-if 'auroc > much'",
            # that nothing answers
            "--fail-if 'accuracy/local < 50'", "--method dpfpl --fail-if 'auroc > 0.6'",
            "--fail-if 'prompt-user auroc > 0.6'", "--method dpfpl --attack cosine --fail-if 'prompt-user auroc > 0.6'",
        ),
        "--holdout 0": ("--method dpfpl --holdout 0 --attack loss", "--method dpfpl --holdout 0 --canaries 20"),
        "--holdout": ("--method fedavg --holdout 0",),
        "--reference-share": ("--method dpfpl --holdout 0 --reference-share 0.3",),
        "--preset paper": ("--preset paper --method dpfpl",),
        "--preset dpfpl-ablation": ("--preset dpfpl-ablation --method fedavg",),
        # combinations and names
        "--run": ("--preset paper --run {folder}",),
        "--preset": ("--preset ../presets/paper",),
        "--config": ("--config {folder}",),
        "--backbone-code": ("--backbone-code {folder}",),
        "--export-run": ("--export-run {good}", "--export-run {good}/x"),
        "--export-adapters": ("--export-run {out} --export-adapters {out}",),
        "--out": ("--out {good}", "--out '\udcff'", "--out 'a\0b'"),
        "--round": ("--round 3",),
        "--no-rho": ("--no-rho",),
    }.items() for line in lines},
    "rounds of 5,000 digits": ("--rounds {digits}", "--rounds"),
    "an empty word alone": ("''", "empty word"),
    "epsilon of a label": ("--method dpfpl:epsilon=0", "epsilon must be at least 1e-06 and at most 1000000, or none"),
    "clip norm of a label": ("--method dpfpl:clip_norm=1e300", "clip_norm must be at least 1e-06 and at most"),
    "a flag of half a letter": ("'--\udcff' 3", "\\udcff"),
    "a word of half a letter": ("'\udcff'", "\\udcff"),
    # names that are too long
    "out of 300 letters": (f"--out {{out}}/{LONG}", "--out"),
    "out of 5,000 letters": (f"--out {{out}}/{'/'.join(['folder'] * 700)}", "--out"),
    "out of 100 letters of four bytes": (f"--out {{out}}/{'𝕏' * 100}", "--out"),
    **{
        f"{flag} of 300 letters": (f"{before} {flag} {LONG}", flag)
        for before, flags in {
            "": "--run --config --backbone --backbone-code --export-run --export-adapters",
            "--method dpfpl --backbone RN50": "--weights",
            "--task coco": "--data-root --nocaps-root",
        }.items()
        for flag in flags.split()
    },
    "label of 300 letters": (f"--method fedrand:rho=0.5{'0' * 300}", "--method"),
    "more layers, of a label": ("--method fedavg,fedper:shared_layers=99", "shared_layers"),
    **{
        f"{flag} that nobody needs": (f"--method dpfpl {words}", flag)
        for words in (
            "--attack loss --shadows 8", "--attack cosine --shadow-kind federations", "--attack loss --trajectory observed",
            "--attack loss --observed-rounds 5", "--attack cosine --solved-rounds 5", "--epsilon none --delta 1e-6",
            "--epsilon none --clip batch", "--epsilon none --clip-norm 5", "--epsilon inf --sigma calibrated",
        )
        for flag in words.split()[2:3]
    },
    "share of tokens where there is one": ("--method fedotp --attack maxrenyi --k 20", "--k: has no effect, since a record here is one"),
    "holdout of a third": ("--method dpfpl --holdout 0.33", "holdout"),
    "own run is a file": ("--run {good}", "good: no such folder"),
    "own run is an empty folder": ("--run {folder}", "folder/run.json"),
    # dashes
    "two dashes": ("-- --rounds 5", "--: no such option"),
    "switch with a value": ("--quiet=yes", "takes no value; leave out 'yes'"),
    "value that begins with a dash": ("--task -x", "--task: has no value behind it; one that begins with a dash is written --task=-VALUE"),
    "negative number with an exponent": ("--rho -1e-3", "written --rho=-VALUE"),
    "two dashes of a label": ("--method fedrand:rho=--", "--method fedrand:rho=--: --rho: two dashes"),
    "two dashes behind a switch": ("--quiet --", "--quiet: two dashes"),
    "two dashes beside a comparison": ("--audit curves -- --quiet", "--: no such option"),
}  # fmt: skip

CONFIGS = {
    "a key twice": ("rounds: 3\nrounds: 4\n", "rounds"),
    "a key twice, spelt otherwise": ("per_round: 1\nper-round: 2\n", "--per-round"),
    "a switch on and off": ("past: true\nno_past: true\n", "--past"),
    **{f"{key} inside": (f"{key}: x\n", f"{key} does not go into a file") for key in ("config", "paper")},
    "a key that is a number": ("3: 4\n", "mapping"),
    "an empty out": ("out: ''\n", "--out"),
    "no methods": ("method: []\n", "method"),
    "a null among methods": ("method: [fedavg, null]\n", "method"),
    "a hole among methods": ('method: [fedavg, ""]\n', "--method"),
    "a list among methods": ("method: [fedavg, [fedrand]]\n", "method"),
    "an empty key": ('"": 3\n', "option"),
    "a NUL": ('out: "a\\0b"\n', "--out"),
    "a number of 5,000 digits": (f"seed: {'9' * 5000}\n", ""),
    "a set": ("method: !!set {fedavg, fedrand}\n", "method"),
    "a tag of Python": ("method: !!python/object/apply:os.getcwd []\n", ""),
    "nothing": ("", "mapping"),
    "two documents": ("rounds: 3\n---\nrounds: 4\n", ""),
    "deeper than any stack": ("rounds: " + "[" * 1500 + "]" * 1500 + "\n", ""),
    "two dashes as a method": ('method: "--"\n', "--method: two dashes"),
    "two dashes in a list": ("method: dpfpl\nepsilon: ['--']\n", "--epsilon: two dashes"),
    "two dashes as a gate": ("fail_if: ['auroc > 0.6', '--']\n", "--fail-if: two dashes"),
    "two dashes as a switch": ('quiet: "--"\n', "--quiet: two dashes"),
}

MODEL = '{"model_type": "llava", "text_config": {"num_hidden_layers": 2}}'


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A door that is open fails its test at once instead of training."""
    monkeypatch.setattr(Workshop, "executor", property(lambda workshop: pytest.fail("a run began")))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """What the lines name, beside an empty current folder where nothing may be left."""
    given, here = tmp_path / "given", tmp_path / "here"
    for folder in (given, here, given / "folder", given / "model"):
        folder.mkdir()
    (given / "good").write_text("rounds: 3\n")
    (given / "model" / "config.json").write_text(MODEL)
    for name in ("processor_config.json", "tokenizer.json"):
        (given / "model" / name).write_text("{}")
    (given / "model" / "weights.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    monkeypatch.chdir(here)
    before = sorted(given.rglob("*"))
    yield {"out": tmp_path / "out", **{name: given / name for name in ("good", "folder", "model")}}
    assert sorted(tmp_path.iterdir()) == [given, here]
    assert list(here.iterdir()) == []
    assert sorted(given.rglob("*")) == before


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert re.fullmatch("error: .{,1500}\n", said.err), said.err
    assert said.out == ""
    return said.err


@pytest.mark.parametrize("case", LINES, ids=ascii)
def test_a_line(case: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    line, named = LINES[case]
    words = [word.format(**places, digits="9" * 5000) for word in shlex.split(line)]
    out = [] if "--out" in words or "--list" in words else ["--out", str(places["out"])]
    assert named in refused([*out, *words], capsys)


@pytest.mark.parametrize("case", CONFIGS)
def test_a_configuration_file(case: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text, named = CONFIGS[case]
    file = places["good"]
    file.write_text(text)
    out = [] if "out" in text else ["--out", str(places["out"])]
    assert named in refused(["--config", str(file), *out], capsys)


def commands(folder: Path) -> list[list[str]]:
    """For every parser: all methods, tasks and audits, somebody's own run, and what trains nothing."""
    everything = ["--attack=all", "--audit=all"]
    return [
        [],
        *([f"--method={name}", *everything] for name in METHODS),
        *([f"--task={name}"] for name in TASKS),
        *([f"--audit={name}"] for name, audit in AUDITS.items() if audit.facts.across),
        [f"--run={folder}", *everything],
        [f"--nightly={folder}"],
        ["--paper=all"],
        ["--paper=dpfpl:table2"],
    ]


def read_of_all(words: list[str]) -> Any:
    papers = compare_runs.read(words) or paper.read(words, lambda own, scale: cli.read_command(own, scale).plan)
    return papers or cli.read_command(words).plan.cells


def flags_of(words: list[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    flags: set[str] = set()
    read = Parser.parse_known_args

    def recorded(parser: Parser, *given: Any, **named: Any) -> Any:
        flags.update(flag for flag in parser._option_string_actions if flag != "-h")
        return read(parser, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Parser, "parse_known_args", recorded)
        with contextlib.suppress(InputError):
            nightly.read(words, lambda cell: cli.read_command(cell).plan) or read_of_all(words)
    return flags


def test_nothing_and_two_dashes_as_the_value_of_any_flag(places: Any, monkeypatch: Any, capsys: Any) -> None:
    """Nothing, as `--run "$RUN"` gives where RUN is not set, and two dashes, which argparse drops."""
    tried: set[tuple[str, str]] = set()
    for words in commands(places["folder"]):
        kind = words[0] if words and words[0].startswith(("--run", "--nightly", "--paper", "--audit")) else ""
        for flag in sorted(flags_of(words, monkeypatch) - {flag for of, flag in tried if of == kind}):
            tried.add((kind, flag))
            others = [word for word in words if word.partition("=")[0] != flag]
            for bad in ([*others, f"{flag}="], [flag, "  ", *others]):
                assert f"{flag}: " in refused(bad, capsys), bad
            for bad in ([*others, f"{flag}=--"], [flag, "--", *others]):
                assert flag in refused(bad, capsys), bad
    assert {"--method", "--shadows", "--rho", "--newcomers", "--data-root", "--linked-files"} < {f for _, f in tried}


GOOD = (
    "", "--method fedrand", "--attack all", "--attack reconstruct --ways newest", "--method 'fedavg, fedrand'", "--order inf", "--k=0",
    "--rho .5", "--rho 5e-1", "--rho=+0.5", "--rho 1.", "--weight-decay 0", "--seed 4294967296", "--seed -0", "--seeds 3 --seed 7",
    "--threads 64", "--past", "--no-past", "--method fedrand:past=false,fedrand", "--method fedrand:rho=0.3,fedrand --rho 0.7",
    "--method fedper --shared-layers 6", "--method fedper,fedper:shared-layers=4", "--local-epochs 2", "--local-epochs 0 --local-steps 4",
    "--preset paper", "--preset paper --rounds 5 --clients 20", "--preset fedrand-tables --task vqa --dirichlet 0.1", "--preset embedded",
    "--method dpfpl --holdout 0",
    "--preset dpfpl-tables", "--preset dpfpl-tables --holdout 0.5 --attack loss",
    "--preset dpfpl-ablation --epsilon none", "--preset dpfpl-tables --method dpfpl --no-twin",
    "--preset dpfpl-figure3 --attack loss", "--preset dpfpl-figure3 --clients 2 --targets 2",
    "--method dpfpl --epsilon none", "--method dpfpl --epsilon inf,0.1", "--method dpfpl --epsilon none --no-twin",
    "--method dpfpl --epsilon none,0.1 --delta 1e-6 --clip batch", "--method zeroshot,local --epsilon 0.1,0.4",
    "--method dpfpl:epsilon=0.1 --delta 1e-6", "--method dpfpl --epsilon none --sampler poisson", "--method zeroshot",
    "--method zeroshot --epsilon none",
    "--method dpfpl --attack lira --targets 10 --shadows 8 --trajectory observed", "--method dpfpl --attack loss --targets 10",
    "--method dpfpl --attack cosine --rounds 10 --observed-rounds 10", "--method dpfpl --attack cosine --rounds 2",
    "--method dpfpl --attack decompose --solved-rounds 9", "--method dpfpl --attack shadow --rounds 2", "--method dpfpl --rounds 3 --last 3", "--method dpfpl --partition dirichlet --dirichlet 0.1",
    "--method dpfpl --partition dominant --shots 8", "--method dpfpl --domain print+neon", "--method dpfpl --backbone vit",
    "--method dpfpl --backbone resnet", "--method dpfpl --backbone RN50 --weights random", "--canaries 4 --canary-kind natural",
    "--fail-if 'auroc.low > 0.6' --fail-if 'auroc.low > 0.6'", "--fail-if 'owner auroc > 0.99'", "--fail-if 'tpr@10%.high>=5e-1'",
    "--method dpfpl --fail-if 'accuracy/local.low < 50'", "--method dpfpl --attack lira --fail-if 'prompt-user auroc.low > 0.6'",
    "--method dpfpl --attack lira,cosine --fail-if 'server auroc > 0.9'", "--quiet --dry-run", "--no-quiet --no-dry-run", "--debug",
    "--export-run new", "--export-run new --export-adapters newer", "--export-run new --dry-run", "--fail-if 'auroc > 0.6' --dry-run",
    "--out 'a folder'", "--out münchen/𝕏", "--out ../elsewhere", "--out=--odd", "--device cpu --threads 1", "--target-modules q_proj,v_proj",
    "--paper dpfpl:figure3 --seeds 3 --targets 4 --rounds 10", "--paper dpfpl:figure3 --preset dpfpl-figure3 --shadows 8",
)  # fmt: skip
FILES = (
    "method: [fedavg, fedrand]\nper_round: 2\npast: false\nquiet: true\n", "preset: paper\nrounds: 5\n", "fail_if: auroc.low > 0.6\n", "{}\n",
    "fail-if: [auroc.low > 0.6, 'auroc > 0.9']\nexport_run: new\n", "method: dpfpl\nepsilon: [none, 0.1, .inf]\nno_twin: true\n",
    "method: dpfpl\nattack: [lira, loss]\nshadows: 8\n", "seed: 0x10\nrounds: 5 # a few\n", "\ufeffrounds: 5\n", "dry_run: false\nquiet: false\n",
)  # fmt: skip
"""Of configuration files; each is also read beside flags that win over it."""


def test_good_lines(places: dict[str, Path]) -> None:
    for words in map(shlex.split, GOOD):
        assert read_of_all(words), words


def test_good_configuration_files(places: dict[str, Path]) -> None:
    for text in FILES:
        places["good"].write_text(text, encoding="utf-8")
        others = "--method promptfl --attack loss --epsilon none" if "dpfpl" in text else "--seed 1"
        for more in ("", "--rounds 7", others):
            assert cli.read_command(["--config", str(places["good"]), *more.split()]).plan.cells, (text, more)
