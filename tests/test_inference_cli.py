"""The command line of attacks on prompts: what may be combined, what is refused in one sentence, which key what changes, and the dry run."""

import dataclasses
import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from safetensors import safe_open

from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.settings import Adversary
from fedaudit.backbones import clip_images
from fedaudit.command import attack_times, cli, dry_run
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import permitted
from fedaudit.pipeline.finished import COMPLETE
from fedaudit.pipeline.shadow_models import NoEvaluation
from fedaudit.pipeline.workers import federation_of, make_bench
from fedaudit.reports import paper_items
from fedaudit.terms.threat_models import THREAT_MODELS
from tests.small_run import small_run
from tests.test_cli import check_bad

PROMPTS = [name for name, plugin in ATTACKS.items() if "classes" in plugin.facts.records]
LORA = [name for name, plugin in ATTACKS.items() if "texts" in plugin.facts.records]
STRONGEST_FIRST = "decompose lira rmia loss cosine fedmia gradnorm maxrenyi quantile shadow slope source trajectory entropy outputfree".split()

BAD = {
    "one of several misspelt": ("--attack lira,shadw", ["--attack shadw", "'shadow'"]),
    "attack twice": ("--attack lira,loss,lira", ["--attack lira,loss,lira", "once"]),
    "all and one": ("--attack all,lira", ["--attack all,lira", "all stands alone"]),
    "attack on prompts": (
        "--method fedavg --attack gradnorm", ["--attack gradnorm", "adapters", f"valid there: {', '.join((*LORA, 'all'))}"],
    ),
    "the same twice on prompts": ("--attack loss,reconstruct", ["--attack", "loss or reconstruct, not both; loss does"]),
    "ways on prompts": ("--attack reconstruct --ways newest", ["--ways", "one token"]),
    "several on adapters": ("--method fedavg --attack maxrenyi,reconstruct", ["--attack", "not both"]),
    "a run that is not there": ("--run nowhere --attack lira", ["nowhere", "no such folder"]),
    "another attack's option": ("--attack lira --hidden 8", ["--hidden", "is of --attack shadow"]),
    "adversary without attack": ("--shadows 8", ["--shadows", "is of an --attack on prompts"]),
    "adversary of adapters": ("--method fedavg --attack maxrenyi --shadows 8", ["--shadows", "no effect", "maxrenyi"]),
    "more trajectories than shadows": (
        "--attack lira --shadows 8 --shadow-trajectories 9", ["--shadow-trajectories", "at most", "8", "9"],
    ),
    "trajectories without shadows": ("--attack loss --shadow-trajectories 2", ["--shadow-trajectories", "no shadow models"]),
    "trajectories of federations": (
        "--attack lira --shadow-kind federations --shadow-trajectories 2", ["--shadow-trajectories", "no effect", "federations"],
    ),
    "trajectories that are observed": (
        "--attack lira --trajectory observed --shadow-trajectories 2", ["--shadow-trajectories", "no effect", "observed"],
    ),
    "federations that are observed": (
        "--attack lira --shadow-kind federations --trajectory observed --dry-run", ["--trajectory", "simulated", "federations"],
    ),
    "more canaries than candidates": ("--canaries 5000", ["--canaries 5000", "client-00", "valid here are 0 to"]),
    "exporting canaries": ("--method fedavg --canaries 4 --export-run {export}", ["--export-run", "--canaries"]),
    "paper unknown": ("--paper dpfpl:figure33", ["--paper dpfpl:figure33", "'dpfpl:figure3'"]),
    "paper of nobody": ("--paper figure", ["--paper figure", *paper_items.items()]),
    **{f"paper and {flag}": (f"--paper dpfpl:figure3 {flag} x", [flag, "--paper dpfpl:figure3"]) for flag in ("--method", "--task", "--attack", "--run")},
    "paper and gate": ("--paper dpfpl:figure3 --fail-if auroc>0.6", ["--fail-if", "--paper dpfpl:figure3"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, capsys: Any, tmp_path: Path) -> None:
    words, wanted = BAD[case]
    usual = "" if {"--method", "--paper", "--run"} & {*words.split()} else " --method dpfpl"
    check_bad((words + usual, wanted), capsys, tmp_path)


def plan_of(words: str) -> Any:
    return cli.read_command(words.split()).plan


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dpfpl", []),
        ("dpfpl --attack none", []),
        ("dpfpl --attack shadow,lira,cosine", ["shadow", "lira", "cosine"]),
        ("fedavg", ["maxrenyi"]),
        ("fedavg --attack loss,reconstruct", ["loss", "reconstruct"]),
    ],
)
def test_attacks_by_their_names(words: str, expected: list[str]) -> None:
    plan = plan_of(f"--method {words}")
    assert (list(plan.attacks), plan.attack) == (expected, ",".join(expected) or None)
    assert ("membership" in plan.audits) == bool(expected)


