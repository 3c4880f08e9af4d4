"""Tables and counts of README.md, CONTRIBUTING.md and docs/ that repeat what the code knows say what it says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable
from typing import Any, get_type_hints

import pytest

from benchmarks import same_findings
from docs import parameters
from fedaudit.attacks import settings as adversaries
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.maxrenyi import Params as MaxRenyi
from fedaudit.attacks.settings import RebuiltWays
from fedaudit.attacks.threats import lacks, refusal
from fedaudit.audits.findings import SCHEMA
from fedaudit.audits.statistics import nights, one_run, trade_off
from fedaudit.audits.verdicts import SHARES
from fedaudit.backbones.vlm import FrozenVLM
from fedaudit.command import exits, gates, matrix
from fedaudit.command.config import presets
from fedaudit.command.listing import KINDS
from fedaudit.external import reading, round_notes
from fedaudit.machinery import plugins
from fedaudit.privacy.settings import AdapterPrivacy, Privacy
from fedaudit.reports import paper_items
from fedaudit.tasks.canaries import Canaries
from fedaudit.tasks.facts import TASKS
from fedaudit.tasks.imagesets import IMAGE_SETS
from fedaudit.terms.held_models import AT_THE_END
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.trainers.learners import METHODS, LearnerFacts, facts, private
from tests.doc_blocks import PAGES, ROOT, codes, inline, table

FAMILIES = [page for page in PAGES if page.startswith("docs/reference/attacks-")]
LINES = ["Assumes", "Score", "Parameters", "Cost", "Read it", "Source"]  # of each attack, in this order
MESSAGES = {"uploads", "sums of uploads"}  # what an attack needs that looks at messages
NUMBERS = dict(zip("one two three four five six seven eight nine ten eleven twelve".split(), range(1, 13), strict=True))


def first(page: str, *headings: str, section: str = "") -> list[str]:
    """The inline code of a table's first column."""
    return [code for row in table(page, *headings, section=section) for code in codes(row[0])]


def of_learner(learner: str) -> set[str]:
    return {name for name, plugin in METHODS.items() if plugin.facts.learner == learner}


COLUMNS: dict[tuple[str, ...], Iterable[str]] = {  # the first column of a table, by page and headings
    ("docs/reference/attacks-messages.md", "method", "a message"): of_learner("lora"),
    ("docs/reference/methods.md", "method", "a client sends"): of_learner("lora"),
    ("docs/reference/methods.md", "task", "what"): TASKS,
    ("docs/reference/images.md", "`--task`"): [
        n for n, task in TASKS.items() if facts(task.facts.learner).records == "classes"
    ],
    ("docs/reference/prompts.md", "method", "trained"): of_learner("prompts"),
    ("docs/understand/threat-models.md", "method", "the server's replay"): of_learner("prompts") | of_learner("maple"),
    ("docs/reference/dp2fl.md", "adversary", "holds"): facts("maple").threat_models,
    ("docs/reference/nightly.md", "part"): matrix.PARTS,
    ("docs/reference/papers.md", "`--paper`"): paper_items.items(),
}


def test_each_has_a_row() -> None:
    assert {place: sorted(first(*place)) for place in COLUMNS} == {place: sorted(COLUMNS[place]) for place in COLUMNS}


# exit codes

CODES = {exits.DONE, exits.CROSSED, exits.MENDABLE, exits.BROKEN, exits.FAILED, exits.CLOSED}
CODES |= {128 + n for n in exits._SIGNALS}


def test_exit_codes_stand_once_and_are_all() -> None:
    said = [int(code) for row in table("docs/guides/gates.md", "exit code") for code in row[0].split(", ")]
    assert sorted(said) == sorted(CODES)
    night = [row[0] for row in table("docs/reference/nightly.md", "exit code")]
    assert night[:3] == [str(code) for code in (exits.DONE, exits.CROSSED, exits.FAILED)]
    assert night[3:] == [f"{exits.MENDABLE}, {exits.BROKEN}, and those of signals"]
    said = {page: {*map(int, re.findall(r"exit code (\d+)", text))} for page, text in PAGES.items()}
    assert {page: codes - CODES for page, codes in said.items() if codes - CODES} == {}, "in sentences"


