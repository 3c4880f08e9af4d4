"""SecFPP, Figure 3: seconds and bytes of a round on secret shares, against users and dimension.

Hou et al. 2025, section 5.4. A user deals shares of a vector of d entries and, if it is one of t + 1, masks; it adds
shares of groups and computes shares of the distances of all users to three centres, which the server decodes while
t / 6 users are wrong; then the same for a sum. Measured on this machine, on one thread, seconds of the processor, the
least of some trials. The figure prints no numbers; the text has 0.4 s for a user at d = 4,000, t = n / 3. How they grow
is Table 3 (`secfpp_table3`). Nothing is trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from fedaudit.privacy.secpc import WIDTH, Protocol
from fedaudit.privacy.sharing import Tolerance, quantised
from reports.evidence import Evidence
from reports.figures.drawing import LOW, Plot, grid, legend, look_of, printed, styled
from reports.paper_items import PaperItem
from reports.rows import as_rows
from reports.templates import Write, render, write_drawings


class Items:
    figure3 = PaperItem()


CENTRES = 3
TRIALS = 5
USUAL_USERS, USUAL_ENTRIES = 20, 150
USERS = (20, 40, 60, 80, 100)
ENTRIES = (150, 500, 1000, 2000, 4000)
PANELS = {"users": f"users (d = {USUAL_ENTRIES})", "d": f"entries d of a vector ({USUAL_USERS} users)"}
TITLES = {"user": "a user", "server": "the server"}
PRINTED = {4000: 0.4}  # seconds of a user, by d: the text
SAID = ", ".join(f"{seconds} s at d = {d:,}" for d, seconds in PRINTED.items())


def figure3(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Write index.html, figure3.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns what the
    text says of a user, and ours."""
    table = ours()
    with styled():
        drawing = printed("figure3", "SecFPP, Figure 3: seconds of a round against users and dimension", plot(table))
    assert drawing is not None
    write_drawings([drawing], write, folder="")
    parts = {"drawing": drawing, "rows": as_rows(table), "centres": CENTRES, "said": SAID}
    write("index.html", render("papers/secfpp_figure3.html", parts))
    longest = panel(table, "d").iloc[-1]
    said = f"; the paper's text says {SAID}" if longest.d in PRINTED else ""
    return f"a round takes a user {longest.user:.2g} s at d = {longest.d:.0f} on this machine{said}"


def ours(users: Sequence[int] = USERS, entries: Sequence[int] = ENTRIES) -> pd.DataFrame:
    """A row per size: more users of the usual dimension, and longer vectors of the usual number of users."""
    sizes = {(n, USUAL_ENTRIES): None for n in users} | {(USUAL_USERS, d): None for d in entries}
    return pd.DataFrame([measured(*size) for size in sizes])


def measured(users: int, entries: int) -> dict[str, float]:
    """What one round costs a user and the server: seconds of every phase, and bytes that a user sends for it."""
    t = 3 * users // 10
    wrong = t // 6
    protocol = Protocol(users, Tolerance(t, 0, wrong), 10**4, entries)
    sharing, sums, rng = protocol.of_distances, protocol.of_sums, np.random.default_rng(0)
    vector = quantised(rng.uniform(-1, 1, entries) / entries**0.5, protocol.steps, 1.0)
    held = sharing.field.uniform((users, sharing.length(entries)), rng)
    added = sums.field.uniform((users, sums.length(entries)), rng)
    sizes = np.full(CENTRES, users // CENTRES)

    def distances() -> object:
        centres = np.stack([sharing.field.sum(held[i::CENTRES], axis=0) for i in range(CENTRES)])
        return sharing.squared_distances(held, centres, sizes)

    sharing.share(vector, rng), sums.share(vector, rng)  # the matrices are made once for all rounds
    answers = sharing.zero_sums(users * CENTRES, rng)
    answers[:wrong] = sharing.field.uniform(answers[:wrong].shape, rng)
    summed = sums.share(vector, rng)
    summed[:wrong] = sums.field.uniform(summed[:wrong].shape, rng)
    work = {
        "share": lambda: sharing.share(vector, rng),
        "masks": lambda: sharing.zero_sums(users * CENTRES, rng),
        "distances": distances,
        "share sum": lambda: sums.share(vector, rng),
        "add": lambda: sums.field.sum(added, axis=0),
        "decode": lambda: sharing.opened(range(users), answers),
        "decode sum": lambda: sums.opened(range(users), summed),
    }
    took = {name: _seconds(one) for name, one in work.items()}
    server = took["decode"] + took["decode sum"]
    sent = WIDTH * users * (sharing.length(entries) + CENTRES + users * CENTRES)  # shares, answers and, of t + 1, masks
    about = {"users": users, "d": entries, "t": t, "ell": sharing.slices, "bits": sharing.field.q.bit_length()}
    return {**about, **took, "user": sum(took.values()) - server, "server": server, "bytes": sent}


def _seconds(work: Callable[[], object]) -> float:
    """Of the processor, the least of some trials."""
    found = []
    for _ in range(TRIALS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def panel(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """The sizes that differ in users, or in entries, alone, the least first."""
    kept = table.d == USUAL_ENTRIES if by == "users" else table.users == USUAL_USERS
    return table[kept].sort_values(by)


def plot(table: pd.DataFrame) -> Plot:
    """A panel per axis, seconds of a user and of the server."""
    figure, axes = grid(1, len(PANELS), height=3.0, margins=LOW)
    for axis, (by, label) in zip(axes[0], PANELS.items(), strict=True):
        own = panel(table, by)
        for who, title in TITLES.items():
            axis.plot(own[by], own[who], **look_of(list(TITLES), who), label=title)
        if by == "d":
            said = {"color": "black", "markersize": 9, "label": "the paper's text, a user"}
            axis.plot([*PRINTED], [*PRINTED.values()], "*", **said)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set(xlabel=label, ylabel="seconds a round")
    legend(figure)
    return figure, table
