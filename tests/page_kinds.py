"""A page of every kind, as whoever opens it in a browser has it: of real runs where the pictures of docs keep them."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from docs.pictures.night import NIGHTS
from docs.pictures.paper import TABLES
from docs.pictures.picture import PICTURES
from fedaudit.audits import curves
from fedaudit.audits.findings import RECORDING
from fedaudit.reports import audit_index, comparison, paper_index
from fedaudit.reports.report import Evidence
from tests.evidence import built, evidence
from tests.prompt_evidence import attacked, prompt_evidence
from tests.test_curves import runs
from tests.unprinted import nothing_printed

LORA, PROMPTS = PICTURES
MAIN = re.compile(rb'(?s)<main id="main">(.*)</main>')
STYLES = re.compile(rb"(?s)<style>.*?</style>")
Page = Callable[[], bytes]


def small_evidence(method: str, seed: int) -> Evidence:
    """Without the longest table, which takes axe most of its time and stands on LoRA's page too."""
    whole = evidence(method, seed)
    return replace(whole, tables={name: table for name, table in whole.tables.items() if name != "cells"})


def adapters_in_small() -> bytes:
    """What pages of runs on adapters have, once each."""
    some, (one, other) = small_evidence("fedrand", 0), (small_evidence("fedavg", seed) for seed in (0, 1))
    cells = evidence("fedavg", 0).tables["cells"]
    attacks = attacked(prompt_evidence("promptfl", math.inf), "lira", "loss").tables
    one.tables.update({name: attacks[name] for name in ("agreement", "records")})
    one.tables["cells"] = cells[cells.threat_model == "owner"]
    for f in [f for f in one.findings if f["metric"] == "auroc" and f["threat_model"] == "owner"]:
        f["verdict"] = "confounded"
        one.findings.append(f | {"headline": False, "best_of": 3})
    return built([doubted(some), one, other])["index.html"]


def small_pages() -> bytes:
    """A night's page that goes on with what the other small pages hold; they have one style, and some have more."""
    page = NIGHTS[0].page()
    for name in ("paper's table", "index of papers", "index of audits"):
        other = KINDS[name]()
        more = b"".join(style for style in STYLES.findall(other) if style not in page)
        (main,) = MAIN.findall(other)
        page = page.replace(b"</head>", more + b"</head>").replace(b"</main>", main + b"</main>")
    return page


def doubted(run: Evidence) -> Evidence:
    about = {name: run.findings[0][name] for name in ("schema", "run", "method", "task", "seed")}
    doubt = about | {"metric": RECORDING, "check": "weights", "sentence": "Two files were exchanged.", "value": 0.1}
    return replace(run, findings=[*run.findings, doubt])


def curves_page() -> bytes:
    found = curves.curves(runs(methods=("promptfl", "dpfpl"), ranks=(4, 8)), curves.Params())
    files: dict[str, bytes] = {}
    with nothing_printed():
        comparison.build({"curves": found}, files.__setitem__, runs=24, asked={"curves": {}})
    return files["index.html"]


def papers_index() -> bytes:
    drawn = {"item": "fedrand:table1", "agreement": "τ 1.00", "seconds": 1.0, "page": "a/index.html", "why": ""}
    other = {"item": "fedrand:table2", "agreement": "", "seconds": None, "page": "", "why": "not run yet"}
    drawn, other = ({"shows": "Leakage"} | item for item in (drawn, other))
    return paper_index.render_files("fedrand", "FedRand", ["Table 1", "Table 2"], [drawn, other])["html"]


def index_of_audits() -> bytes:
    said = {"server": "leak", "released-model": "no leak found", "owner": "confounded"}
    verdicts = [{"verdict": said[threat], "threat_model": threat, "runs": 1, "of": 2} for threat in said]
    about = {"methods": ["dpfpl", "promptfl"], "task": "symbols", "attacks": ["lira"], "seeds": [0, 1]}
    rows = [
        {"name": f"{name}-0123abcd", "done": True, "finished": "2026-01-03 03:05 UTC"}
        | {"summary": {**about, "epsilons": [0.4], "verdicts": verdicts}}
        for name in ("dpfpl-promptfl", "a-name-that-is-so-long-that-no-phone-has-room-for-it-on-one-line")
    ]
    begun = {"name": "begun", "done": False, "started": "2026-01-03 03:00 UTC", "audited": 1, "of": 2}
    command = {"command": f"audit.py --method {'fedavg,' * 20}fedrand"}
    return audit_index.render_page([*rows, begun | command], ["nightly/mine/index.html"], "state")


KINDS: Mapping[str, Page] = {
    "adapters, in small": adapters_in_small, "prompts with epsilon": PROMPTS.page, "small pages": small_pages,
    "LoRA": LORA.page,
    "several methods": lambda: built(
        [small_evidence(method, seed) for method in ("fedavg", "fedrand") for seed in (0, 1)]
    )["index.html"],
    "every attack on prompts": lambda: built(
        [attacked(prompt_evidence("promptfl", epsilon), "lira", "loss", "shadow") for epsilon in (math.inf, 0.4)]
    )["index.html"],
    "own run": lambda: built([doubted(small_evidence("fedavg", 0))])["index.html"],
    "curves": curves_page, "nightly": NIGHTS[0].page, "paper's table": TABLES[0].page, "index of papers": papers_index,
    "index of audits": index_of_audits,
}  # fmt: skip
QUICK = tuple(KINDS)[:3]  # which have every kind of element
DRAWN = ("LoRA", "prompts with epsilon")  # with their figures as readers see them
INDEXES = ("small pages", "nightly", "index of papers", "index of audits")  # which link to other pages
