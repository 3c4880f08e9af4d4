"""Who is exposed: classifiers' records one by one, whether the attacks agree, canaries, and what was not run."""

from __future__ import annotations

from reports.section import Page, Section

ORDER = 30


def section(page: Page) -> Section | None:
    """Beside the verdicts on classifiers."""
    if "inference" not in page.above:
        return None
    shown = page.above["inference"].context["inference"]
    links = [("figures", "Who is exposed")]
    if shown.parts["exposed"]:
        links.append(("exposed", "Exposed records"))
    if shown.parts["agreement"]:
        links.append(("agreement", "Agreement"))
    if shown.refused:
        links.append(("refused", "Not run"))
    return Section(links)
