"""The blind baseline: a cross-fitted classifier that sees the records and never a model.

What it tells apart, no model leaked: members and non-members of one distribution must be beyond it, and where they are
not (another distribution, another time, another collector) an attack's AUROC measures that difference and not
membership.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from fedaudit.tasks.base import Record, client_name
from fedaudit.terms.nonmembers import BY_COIN

FOLDS = 5
THUMBNAIL = 8  # pixels a side


def blind_scores(
    records: Sequence[Record], member: Sequence[bool], client: Sequence[str], *, seed: int
) -> dict[str, float]:
    """Log-odds of membership of each record, from a logistic regression that was fitted without it.

    Features: the words of the text, its length, a thumbnail of the image. Folds are stratified by client and
    membership. NaN for every record if one of the two kinds has fewer records than there are folds.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if min(sum(member), len(member) - sum(member)) < FOLDS:
        return {record.id: float("nan") for record in records}
    words = CountVectorizer(binary=True, token_pattern=r"\S+").fit_transform([r.text for r in records]).toarray()
    length = np.array([[len(r.text.split())] for r in records])
    features = np.hstack([words, length, [_thumbnail(r.image) for r in records]]).astype(float)
    y = np.array(member, dtype=bool)
    strata = np.array([f"{c}/{m}" for c, m in zip(client, member, strict=True)])
    counts = dict(zip(*np.unique(strata, return_counts=True), strict=True))
    strata = np.where([counts[s] >= FOLDS for s in strata], strata, y.astype(str))
    scores = np.empty(len(records))
    with warnings.catch_warnings():
        # a stratum of few records is only spread less evenly
        warnings.filterwarnings("ignore", "The least populated class")
        folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(features, strata))
    for train, test in folds:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
        scores[test] = model.fit(features[train], y[train]).decision_function(features[test])
    return {record.id: float(score) for record, score in zip(records, scores, strict=True)}


def blind_controls(
    records: Mapping[str, Record], rows: Mapping[tuple[int, str], Mapping[str, bool]], *, seed: int
) -> dict[tuple[int | None, str], dict[str, float]]:
    """The blind scores of each target client's comparisons (`audits.comparisons.Attacked.row`), by client and kind of
    non-members, by record.

    Where a coin made the non-members, one classifier learns from all clients; other clients' records differ from client
    to client, and so do the classifiers.
    """
    found: dict[tuple[int | None, str], dict[str, float]] = {}
    for nonmembers in dict.fromkeys(kind for _, kind in rows):
        same = {k: row for (k, kind), row in rows.items() if kind == nonmembers}
        groups = [list(same)] if nonmembers in BY_COIN else [[k] for k in same]
        for group in groups:
            asked = [(client_name(k), r, used) for k in group for r, used in same[k].items()]
            scores = blind_scores(
                [records[r] for _, r, _ in asked], [used for *_, used in asked], [name for name, *_ in asked], seed=seed
            )
            found |= {(k, nonmembers): {r: scores[r] for r in same[k]} for k in group}
    return found


def _thumbnail(image: np.ndarray) -> np.ndarray:
    """Block means [3 * 8 * 8] of an image [H, W, 3], edges cropped to a multiple of the block."""
    for axis in (0, 1):
        image = np.repeat(image, -(-THUMBNAIL // image.shape[axis]), axis)  # a tiny picture has no eight blocks a side
    h, w = (side // THUMBNAIL for side in image.shape[:2])
    blocks = image[: h * THUMBNAIL, : w * THUMBNAIL].reshape(THUMBNAIL, h, THUMBNAIL, w, 3)
    return blocks.mean(axis=(1, 3)).ravel()