def test_of_all_the_strongest_come_first() -> None:
    """A new attack takes its place among those that are known."""
    adapters = "lira rmia loss cosine fedmia maxrenyi projres quantile shadow slope source entropy".split()
    for method, known in {"dpfpl": STRONGEST_FIRST, "fedavg": adapters}.items():
        found = plan_of(f"--method {method} --attack all").attacks
        assert [name for name in found if name in known] == known
        strengths = [ATTACKS[name].facts.strength for name in found]
        assert strengths == sorted(strengths, reverse=True)


def test_the_adversary_of_a_configuration_file_and_by_default_the_papers(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("method: fedotp\nattack: [lira, shadow]\nshadows: 8\ntrajectory: observed\nhidden: 16\ntargets: 3")
    plan = plan_of(f"--config {file} --targets 1")
    assert list(plan.attacks) == ["lira", "shadow"]
    assert plan.adversary == Adversary(targets=1, shadows=8, trajectory="observed")
    assert plan.attacks["shadow"].hidden == 16
    papers = Adversary(targets=0, shadows=50, shadow_kind="clients", trajectory="simulated", observed_rounds=20)
    assert plan_of("--method dpfpl --attack shadow").adversary == papers


USUAL = "--attack shadow"
MOVED = [  # of the keys of training, analysis and shadow models
    *((words, {1}) for words in (
        "--attack lira", "--attack shadow,cosine --observed-rounds 5", f"{USUAL} --hidden 16", f"{USUAL} --targets 3",
    )),
    *((f"{USUAL} {more}", {1, 2}) for more in ("--shadows 8", "--shadow-kind federations", "--trajectory observed")),
    *((f"{USUAL} {more}", {0, 1, 2}) for more in (
        "--rounds 9", "--rank 4", "--canaries 10", "--train 12", "--batch 4", "--seed 1",
    )),
]  # fmt: skip


class TestKeys:
    """What is trained again, and what is read back."""

    @staticmethod
    def keys(words: str) -> tuple[str, str, Path]:
        cell = plan_of(f"--method dpfpl --epsilon none {words}").cells[-1]
        return cell.training_key, cell.analysis_key, cell.bank_folder

    @pytest.mark.parametrize(("words", "moved"), MOVED)
    def test_what_moves(self, words: str, moved: set[int]) -> None:
        """Another attack retrains nothing, other shadows are trained for the same training, another recipe takes all."""
        pairs = zip(self.keys(USUAL), self.keys(words), strict=True)
        assert {i for i, (one, other) in enumerate(pairs) if one != other} == moved

    def test_another_training_seed_shares_them_unless_its_messages_are_observed(self) -> None:
        usual, other = self.keys(USUAL), self.keys(f"{USUAL} --seeds 2")
        assert other[0] != usual[0]
        assert other[2] == usual[2]
        observed = f"{USUAL} --trajectory observed"
        assert self.keys(observed)[2] != self.keys(f"{observed} --seeds 2")[2]

    def test_the_order_of_attacks_moves_the_analysis_and_who_is_attacked_no_utility_audit(self) -> None:
        first, second = (self.keys(f"--attack {names}") for names in ("loss,lira", "lira,loss"))
        assert (first[0] == second[0], first[1] == second[1]) == (True, False)
        cell = plan_of("--method dpfpl --epsilon none").cells[0]
        plan = dataclasses.replace(cell.plan, adversary=Adversary(targets=1))
        assert plan.cells[0].analysis_key == cell.analysis_key


def test_the_listing_says_what_every_threat_model_sees_and_of_whom_it_is_one(capsys: Any) -> None:
    assert cli.main(["--list"]) == 0
    said = capsys.readouterr().out.split("threat models, what each sees")[1].split("attacks under threat models")[0]
    rows = {line.split()[0]: line for line in said.splitlines()[1:]}
    assert rows.keys() == {*THREAT_MODELS}
    only = {name: found[1] for name, line in rows.items() if (found := re.search(r"\(of ([^)]*) only\)$", line))}
    assert only == {
        "prompt-user": "dual prompts and prompts", "peer": "dual prompts", "active-server": "prompts",
        "clustering-server": "methods on secret shares", "colluding-users": "methods on secret shares",
    }  # fmt: skip


LIGHT = (
    "--list", "--list attacks", "--help", "--method dpfpl --attack all --help", "--paper dpfpl:figure3 --help",
    "--method dpfpl --attack lira,shdow", "--method dpfpl --attack lira --shadows 1", "--paper dpfpl:figure99",
)  # fmt: skip
HEAVY = {*"torch transformers rich jinja2 PIL open_clip numpy pandas matplotlib sklearn scipy".split()}


def test_words_are_answered_without_anything_heavy() -> None:
    code = (
        "import sys; from fedaudit.command import cli\n"
        f"for words in {LIGHT}:\n"
        "    try: cli.main(words.split())\n"
        "    except SystemExit: pass\n"
        f"    print('HEAVY', words, {HEAVY} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    *parts, end = re.split(r"^HEAVY (.*) set\(\)\n", done.stdout, flags=re.MULTILINE)
    assert (tuple(parts[1::2]), end) == (LIGHT, ""), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for said, words in zip(parts[::2], parts[1::2], strict=True):
        if words.endswith("--help"):
            assert all(flag in said for flag in ("--shadows", "--targets", "--canaries")), words


class TestPictures:
    """A dry run encodes one batch of missing pictures and counts the others."""

    def test_all_stages_are_counted_from_their_first_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seconds = iter([0.0, 2.0, 2.0, 5.0])
        monkeypatch.setattr(dry_run.time, "perf_counter", lambda: next(seconds))
        clock = dry_run.Clock(quiet=True)
        for batches in (10, 6):  # features, then tokens
            with clock.stage(dry_run.ENCODING, batches, "batch") as advance:
                advance()
        assert clock.encoding(2) == (10 * 2 + 6 * 3) / 2

    def test_a_batch_is_kept_and_the_rest_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dry_run, "SILENT", 0.0)
        words = "--method promptfl --epsilon none --clients 3 --train 12 --test 2 --rounds 1 --threads 1"
        plan = plan_of(f"{words} --out {tmp_path}")
        assert "of it for encoding the pictures" in dry_run.estimate(plan, Progress(quiet=True))
        (file,) = (tmp_path / "cache").glob("clip-*.safetensors")
        with safe_open(file, framework="pt") as opened:
            assert len(opened.keys()) == clip_images.BATCH


def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round takes 4 s, 3 s of them training, and a megabyte; a model takes 5 s for the records of a target, 10 s with their gradients; a
    round's messages say in 7 s what they say about them, and 30 s solve one."""
    pace = dry_run.Pace(seconds=4.0, bare=3.0, size=1e6)
    each = {"answers": 5.0, "gradients": 10.0, "messages": 7.0, "solved": 30.0}
    monkeypatch.setattr(dry_run, "_measured", lambda kinds, *_: (dict.fromkeys(kinds, pace), each))


@functools.cache
def tiny_federation() -> Any:
    """Of all commands of the dry run, which begin with the same words."""
    return federation_of(plan_of(f"{TestDryRun.TINY} --method dpfpl --attack lira"))


class TestDryRun:
    """With a pace of our own, so that minutes and megabytes can be worked out by hand."""

    TINY = "--clients 4 --train 4 --test 1 --rounds 30 --targets 2 --threads 2"

    @pytest.fixture(autouse=True)
    def _paced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paced(monkeypatch)

    def said(self, words: str, out: Path) -> str:
        return dry_run.estimate(self.plan(words, out), Progress(quiet=True))

    def plan(self, words: str, out: Path) -> Any:
        """DP-FPL without noise and with 8 shadows, but for what the words say."""
        said = {*words.split()}
        usual = "--method dpfpl" * ("--method" not in said) + " --epsilon none" * (not {"--method", "--epsilon"} & said)
        shadows = "--shadows 8" if "lira" in words and "--shadows" not in said else ""
        return plan_of(f"{self.TINY} {usual} {words} {shadows} --out {out}")

    CLIENTS = "shadow models to train, 8 for each target client and method"

    @pytest.mark.parametrize(
        ("words", "trained", "minutes", "megabytes"),
        [
            # 30 rounds of 4 s, simulated ones of 3 s, 8 shadows as 2 federations of four for each target, side by side:
            # 390 s. Each target's records are put to 4 models and the start, 12 more for a curve, twice 8 shadows, side
            # by side: 165 s. Two trainings of 30 rounds, and 16 shadows of a client each with twenty broadcasts
            ("", f"16 {CLIENTS}, along 1 simulated federation", 10, 144),
            # 4 trajectories of 90 s on two workers are 90 s more than one alone
            ("--shadow-trajectories 4", f"16 {CLIENTS}, along 4 simulated federations", 11, 234),
            # 120 s, 8 federations of 90 s on two workers, and 165 s
            ("--shadow-kind federations", "8 shadow federations to train", 11, 270),
            ("--trajectory observed", f"16 {CLIENTS}", 7, 114),
        ],
    )
    def test_shadows_are_counted(self, words: str, trained: str, minutes: int, megabytes: int, tmp_path: Path) -> None:
        said = self.said(f"--attack lira {words}", tmp_path)
        assert "0 on disk; 1 training to run: 30 rounds, 4 of 4 clients a round\n" in said
        assert f"{trained}\n" in said
        assert f"about {minutes} minutes with 2 workers\n" in said
        assert f"up to {megabytes} MB" in said
        assert list(tmp_path.iterdir()) == []

    def test_shadows_of_every_method_and_of_no_seed_and_a_trajectory_for_every_ten(self, tmp_path: Path) -> None:
        said = self.said("--attack lira --epsilon none,0.1 --seeds 3 --shadows 20", tmp_path)
        assert "6 trainings to run" in said
        assert "80 shadow models to train, 20 for each target client and method, along 4 simulated fed" in said

    @pytest.mark.parametrize(
        ("words", "time"),
        [
            ("--attack loss", "about 4 minutes with 2 workers"),  # 120 + 85 s
            ("--attack loss,cosine", "about 6 minutes with 2 workers"),  # and of 20 rounds the messages: 140 s
            # two adversaries look at what was sent to all, and the server at messages: 120 + 185 + 140 s
            ("--attack slope", "about 8 minutes with 2 workers"),
            # of four adversaries' models and the public one: 120 + 85 + 50 s
            ("--attack gradnorm", "about 5 minutes with 2 workers"),
            # the server alone asks 14 times, reads the messages, and solves the two of its first epochs: 70 + 140 + 60 s
            ("--attack decompose", "about 7 minutes with 2 workers"),
            ("--method zeroshot --attack lira", "about 2 minutes with 2 workers"),  # and no attack can run
        ],
    )
    def test_no_shadow_is_trained_where_nothing_needs_it(self, words: str, time: str, tmp_path: Path) -> None:
        said = self.said(words, tmp_path)
        assert "to train" not in said
        assert f"4 s a round, measured\n{time}\n" in said

    def test_what_is_seen_of_rounds_is_computed_of_a_simulated_federation_too(self, tmp_path: Path) -> None:
        """Of two targets: 20 rounds' messages, and those of two epochs, which are 2 here; with shadow models all of it twice."""
        observed = "decompose,lira --trajectory observed"
        for words, times in {"decompose": (40, 4, 1), "decompose,lira": (80, 8, 2), observed: (40, 4, 1)}.items():
            work = self.work(f"--attack {words}", tmp_path)
            assert (work["messages"], work["solved"], work["replays"]) == times, words

    def test_models_that_are_asked(self, tmp_path: Path) -> None:
        """Each target's own by four adversaries, the start, and of readers' curves the start again and ten rounds more; the shadows in
        two roles; of the slope what 20 rounds began with, to whom no message is shown."""
        loss = 4 + 1 + 12
        assert self.work("--attack loss", tmp_path)["answers"] == 2 * loss
        assert self.work("--attack loss,lira", tmp_path)["answers"] == 2 * (loss + 2 * 8)
        assert self.work("--attack loss,slope", tmp_path)["answers"] == 2 * (loss + 20)
        assert self.work("--attack gradnorm", tmp_path)["gradients"] == 2 * (4 + 1)
        assert self.work("--attack outputfree", tmp_path)["gradients"] == 2 * 4
        assert self.work("--attack gradnorm,lira", tmp_path)["gradients"] == 2 * (
            4 + 1 + 2 * 5
        )  # of five in both roles
        trajectory, lira = (self.work(f"--attack {name}", tmp_path)["answers"] for name in ("trajectory", "lira"))
        assert trajectory > lira + 2 * 20 * 8  # a shadow's broadcasts of 20 rounds, and everybody's

    def work(self, words: str, out: Path) -> dict[str, float]:
        alone = any(f"--attack {name}" in words for name in ("trajectory", "outputfree"))
        (cell,) = self.plan(words + " --shadows 8" * alone, out).cells
        return attack_times.work(cell, tiny_federation())

    def test_trainings_one_after_the_other(self, tmp_path: Path) -> None:
        """Two LoRA trainings share the workers: 240 s; each adversary asks as often as about 126 targets' records put to a model, for
        both: 1,260 s on four."""
        plan = plan_of(f"--method fedavg,fedper --rounds 30 --threads 4 --out {tmp_path}")
        said = dry_run.estimate(plan, Progress(quiet=True))
        assert "2 trainings to run: 30 rounds, 4 of 12 clients a round\n4 s a round, measured\n" in said
        assert "about 10 minutes with 4 workers\n" in said

    def test_what_is_on_disk_is_not_counted(self, tmp_path: Path) -> None:
        def done(*folders: Path) -> str:
            for folder in folders:
                folder.mkdir(parents=True)
                (folder / COMPLETE).write_text("[]")
            return self.said("--attack lira", tmp_path)

        (cell,) = self.plan("--attack lira", tmp_path).cells
        said = done(cell.training_folder, cell.bank_folder / "simulated-000", cell.bank_folder / "client-000-from-000")
        assert "0 trainings to run\n" in said
        assert f"8 {self.CLIENTS}\n" in said
        assert "about 6 minutes with 2 workers" in said
        said = done(cell.bank_folder / "client-001-from-000", cell.analysis_folder)
        assert "1 on disk; 0 trainings to run\nabout 1 minute with 2 workers\n" in said


class TestTimed:
    """On the plan's own model."""

    WORDS = "--clients 3 --train 4 --test 1 --rounds 4 --prompt-length 8 --threads 1"

    def test_variants_that_cost_the_same_are_timed_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tried, pace = list[str](), dry_run.Pace(seconds=1.0, bare=1.0, size=1.0)
        monkeypatch.setattr(dry_run, "_trial", lambda cell, *a, **k: tried.append(cell.method) or pace)
        known: dict[Any, Any] = {}
        plan = plan_of(f"{self.WORDS} --method dpfpl --epsilon none,0.1,0.4 --rank 1,2,8 --out {tmp_path}")
        assert len(plan.cells) == 9
        assert "9 trainings to run" in dry_run.estimate(plan, Progress(quiet=True), known)
        assert len(tried) == 2  # with noise and without
        more = {"dpfpl --epsilon 1 --rank 4 --seed 3": 2, "dpfpl --epsilon 1 --batch 4": 4, "fedotp --epsilon none": 5}
        for words, trials in more.items():
            dry_run.estimate(plan_of(f"{self.WORDS} --method {words} --out {tmp_path}"), Progress(quiet=True), known)
            assert len(tried) == trials, words

    ADAPTERS = "--clients 3 --per-round 2 --records 2 --reference 2 --novel 2 --test 1 --local-steps 1 --rounds 3"

    @pytest.mark.parametrize(
        ("words", "wanted"),
        [
            (f"dpfpl {WORDS} --epsilon 0.1 --attack decompose,gradnorm", "answers gradients messages solved"),
            (f"local {WORDS} --epsilon none --attack cosine,loss", "answers"),  # which sends nothing
            (f"fedrand {ADAPTERS} --attack loss", "answers messages"),  # of own states for the loss over rounds too
        ],
    )
    def test_what_is_wanted_takes_time(self, words: str, wanted: str, tmp_path: Path) -> None:
        plan = plan_of(f"--method {words} --quiet --out {tmp_path}")
        cell, federation = plan.cells[-1], federation_of(plan)
        work = attack_times.work(cell, federation)
        each = attack_times.timed(cell, federation, make_bench(plan, federation), work, Progress(quiet=True))
        assert {name for name, seconds in each.items() if seconds > 0} - {"replays"} == {*wanted.split()}
        assert {name for name, times in work.items() if times > 0} - {"replays"} == {*wanted.split()}
        by_hand = sum(times * each.get(name, 0.0) for name, times in work.items())
        assert attack_times.seconds(work, each) == pytest.approx(by_hand)
        assert not (plan.out / "runs").exists()

    def test_a_pace_is_of_the_rounds_that_were_trained(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One round to warm up, three with evaluation, three without; each takes as long as it says."""
        until, clock = [0], [0.0]

        def train(method: Any, schedule: Any, judged: Any, *, folder: Any, **given: Any) -> None:
            more = given["until"] - until[-1]
            until.append(given["until"])
            clock.append(clock[-1] + more * (0.25 if isinstance(judged, NoEvaluation) else 0.5))
            for part in ("before", "after") if more else ():
                (folder.path / f"round-{until[-1]}-{part}").write_bytes(bytes(50))

        monkeypatch.setattr("fedaudit.trainers.rounds.train", train)
        monkeypatch.setattr(dry_run.time, "perf_counter", lambda: clock[-1])
        plan = plan_of(f"{self.WORDS} --method dpfpl --epsilon none --workers 1 --out {tmp_path}")
        bench = mock.Mock(**{"learner.clients_per_batch.return_value": 2})
        pace = dry_run._trial(plan.cells[0], mock.Mock(sizes=[4] * 3), mock.Mock(), bench, mock.Mock(),
                              Progress(quiet=True), alone=True)  # fmt: skip
        assert until[1:] == [0, 1, 4, 7]
        assert pace == dry_run.Pace(seconds=0.5 * 2, bare=0.25 * 2, size=100 * 2)  # two jobs of at most two clients

    def test_somebody_elses_messages_are_read(self, tmp_path: Path) -> None:
        """Of the small run client 2 took part in the last round; nothing is left behind."""
        plan = plan_of(f"--run {small_run(tmp_path / 'run')} --attack cosine --out {tmp_path / 'out'}")
        bench: Any = None  # nothing is trained
        with attack_times._transcript(plan.cells[0], plan.own.federation, bench, Progress(quiet=True)) as transcript:
            assert transcript.cohort(1) == [2]
        assert not (tmp_path / "out").exists()


def test_what_runs_nowhere_is_said_with_the_methods_own_reason(capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """Where the other threat models merely see too little. What runs somewhere is not named."""
    words = f"--method promptfl,local --attack loss,decompose --epsilon none --rounds 1 --clients 2 --train 4 --out {tmp_path}"
    why = "its messages are riddles"
    monkeypatch.setattr("fedaudit.trainers.promptfl.PromptFL.refuses", {"explains": why}, raising=False)
    cells = plan_of(words).cells
    local = "not run: decompose on local: this method sends nothing"
    assert permitted.never_run(cells) == [f"not run: decompose on promptfl: {why}", local]
    assert permitted.refusal_reasons(cells[0], "server") == {"loss": None, "decompose": why}
    table = permitted.refused_table(cells[0])
    assert table.why[table.attack == "decompose"].iloc[0] == why
    monkeypatch.undo()
    paced(monkeypatch)
    assert cli.main([*words.split(), "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == local
