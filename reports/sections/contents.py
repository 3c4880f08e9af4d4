"""Contents: which pictures a server finds from a client's first message, without candidates."""

from __future__ import annotations

import base64

import pandas as pd

from fedaudit.reports.section import Page, Row, Section

ORDER = 83


def section(page: Page) -> Section | None:
    """How often the true picture comes first among all of the data set; None if no first message was asked."""
    parts = page.parts("contents", summary)
    if not parts:
        return None
    context = {"contents": {"parts": parts, "shots": page.parts("contents_shown", _shots)}}
    return Section([("contents", "What a message holds")], context, tables=page.files("contents"))


def summary(table: pd.DataFrame) -> Row:
    """Numbers of `records`, of `messages`, and of those `solved`. Of the solved messages' records: how many have the
    right class (`labels`), come `first`, come among the `first_ten`, or `later`; the mean `cosine`, the number of
    `pictures`, and the `mean` rank. Of another client's records: how many come first (`others`), the mean rank
    (`chance`)."""
    solved = table[table["rank"].notna()]
    ranks = solved["rank"]
    return {
        "records": len(solved), "messages": table.client.nunique(), "solved": solved.client.nunique(),
        "labels": int(solved.label_right.sum()), "cosine": solved.cosine.mean(), "first": int((ranks == 1).sum()),
        "first_ten": int(ranks.between(2, 10).sum()), "later": int((ranks > 10).sum()),
        "pictures": solved.pictures.max(), "mean": ranks.mean(),
        "others": int((solved.control == 1).sum()), "chance": solved.control.mean(),
    }  # fmt: skip


def _shots(table: pd.DataFrame) -> list[Row]:
    """The rows of the table `contents_shown`, with pictures as base64 text."""
    pngs = ("png", "nearest_png")
    return [row | {name: base64.b64encode(row[name]).decode() for name in pngs} for row in table.to_dict("records")]