def test_attacks_under_threat_models() -> None:
    """Yes and no, and of what alone, as `refusal` has it."""
    trained = {"LoRA": facts("lora"), "prompts": facts("prompts")}
    rows = table("docs/reference/attacks.md", "attack", "on", "needs")
    for attack, row in [(ATTACKS[name], cells) for cells in rows for name in re.findall(r"\[(\w+)\]", cells[0])]:
        able = {noun: learner for noun, learner in trained.items() if lacks(attack, learner) is None}
        assert row[1] == " and ".join(able), attack.name
        assert ("shadow models" in row[2]) == attack.facts.shadows, attack.name
        needs = {need for learner in able.values() for need in attack.facts.needed(learner.records)}
        assert ("messages" in row[2]) == bool(MESSAGES & needs), attack.name
        assert ("broadcasts" in row[2]) == ("broadcasts" in needs), attack.name
        for threat_model, cell in zip(("prompt-user", "released-model", "server", "owner"), row[3:], strict=True):
            runs = {noun: refusal(attack, threat_model, learner) is None for noun, learner in able.items()}
            some = "".join(f"{noun} only" for noun, yes in runs.items() if yes)
            words = "yes" if all(runs.values()) else some or "no"
            assert cell.removeprefix("prompts: ") == words, (attack.name, threat_model)


def test_what_runs_against_clients_on_shares_and_against_a_peer() -> None:
    """The sentences below that table."""
    prompts, dual = facts("prompts"), facts("maple")

    def run_by(threat_model: str, learner: LearnerFacts) -> set[str]:
        fitting = {name: attack for name, attack in ATTACKS.items() if lacks(attack, learner) is None}
        return {name for name, attack in fitting.items() if refusal(attack, threat_model, learner) is None}

    fitting = {name: {*attack.facts.needs} for name, attack in ATTACKS.items() if lacks(attack, prompts) is None}
    single = {name for name, needs in fitting.items() if not (MESSAGES | {"probes"}) & needs}
    assert run_by("colluding-users", prompts) == single
    assert run_by("clustering-server", prompts) == single | {"decompose", "cosine"}
    of_one_prompt = {"contents", "decompose", "scaled", "scatter", "whitebox"}
    assert {name for name in fitting if lacks(ATTACKS[name], dual)} == of_one_prompt
    assert run_by("peer", dual) == run_by("released-model", dual)


def test_every_attack_has_a_row_and_a_section() -> None:
    rows = (row[0] for row in table("docs/reference/attacks.md", "attack", "on", "needs"))
    assert sorted(name for cell in rows for name in re.findall(r"\[(\w+)\]", cell)) == sorted(ATTACKS)
    sections = [section for page in FAMILIES for section in re.split(r"^## ", PAGES[page], flags=re.MULTILINE)[1:]]
    entries = {name: text for name, _, text in (section.partition("\n") for section in sections) if name in ATTACKS}
    assert entries.keys() == {*ATTACKS}
    for name, text in entries.items():
        assert re.findall(r"^- \*\*([A-Z][a-z ]+)\*\*: ", text, re.MULTILINE)[: len(LINES)] == LINES, name
        (parameters,) = re.findall(r"^- \*\*Parameters\*\*: (.*)$", text, re.MULTILINE)
        own = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(ATTACKS[name].params)}
        assert own <= {*codes(parameters)}, name
        assert bool(own) == (f"(parameters.md#{name})" in parameters), name


def test_the_order_of_all() -> None:
    rows = table("docs/reference/attacks.md", "strength", "attacks")
    said = {name: int(row[0]) for row in rows for name in codes(row[1])}
    assert said == {name: plugin.facts.strength for name, plugin in ATTACKS.items()}


def test_what_the_adversary_may_be_told() -> None:
    rows = table("docs/reference/attacks.md", "flag")
    names = [codes(row[0])[0].split()[0][2:].replace("-", "_") for row in rows]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(adversaries.Adversary))
    usual, thrifty = adversaries.Adversary(), adversaries.ThriftyAdversary()
    texts = dict(zip(names, (row[1] for row in rows), strict=True))
    assert f"{usual.shadows} as in DP-FPL, {thrifty.shadows} of dual prompts" in texts["shadows"]
    assert texts["observed_rounds"].endswith(f": {usual.observed_rounds}")
    for name in ("targets", "shadow_trajectories", "solved_rounds"):
        assert (getattr(usual, name), "0 (default)" in texts[name]) == (0, True), name
    for name in ("shadow_kind", "trajectory"):
        (value,) = (codes(row[0])[0].split()[1] for row, own in zip(rows, names, strict=True) if own == name)
        adversaries.Adversary(**{name: value})
        assert value != getattr(usual, name), "the table says what changes it"


