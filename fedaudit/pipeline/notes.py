"""The limits of a report, in plain sentences. Imports nothing heavy."""

from __future__ import annotations

import math

from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.clip_source import EMBEDDED_CLIP, ClipSource
from fedaudit.pipeline.plan import Plan


def canary_notes(plan: Plan) -> list[str]:
    """One sentence on how many canaries are guessed and the largest epsilon that a perfect attack on all could show;
    [] without canaries."""
    if not (n := plan.canaries.canaries):
        return []
    from fedaudit.audits.statistics import one_run, trade_off
    from fedaudit.audits.statistics.guesses import number_of_guesses
    from fedaudit.tasks.canaries import shares

    which, delta = "all of them", max((v.privacy.delta for v in plan.methods.values() if v and v.privacy), default=0.0)
    if plan.trained.shadows and plan.attacks:
        attacked = len(plan.cells[0].targets)
        n = sum(shares(n, plan.canary_holders)[:attacked])
        which = f"the {n} of the {attacked} clients that were attacked"
    guesses = number_of_guesses(n)
    tests = [(one_run, "")] + [(trade_off, " if the mechanism is Gaussian")] * (delta > 0)
    of_all = ", ".join(f"{test.ceiling(n, canaries=n, delta=delta):.2f}{note}" for test, note in tests)
    of_guesses = ", ".join(f"{test.ceiling(guesses, canaries=n, delta=delta):.2f}{note}" for test, note in tests)
    return [
        f"Canaries: {plan.canaries.canaries} ({plan.canaries.canary_kind}), each inserted by a fair coin. A perfect "
        f"attack on {which} could show an epsilon of at most {of_all} (95 %, delta {delta:g}); the bounds here rest on "
        f"{guesses} guesses and can show at most {of_guesses}."
    ]


def cautions(plan: Plan) -> list[str]:
    """The methods' own warnings about their parameters with these settings and data, each once; [] if none has any."""
    variants = plan.methods.values() if plan.own is None else ()
    checks = [getattr(variant.params, "caution", None) for variant in variants if variant]
    sentences = (check(plan.settings, plan.task_params, plan.present) for check in checks if check)
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))


def limits(plan: Plan) -> list[str]:
    """All sentences on limits that the report shows."""
    remarks = list(plan.data.remarks) if plan.own is None else []
    if plan.own_files and not plan.show_records:  # what follows a colon names records
        remarks = [f"{remark.partition(':')[0]}: the terminal names them." for remark in remarks]
    first = [*remarks, *cautions(plan), *canary_notes(plan), *_shared_noise(plan)]
    small = (
        "The built-in model and task are small: they show how methods compare and that the tools work, not how much a "
        "large model would leak."
    )
    coin = (
        "Membership means that a record was in a client's training set. A coin decided it for every record, so that "
        "members and held-out records are exchangeable."
    )
    elsewhere = (
        "This training was done elsewhere: that members and non-members are exchangeable is its authors' word, and the "
        "controls are the only check of it."
    )
    if plan.own and plan.own.coins:
        elsewhere = (
            "This training was done elsewhere. A fair coin per record decided before it who is a member, and the lists "
            f"are those of the coins (commitment {plan.own.coins.commitment}; compare it with the one that was "
            "published before the training). That the members, and no other of these records, were trained on is its "
            "authors' word. Records that a coin left out were absent, so that a client's number of records depends on "
            'the coins: what is measured is the relation "add or remove".'
        )
    if isinstance(plan.backbone, ClipSource):
        embedded = plan.backbone.folder in EMBEDDED_CLIP.values()
        return [
            *first,
            *([small] if embedded else []),
            *_strange_words(plan, plan.backbone),
            *([plan.backbone.summary] if plan.backbone.doubt else []),
            *(
                [elsewhere]
                if plan.own
                else [
                    ALL_TRAINED if not getattr(plan.task_params, "holdout", 0.5) else PART_TRAINED,
                    "The intervals of accuracy are over the clients of one training; --seeds adds the spread over "
                    "trainings.",
                ]
            ),
            *(_attacked(plan) if plan.attacks else [UNATTACKED]),
        ]
    return [
        *first,
        *([small] if plan.backbone == EMBEDDED else []),
        elsewhere if plan.own is not None else coin,
        "The intervals are over records and clients of one training; --seeds adds the spread over trainings.",
    ]


def _strange_words(plan: Plan, source: ClipSource) -> list[str]:
    """One sentence where class names hold words that the model's tokenizer has no token for; else []."""
    classes = plan.own.trained.classes if plan.own else plan.data.classes
    if not classes:
        return []
    from fedaudit.backbones.clip import strange_words

    words = strange_words(source, classes)
    named = ", ".join(words[:4]) + (" and more" if len(words) > 4 else "")
    if plan.own_files and not plan.show_records:
        named = f"{len(words)} words in the names of classes"
    return [STRANGE.format(words=named)] if words else []


def _shared_noise(plan: Plan) -> list[str]:
    """One sentence where one method is trained with noise of several epsilons; else []."""
    noised = [(v.method, v.privacy.epsilon) for v in plan.methods.values() if v and v.privacy]
    finite = {pair for pair in noised if math.isfinite(pair[1])}
    return [SHARED_NOISE] if len(finite) > len({method for method, _ in finite}) else []


def _attacked(plan: Plan) -> list[str]:
    """Sentences on attacks on prompts; on shadow models only where there are some."""
    shadows = any(cell.needs_shadows for cell in plan.cells)
    return [KNOWN + (SHADOWS if shadows else ""), OF_CLIENTS]


STRANGE = (
    "The model's tokenizer has no token for {words}: each such word is a random embedding that follows from its "
    "letters. What the model says of these classes before training (zero-shot) means nothing; after training, what "
    "prompts learned of them counts."
)
ALL_TRAINED = (
    "Clients train on all of their records (--holdout 0), as in the papers: nobody is held out, so that membership "
    "cannot be attacked in this training."
)
PART_TRAINED = (
    "Clients do not train on all of their records: a fixed part is kept for reference (--reference-share), and a coin "
    "for each of the others "
    "holds half of them out, so that membership can be attacked later. Accuracies are those of what is left."
)
SHARED_NOISE = (
    "Trainings of one seed draw the same noise at every epsilon, scaled. Whoever sees messages of two of them can "
    "subtract it: publish at most one."
)
UNATTACKED = "Nothing was attacked: what is claimed and proven stands without a measured lower bound."
KNOWN = (  # of attacks on prompts
    "Attackers know the frozen model, the method with its parameters, its start, and the candidate records; not who "
    "was in training."
)
SHADOWS = " Shadow models are trained on random halves of the same candidates, the strongest case for the attacker."
OF_CLIENTS = (
    "The intervals of membership are over the records of the clients that were attacked (--targets): given their "
    "prompts, a coin per record is all that is random if nothing leaks. Other clients and other trainings are "
    "--targets and --seeds."
)
