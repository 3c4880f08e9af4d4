"""SecFPP, Figure 3: seconds and bytes of a round on secret shares, against users and dimension.

Hou et al. 2025, section 5.4. In a round a user sends shares of its vector of d entries to all users; t + 1 of the users
send masks too. Each user adds the shares of each group and computes shares of all users' distances to three centres.
The server decodes them, though t / 6 users send wrong numbers. Then the users send shares of a vector once more, and
the server decodes the sum. Times are processor seconds of one thread on this machine, the least of several trials. The
figure prints no numbers; the text gives 0.4 s for a user at d = 4,000 and t = n / 3. Table 3 (`secfpp_table3`) shows
how costs grow. Nothing is trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from fedaudit.privacy.secpc import WIDTH, Protocol
from fedaudit.privacy.sharing import Tolerance, quantised
from fedaudit.reports.figures.drawing import LOW, Plot, grid, legend, look_of
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, write_figure
from fedaudit.reports.rows import as_rows
from fedaudit.reports.templates import Write, render


class Items:
    figure3 = PaperItem()


CENTRES = 3
TRIALS = 5
USUAL_USERS, USUAL_ENTRIES = 20, 150
USERS = (20, 40, 60, 80, 100)
ENTRIES = (150, 500, 1000, 2000, 4000)
PANELS = {"users": f"users (d = {USUAL_ENTRIES})", "d": f"entries d of a vector ({USUAL_USERS} users)"}
TITLES = {"user": "a user", "server": "the server"}
PRINTED = {4000: 0.4}  # seconds of a user in the paper's text, by d
PRINTED_IN_WORDS = ", ".join(f"{seconds} s at d = {d:,}" for d, seconds in PRINTED.items())


def figure3(evidence: EvidenceByTask, write: Write) -> str:
    """Write index.html, figure3.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns a
    sentence with a user's seconds for the longest vector, ours and the paper's. `evidence` is not used."""
    table = ours()
    alt = "SecFPP, Figure 3: seconds of a round against users and dimension"
    drawing = write_figure("figure3", alt, write, plot, table)
    parts = {"drawing": drawing, "rows": as_rows(table), "centres": CENTRES, "said": PRINTED_IN_WORDS}
    write("index.html", render("papers/secfpp_figure3.html", parts))
    longest = panel(table, "d").iloc[-1]
    paper = f"; the paper's text says {PRINTED_IN_WORDS}" if longest.d in PRINTED else ""
    return f"a round takes a user {longest.user:.2g} s at d = {longest.d:.0f} on this machine{paper}"


def ours(users: Sequence[int] = USERS, entries: Sequence[int] = ENTRIES) -> pd.DataFrame:
    """Measure rounds, a row of `measured` per size: each number of `users` with `USUAL_ENTRIES`, and each vector length
    of `entries` with `USUAL_USERS`."""
    sizes = {(n, USUAL_ENTRIES): None for n in users} | {(USUAL_USERS, d): None for d in entries}
    return pd.DataFrame([measured(*size) for size in sizes])


def measured(users: int, entries: int) -> dict[str, float]:
    """Time one round of so many users with vectors of so many entries, and return by name the processor seconds of each
    phase, their sums `user` and `server`, the `bytes` that a user sends, and the sizes: users, d, t (colluders), ell
    (slices of a vector) and bits of the field's prime."""
    t = 3 * users // 10
    wrong = t // 6
    protocol = Protocol(users, Tolerance(t, 0, wrong), 10**4, entries)
    sharing, sums, rng = protocol.of_distances, protocol.of_sums, np.random.default_rng(0)
    vector = quantised(rng.uniform(-1, 1, entries) / entries**0.5, protocol.steps, 1.0)
    received = sharing.field.uniform((users, sharing.length(entries)), rng)
    received_for_sum = sums.field.uniform((users, sums.length(entries)), rng)
    sizes = np.full(CENTRES, users // CENTRES)

    def distances() -> object:
        centres = np.stack([sharing.field.sum(received[i::CENTRES], axis=0) for i in range(CENTRES)])
        return sharing.squared_distances(received, centres, sizes)

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
        "add": lambda: sums.field.sum(received_for_sum, axis=0),
        "decode": lambda: sharing.opened(range(users), answers),
        "decode sum": lambda: sums.opened(range(users), summed),
    }
    seconds = {name: _seconds(phase) for name, phase in work.items()}
    server = seconds["decode"] + seconds["decode sum"]
    sent = WIDTH * users * (sharing.length(entries) + CENTRES + users * CENTRES)  # shares, answers and, of t + 1, masks
    about = {"users": users, "d": entries, "t": t, "ell": sharing.slices, "bits": sharing.field.q.bit_length()}
    return {**about, **seconds, "user": sum(seconds.values()) - server, "server": server, "bytes": sent}


def _seconds(work: Callable[[], object]) -> float:
    """Processor seconds of a call, the least of `TRIALS`."""
    times = []
    for _ in range(TRIALS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def panel(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """The rows of the panel `by` ("users" or "d"), in which nothing else varies, the smallest size first."""
    in_panel = table.d == USUAL_ENTRIES if by == "users" else table.users == USUAL_USERS
    return table[in_panel].sort_values(by)


def plot(table: pd.DataFrame) -> Plot:
    """Draw seconds of a user and of the server, against users in one panel and against entries in the other; return the
    figure with its data."""
    figure, axes = grid(1, len(PANELS), height=3.0, margins=LOW)
    for axis, (by, label) in zip(axes[0], PANELS.items(), strict=True):
        rows = panel(table, by)
        for party, title in TITLES.items():
            axis.plot(rows[by], rows[party], **look_of(list(TITLES), party), label=title)
        if by == "d":
            look = {"color": "black", "markersize": 9, "label": "the paper's text, a user"}
            axis.plot([*PRINTED], [*PRINTED.values()], "*", **look)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set(xlabel=label, ylabel="seconds a round")
    legend(figure)
    return figure, table