def test_ways_of_rebuilding_and_orders_and_slices_of_maxrenyi() -> None:
    ways = [row[0] for row in table("docs/reference/attacks-outputs.md", "way", "takes")]
    assert {*ways} <= {*AT_THE_END}
    for way in ways[1:]:
        RebuiltWays(ways=way)
    said, usual = PAGES["docs/reference/attacks-outputs.md"], MaxRenyi()
    orders, *parts = re.findall(r"`--order` ([\d., inf]+);.*`--slice` (\w+), (\w+) or (\w+)\.", said)[0]
    for order in orders.split(", "):
        MaxRenyi(order=float(order))
    for part in parts:
        MaxRenyi(slice=part)
    assert f"Headline, fixed beforehand: order {usual.order:g}, K = {usual.k}, {usual.slice}." in said


def test_what_beats_what_is_quoted_as_it_is() -> None:
    """The two best of one page stand in the tables of the benchmark."""
    page = PAGES["docs/benchmarks/what-beats-what.md"]
    for row in table("docs/understand/what-beats-what.md", "method", "adversary", "calibrated loss"):
        for cell in row[2:]:
            (numbers,) = re.findall(r"\.\d{3} \[\.\d{3}, [\d.]+\](?: ▲)?", cell)
            assert f"| {numbers} |" in page, cell


def test_threat_models_have_a_row_each() -> None:
    rows = table("docs/understand/threat-models.md", "threat model", "sees")
    assert {name for row in rows for name in codes(row[0])} == {*THREAT_MODELS}
    of = {"prompts": facts("prompts"), "dual prompts": facts("maple"), "LoRA": facts("lora")}
    for row in rows:
        (name,) = codes(row[0])
        having = [noun for noun, learner in of.items() if name in learner.threat_models]
        only = " and ".join(having) + " only" * (len(having) == 1) if having else "methods on secret shares"
        assert re.findall(r"\((.*?)\)", row[0]) == [only] * (len(having) < 3), name
    attacked = table("docs/understand/threat-models.md", "threat model", "way")
    assert {name for row in attacked for name in codes(row[0])} == {*THREAT_MODELS}
    assert {row[1] for row in attacked} <= {*AT_THE_END}


def test_parameters_are_those_of_the_files() -> None:
    """`python -m docs.parameters` writes them anew."""
    assert PAGES["docs/reference/parameters.md"] == parameters.text()


def test_methods_of_prompts() -> None:
    (sentence,) = re.findall(r"^Prompt methods \((.*)\) have", PAGES["docs/reference/methods.md"], re.MULTILINE)
    assert {*codes(sentence)} == of_learner("prompts")
    rows = table("docs/reference/prompts.md", "method", "trained")
    never = {codes(row[0])[0] for row in rows if row[3] in ("", "never noised")}
    assert never == {name for name in of_learner("prompts") if not private(METHODS[name].facts)}


def test_every_method_has_a_section() -> None:
    text = PAGES["docs/reference/methods.md"] + PAGES["docs/reference/prompts.md"]
    assert of_learner("lora") | of_learner("prompts") <= {*re.findall(r"^## (\w+)$", text, re.MULTILINE)}


def test_partitions_and_data_sets() -> None:
    said = [row[0] for row in table("docs/reference/images.md", "`--dataset`")]
    assert [code for cell in said for code in codes(cell)] == [*IMAGE_SETS]
    usual = TASKS["images"].params()
    for row in table("docs/reference/images.md", "partition"):
        name = codes(row[0])[0]
        dataclasses.replace(usual, partition=name, data_root="x")
        assert ("(default)" in row[0]) <= (name == usual.partition)


def fields_of(*classes: Any) -> dict[str, Any]:
    return {field.name: field.default for own in classes for field in dataclasses.fields(own)}


