"""From a plan to a report: train, attack, audit, write. Each part is reused where its key is already on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit import __version__, plugins
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.clipsource import EMBEDDED_CLIP, ClipSource
from fedaudit.bench import Workshop
from fedaudit.plan import Cell, Plan
from fedaudit.progress import Progress
from fedaudit.store import Damaged, Folder, claim
from fedaudit.training import COMPLETE, complete, finish, method_of, train_one, train_together, transcript_of

NOISE_FREE = {"claimed": "none", "provable": "infinity: nothing is noised"}  # of every method that there is


def canary_notes(plan: Plan) -> list[str]:
    """How many canaries can be guessed, and the largest epsilon that a perfect attack on them all could show; nothing without canaries."""
    if not (n := plan.canaries.canaries):
        return []
    from audits.onerun import ceiling
    from fedaudit.banks import targets

    whose, delta = "all of them", 0.0
    if plan.learner == "prompts":
        delta = max(v.privacy.delta for v in plan.methods.values() if v is not None)
        if plan.attacks:
            attacked = len(targets(plan.cells[0]))
            share, more = divmod(n, plan.clients)
            n = attacked * share + min(attacked, more)
            whose = f"the {n} of the {attacked} clients that were attacked"
    return [
        f"Canaries: {plan.canaries.canaries} ({plan.canaries.canary_kind}), each inserted by a fair coin. A perfect attack on {whose} could show an "
        f"epsilon of at most {ceiling(n, delta=delta):.2f} (95 %, delta {delta:g})."
    ]


def _notes(plan: Plan) -> list[str]:
    """Limitations of the report, in plain sentences."""
    return [*canary_notes(plan), *_limits(plan)]


def _limits(plan: Plan) -> list[str]:
    small = (
        "The embedded model and task are small: they show how methods compare and that the tools work, not how much a large "
        "model would leak."
    )
    coin = (
        "Membership means that a record was in a client's training set. A coin decided it for every record, so that members "
        "and held-out records are exchangeable."
    )
    own = (
        "This training was done elsewhere: that members and non-members are exchangeable is its authors' word, and the "
        "controls are the only check of it."
    )
    if plan.learner == "prompts":
        part = (
            "Clients do not train on all of their records: a fixed part is kept for reference (--reference-share), and a coin for each of the others "
            "holds half of them out, so that membership can be attacked later. Accuracies are those of what is left."
        )
        embedded = isinstance(plan.backbone, ClipSource) and plan.backbone.folder in EMBEDDED_CLIP.values()
        return [
            *([small] if embedded else []),
            part,
            "The intervals of accuracy are over the clients of one training; --seeds adds the spread over trainings.",
            *(_attack_notes(plan) if plan.attacks else [UNATTACKED]),
        ]
    return [
        *([small] if plan.backbone == EMBEDDED else []),
        own if plan.own is not None else coin,
        "The intervals are over records and clients of one training; --seeds adds the spread over trainings.",
        *(
            []
            if plan.own is not None
            else ["Nothing is noised: no epsilon is claimed, and the provable epsilon of what is sent is infinity."]
        ),
    ]


UNATTACKED = "Nothing was attacked: what is claimed and proven stands without a measured lower bound."


def _attack_notes(plan: Plan) -> list[str]:
    """What attacks on prompts assume."""
    known = (
        "Attackers know the frozen model, the method with its parameters, its start, and the candidate records; not who was in training. Shadow "
        "models are trained on random halves of the same candidates, the strongest case for the attacker."
    )
    few = (
        "The intervals of membership are over the records of the clients that were attacked (--targets): given their prompts, a coin per "
        "record is all that is random if nothing leaks. Other clients and other trainings are --targets and --seeds."
    )
    return [known, few]


@dataclass(frozen=True)
class Outcome:
    """Where the report is, what it found, and what was reused."""

    report: Path
    findings: list[dict[str, Any]]
    reused: list[str]


def run(plan: Plan, progress: Progress) -> Outcome:
    """Everything that a plan asks for. Safe to kill and to run twice at once."""
    workshop = Workshop(plan, progress)
    if not (plan.report_folder / COMPLETE).exists():
        _ = workshop.federation  # what is wrong with the data or a method is said before anything is written
        for cell in plan.cells if plan.learner == "prompts" else ():
            method_of(cell)
    report = claim(plan.report_folder)
    with report.lock(progress.say):
        if complete(report, progress.say):
            return Outcome(report.path / "index.html", report.read_json("findings.json"), ["report"])
        reused = []
        with workshop:
            evidence = []
            if plan.learner == "prompts":
                reused += _train_all(plan, workshop, progress)
                if plan.attacks:
                    from fedaudit.banks import train_banks

                    train_banks([c for c in plan.cells if not _finished(c, progress)], workshop, progress)
            for cell in plan.cells:
                found, how = _audit(cell, workshop, progress)
                evidence.append(found)
                reused += how
        from reports.report import build

        with progress.stage("report", 1) as advance:
            build(evidence, report.write)
            finish(report)
            advance()
    return Outcome(report.path / "index.html", report.read_json("findings.json"), reused)


def _train_all(plan: Plan, workshop: Workshop, progress: Progress) -> list[str]:
    """Train what is needed side by side; returns what was on disk."""
    todo = [c for c in plan.cells if not _finished(c, progress)]
    before = train_together(todo, workshop, progress)
    return [f"training of {c.method}, seed {c.seed}" for c in todo if c.training_key in before]


def _finished(cell: Cell, progress: Progress) -> bool:
    return cell.analysis_folder.is_dir() and complete(claim(cell.analysis_folder), progress.say)


def _audit(cell: Cell, workshop: Workshop, progress: Progress) -> tuple[Any, list[str]]:
    """The evidence of one cell, computed or read back, and what of it was reused."""
    folder = claim(cell.analysis_folder)
    reused = []
    with folder.lock(progress.say):
        if complete(folder, progress.say):
            reused.append(f"analysis of {cell.method}, seed {cell.seed}")
        else:
            analyse = _examine if cell.plan.learner == "prompts" else _analyse
            try:
                reused += analyse(cell, folder, workshop, progress)
            except Damaged as damage:  # found on the way: what it belongs to is checked and computed again, once
                progress.say(f"{damage}; computing it again")
                reused += analyse(cell, folder, workshop, progress)
        return read_evidence(cell), reused


def read_evidence(cell: Cell) -> Any:
    """What the analysis of a cell left on disk, as reports take it."""
    from reports.report import Evidence

    folder = claim(cell.analysis_folder)
    names = [n for n in folder.names() if n.endswith(".parquet") and not n.startswith("scores-")]
    tables = {name.removesuffix(".parquet"): folder.read_table(name) for name in names}
    stored = folder.read_json("findings.json")
    setting = cell.setting | {
        "attack": cell.analysis_description["attack"],
        "audit": cell.analysis_description["audit"],
        **(
            {"adversary": cell.analysis_description["adversary"]}
            if cell.plan.learner == "prompts" and cell.plan.attacks
            else {}
        ),
        "keys": {"training": cell.training_key, "analysis": cell.analysis_key},
        "versions": cell.training_description["versions"],
        "fedaudit": __version__,
    }
    return Evidence(
        cell.method, cell.seed, cell.plan.attack, cell.plan.task, stored, tables, setting, _notes(cell.plan)
    )


def _examine(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> list[str]:
    """Utility and privacy of a training of prompts, and its attacks; trains it again if it has been damaged since."""
    import dataclasses

    from audits.epsilon import epsilon, ledger_of, noise_table, privacy_table
    from audits.utility import accuracies, utility

    train_together([cell], workshop, progress)  # nothing to do, unless it was damaged since
    transcript, method, plan = transcript_of(cell), method_of(cell), cell.plan
    assert cell.variant is not None
    names = {"method": cell.method, "task": plan.task, "seed": cell.seed}
    ledger = ledger_of(transcript, method)
    params = {name: plugins.plugins("audit")[name].own(given) for name, given in plan.audits.items()}
    tables = {
        "accuracy": accuracies(transcript),
        "privacy": privacy_table(ledger, method, cell.variant.privacy),
        "noise": noise_table(ledger, transcript),
    }
    found: list[Any] = [
        *utility(
            tables["accuracy"], tables["noise"], params["utility"], epsilon=cell.variant.privacy.epsilon, names=names
        ),
        *epsilon(tables["privacy"], params["epsilon"], names=names),
    ]
    if plan.attacks:
        from fedaudit.leakage import leakage

        leaks, more = leakage(cell, tables["privacy"], folder, workshop, progress)
        found, tables = [*leaks, *found], tables | more
    for name, table in tables.items():
        folder.write_table(f"{name}.parquet", table)
    folder.write_json("ledger.json", ledger.to_json())
    folder.write_json("findings.json", [dataclasses.asdict(finding) for finding in found])
    finish(folder)
    return []


def _analyse(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> list[str]:
    """Train where needed, attack, audit; write findings and tables. Returns what was reused."""
    import dataclasses

    from attacks.base import Candidates, View
    from attacks.threats import OF_LEARNER
    from audits.evidence import evidence, panels
    from audits.membership import cells, membership
    from audits.onerun import canary_table

    transcript, trained_before = train_one(cell, workshop, progress)
    federation, executor = workshop.federation, workshop.executor
    candidates = Candidates(
        {k: [r.id for r in (*client.records, *client.canaries)] for k, client in enumerate(federation.clients)},
        {k: [r.id for r in client.reference] for k, client in enumerate(federation.clients)},
        [r.id for r in federation.novel],
    )
    views = {name: View(transcript, name, candidates) for name in OF_LEARNER["lora"]}
    ((name, params),) = cell.plan.attacks.items()
    attack = plugins.plugins("attack")[name].make(params)
    audit = cell.plan.audits["membership"]
    scores = _score_models(attack, views, folder, executor, progress)
    attacked = _attacked(attack, scores, views, transcript, federation)
    with progress.stage(f"audit of {cell.method}", 3) as advance:
        own = cell.plan.own
        names = {"method": cell.method, "attack": cell.plan.attack, "task": cell.plan.task, "seed": cell.seed}
        epsilon = {"claimed": own.claimed, "provable": own.provable} if own else NOISE_FREE
        found = membership(attacked, audit, attack_signal=attack.signal, names=names, epsilon=epsilon)
        advance()
        asked = [record for _, record in panels(attacked)]
        words = dict(zip(asked, next(executor.map(_words, [asked])), strict=True))
        confidence = audit.confidence
        tables = evidence(attacked, transcript, views["server"], federation, words,
                          attack_signal=attack.signal, confidence=confidence)  # fmt: skip
        advance()
        tables["cells"] = cells(attacked, confidence)
        if cell.plan.canaries.canaries:
            coins = [used for client in federation.clients for used in client.canary_included]
            tables["canaries"] = canary_table(cell.plan.canaries.canary_kind, coins, delta=0.0)
        advance()
    for name, table in tables.items():
        folder.write_table(f"{name}.parquet", table)
    folder.write_json("findings.json", [dataclasses.asdict(finding) for finding in found])
    finish(folder)
    return [f"training of {cell.method}, seed {cell.seed}"] if trained_before else []


def export(plan: Plan, progress: Progress, *, run_to: Path | None, adapters_to: Path | None) -> None:
    """Write the one training of a finished plan as a folder of docs/own-runs.md, or its models as adapters that peft loads."""
    if run_to is None and adapters_to is None:
        return
    (cell,) = plan.cells
    transcript, workshop = transcript_of(cell), Workshop(plan, progress)
    if run_to is not None:
        from fedaudit.ownrun import export_run

        data = workshop.federation
        assert isinstance(plan.backbone, Path)  # prompts are not exported
        export_run(
            transcript, data, run_to, method=cell.method, task=plan.task, seed=cell.seed,
            backbone="embedded" if plan.backbone == EMBEDDED else str(plan.backbone.absolute()),
            alpha=plan.settings.alpha, score=data.score.__name__, epsilon=NOISE_FREE,
        )  # fmt: skip
        progress.say(f"exported: {run_to}")
    if adapters_to is not None:
        from trainers.lora import export_adapters

        with workshop:
            next(workshop.executor.map(export_adapters, [(transcript, claim(adapters_to))]))
        progress.say(f"exported: {adapters_to}")


def _score_models(
    attack: Any, views: dict[str, Any], folder: Folder, executor: Any, progress: Progress
) -> list[tuple[Any, Any]]:
    """Every model that any adversary holds with its table of scores; equal models are scored once."""
    from trainers.base import pack

    held = [model for view in views.values() for model in attack.models(view)]
    distinct = {model.digest: model for model in held}
    todo = {d: m for d, m in distinct.items() if not folder.usable(f"scores-{d}.parquet", progress.say)}
    if todo:
        jobs = ((attack, pack(model.state), list(model.records)) for model in todo.values())
        with progress.stage(f"attack: {len(distinct)} models of {len(held)} views", len(todo)) as advance:
            for digest, table in zip(todo, executor.map(_score, jobs), strict=True):
                folder.write_table(f"scores-{digest}.parquet", table)
                advance()
    tables = {d: folder.read_table(f"scores-{d}.parquet").set_index("record", drop=False) for d in distinct}
    return [(model, tables[model.digest]) for model in held]


def _attacked(
    attack: Any, scores: list[tuple[Any, Any]], views: dict[str, Any], transcript: Any, federation: Any
) -> Any:
    """The scores with the truth and the controls beside them."""
    from audits.blind import blind_scores
    from audits.comparisons import Attacked, ScoredModel

    base = next(table for model, table in scores if model.way == "base")
    scored = [
        ScoredModel(m.threat_model, m.way, m.client, m.round, attack.calibrate(table, base))
        for m, table in scores
        if m.way != "base"
    ]
    truth, asked = federation.truth, views["released-model"].candidates
    owners = [(client.name, record) for client in federation.clients for record in client.records]
    blind = {"held-out": _blind(blind_scores, owners, [truth[r.id] for _, r in owners])}
    if federation.novel:
        against = [(name, record) for name, record in owners if truth[record.id]]
        against += [("novel", record) for record in federation.novel]
        blind["novel objects"] = _blind(blind_scores, against, [name != "novel" for name, _ in against])
    canaries = [(client.name, record) for client in federation.clients for record in client.canaries]
    if canaries:
        blind["left-out canaries"] = _blind(blind_scores, canaries, [truth[r.id] for _, r in canaries])
    return Attacked(
        scored, attack.calibrate(base, base), blind,
        {k: [r.id for r in client.records] for k, client in enumerate(federation.clients)}, asked.reference,
        asked.novel, truth, [transcript.cohort(r) for r in range(transcript.schedule.rounds)],
        {k: [r.id for r in client.canaries] for k, client in enumerate(federation.clients) if client.canaries},
    )  # fmt: skip


def _blind(
    classify: Callable[..., dict[str, float]], pairs: list[tuple[str, Any]], member: list[bool]
) -> dict[str, float]:
    return classify([record for _, record in pairs], member, [name for name, _ in pairs], seed=0)


def _score(bench: Any, job: tuple[Any, bytes, list[str]]) -> Any:
    from trainers.base import unpack

    attack, state, records = job
    return attack.score(bench.learner, unpack(state), records)


def _words(bench: Any, records: list[str]) -> list[list[str]]:
    """The tokens of records as words."""
    tokenizer = bench.learner.vlm.tokenizer
    return [[tokenizer.decode([int(i)]).strip() for i in bench.learner.data[record].ids] for record in records]
