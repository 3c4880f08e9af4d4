"""Plugins: the findings of audits from elsewhere, which have no section of their own."""

from __future__ import annotations

from dataclasses import fields

from fedaudit.audits.facts import AUDITS, AuditFacts
from fedaudit.audits.findings import OfRun
from fedaudit.machinery.plugins import Plugin
from fedaudit.reports.section import Page, Row, Section

ORDER = 95
OF_RUN = {field.name for field in fields(OfRun)}  # what findings of all audits have


def section(page: Page) -> Section | None:
    """A table for each such audit that found something; None if there is none."""
    foreign = [plugin for plugin in AUDITS.values() if plugin.foreign]
    parts = [part for plugin in foreign if (part := _part(page, plugin))]
    if not parts:
        return None
    names = {name for e in page.evidence for name in e.tables}
    tables = [name for name in sorted(names) if any(f"{name}_".startswith(f"{p.name}_") for p in foreign)]
    return Section([("plugins", "Audits of your own")], {"plugins": parts}, tables=page.files(*tables))


def _part(page: Page, plugin: Plugin[AuditFacts]) -> Row | None:
    """The name and summary of an audit, the columns of its findings beside those of all, and a row per finding: the
    run's title, and a cell per column (None: the finding has no such field)."""
    findings = [f for f in page.findings if f["metric"].partition("/")[0] == plugin.name]
    columns = list(dict.fromkeys(name for finding in findings for name in finding if name not in OF_RUN))
    titles = {e.method: run.title for run in page.runs for e in run.evidence}
    rows = [
        {"name": titles[f["method"]], "seed": f["seed"], "cells": [f.get(name) for name in columns]} for f in findings
    ]
    return {"name": plugin.name, "summary": plugin.summary, "columns": columns, "rows": rows} if findings else None