def test_flags_of_privacy() -> None:
    """Each value is one, and a default where the page says what a flag does without its alternatives."""
    usual, said = Privacy(), {}
    for row in table("docs/reference/privacy.md", "flag"):
        flag, value = codes(row[0])[0].split()
        name = flag[2:].replace("-", "_")
        given = {str: str, float: float}[type(getattr(usual, name))](value)
        assert dataclasses.replace(usual, **{name: given})
        said.setdefault(name, given)
    assert said == {name: getattr(usual, name) for name in said}
    assert {*said} | {"clip_norm"} == {field.name for field in dataclasses.fields(Privacy)}
    (words,) = (code for code in inline("docs/reference/methods.md") if code.startswith("--epsilon 10 "))
    flags = words.split()
    own = AdapterPrivacy()
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        assert str(value) == f"{getattr(own, flag[2:].replace('-', '_')):{'' if value.isalpha() else 'g'}}"


def test_settings_of_learners_and_defaults_of_data() -> None:
    """What a page calls the settings are the defaults of the learner, its methods and the schedule."""
    pages = ("methods", "lora", "--rank 8 --alpha"), ("prompts", "prompts", "--rounds 100 --clients")
    for page, learner, begins in pages:
        (words,) = (code for code in inline(f"docs/reference/{page}.md") if code.startswith(begins))
        path = plugins.package_folder("fedaudit.trainers") / f"{learner}.py"
        known = fields_of(plugins.dataclass_of(path, "Settings"))
        known |= {name: getattr(facts(learner), name) for name in ("rounds", "clients")}
        flags = words.split()
        for flag, value in zip(flags[::2], flags[1::2], strict=True):
            usual = known[flag[2:].replace("-", "_")]
            assert (float(value) if isinstance(usual, (int, float)) else value) == usual, flag
    usual = fields_of(TASKS["coco"].params)
    for row in table("docs/reference/data.md", "flag", "default"):
        (flag,) = codes(row[0])
        assert float(row[1]) == usual[flag[2:].replace("-", "_")], flag


def test_flags_and_kinds_of_canaries() -> None:
    said = [codes(row[0])[0].split()[0][2:].replace("-", "_") for row in table("docs/reference/canaries.md", "flag")]
    assert said == [field.name for field in dataclasses.fields(Canaries)]
    for row in table("docs/reference/canaries.md", "kind", "picture"):
        (kind,) = codes(row[0])
        Canaries(canary_kind=kind)
        assert ("(default)" in row[0]) == (kind == Canaries().canary_kind)


def test_ceilings_of_canaries_and_guesses() -> None:
    for row in table("docs/reference/canaries.md", "canaries", "ceiling"):
        m = int(row[0].replace(",", ""))
        assert float(row[1]) == pytest.approx(one_run.ceiling(m, delta=1e-5), abs=0.0051), row
        for epsilon, cell in zip((0.1, 0.5, 1, 2), row[2:], strict=True):
            needed = one_run.needed_accuracy(m, epsilon=epsilon, delta=1e-5)
            never = needed is None or not needed <= 1
            assert cell == "never" if never else float(cell.rstrip(" %")) == pytest.approx(100 * needed, abs=0.051), row
    for row in table("docs/reference/privacy.md", "canaries (delta 1e-5)", "guesses"):
        m, guesses = (int(cell.replace(",", "")) for cell in row[:2])
        found = [test.ceiling(n, canaries=m, delta=1e-5) for n in (guesses, m) for test in (one_run, trade_off)]
        assert [float(cell) for cell in row[2:]] == pytest.approx(found, abs=0.0051), row


def test_metrics_of_gates_schema_of_findings_and_families_of_rows() -> None:
    assert f"- `schema` is {SCHEMA}." in PAGES["docs/reference/results.md"]
    assert {*first("docs/guides/gates.md", "metric", "scale")} >= {*gates.METRICS}
    rows = {row[0]: row[2] for row in table("docs/reference/audits.md", "`family`")}
    assert rows == {name: f"{5 * share:g} %" for name, share in SHARES.items()}


def test_keys_of_an_own_run() -> None:
    said = first("docs/reference/run-folder.md", "key", section="run.json")
    keys = reading._OPTIONAL | reading._SINCE_2 | reading._OF_ADAPTERS | reading._OF_PROMPTS
    assert sorted(said) == sorted({**reading._NEEDED, **reading._NEEDED_OF_PROMPTS, **keys})
    rows = table("docs/reference/run-folder.md", "key", section="run.json")
    assert {name for row in rows if row[1].startswith("optional") for name in codes(row[0])} == keys.keys()
    of_rounds = first("docs/reference/run-folder.md", "key", section="rounds.json")
    assert sorted(of_rounds) == sorted({**round_notes.ROUND, **round_notes.UPLOAD})


def test_hooks_of_a_backbone() -> None:
    for signature in first("docs/reference/backbones.md", "Method", "Gives"):
        name, words = signature.rstrip(")").split("(")
        parameters = [*inspect.signature(getattr(FrozenVLM, name)).parameters][1:]
        assert parameters == [word for word in words.split(", ") if word], signature


def test_words_and_limits_of_a_night() -> None:
    said = {row[0]: row[2] for row in table("docs/reference/nightly.md", "word", "means")}
    assert said == {word: "no" if word == nights.SHOWN else "yes" for word in said}
    assert {*said} == {nights.CHANGED, nights.NEW_LEAK, nights.HEALED, nights.DRIFT, nights.SHOWN}
    assert all(gates.parse(gate) for gate in first("docs/reference/nightly.md", "gate", "is crossed where"))


def test_every_preset_and_benchmark_stands_in_the_docs() -> None:
    text = "\n".join(PAGES.values())
    items = paper_items.items().values()  # `--paper` takes their presets
    for name in {*presets()} - {item.preset for item in items} - {item.scale for item in items}:
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name
    for path in ROOT.glob("benchmarks/*.py"):
        assert re.search(rf"benchmarks[./]{path.stem}\b", text), path.name


def test_tables_of_benchmarks_name_their_command() -> None:
    for page, text in PAGES.items():
        if page.startswith("docs/benchmarks/") and not page.endswith(("index.md", "claims.md")):
            for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
                assert "|---" not in section or re.search(r"python |audit\.py|benchmarks[./]", section), section[:60]


def test_slow_tests_say_why() -> None:
    """In a comment beside the marker, which names the quick version."""
    silent = []
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for i in (i for i, line in enumerate(lines) if "mark.slow" in line and "lines" not in line):
            if not any("#" in line and "quick" in line for line in lines[max(0, i - 12) : i + 3]):
                silent.append(f"{path.name}:{i + 1}: {lines[i].strip()}")
    assert silent == []


def test_rooms_have_a_row_each_and_small_runs_are_counted() -> None:
    said = {name.rstrip("/") for name in first("CONTRIBUTING.md", "room", "holds")}
    rooms = [path for path in (ROOT / "fedaudit").iterdir() if path.is_dir() and not path.is_symlink()]
    folders = {f"fedaudit/{path.name}" for path in rooms if any(path.glob("*.py"))}
    packages = {"attacks", "audits", "benchmarks", "recipes", "reports", "trainers", "docs/pictures"}
    files = {"fedaudit/api.py", "keywords.py", "options.py", "__main__.py", "fedaudit_recorder.py", "recorder"}
    assert said == folders | packages | files
    (word,) = re.findall(r"makes (\w+) small runs", PAGES["CONTRIBUTING.md"])
    assert NUMBERS[word] == len(same_findings.RUNS)


def test_facts_and_constants_that_are_named_are_read() -> None:
    """`needs = ("uploads",)` and its like, of CONTRIBUTING.md."""
    bases = [LearnerFacts, *(known.usual for known in KINDS.values())]
    facts = {name for code in inline("CONTRIBUTING.md") for name in re.findall(r"^([a-z_]+) = ", code)}
    assert facts
    assert facts <= {name for base in bases for name in get_type_hints(base)}
    constants = {name for code in inline("CONTRIBUTING.md") for name in re.findall(r"^([A-Z][A-Z_]+)(?= = |$)", code)}
    assert constants <= {
        "ORDER", "FIGURES", "MOVED", "ON_TOY", "PAPER", "NAME", "FAULT", "OUTSIDE_KEYS", "STUBS", "ON_HOST",
        "TABLES", "THREAT_MODELS", "STRONGEST", "AT_THE_END", "FRESHEST",
    }  # fmt: skip
