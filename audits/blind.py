"""The blind baseline: a cross-fitted classifier that sees the records and never a model.

Differences that it finds were leaked by no model. It should be unable to tell members from non-members of one
distribution. If it can (another distribution, time or collector), an attack's AUROC measures that difference.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from fedaudit.tasks.base import Record, client_name
from fedaudit.terms.nonmembers import BY_COIN

FOLDS = 5
THUMBNAIL = 8  # pixels per side


def blind_scores(
    records: Sequence[Record], member: Sequence[bool], client: Sequence[str], *, seed: int
) -> dict[str, float]:
    """{record id: log-odds of membership}, from a logistic regression that was fitted on the other folds and never saw
    a model.

    Features: the words of the text, its length, a thumbnail of the image. Folds are stratified by client and
    membership. All NaN if there are fewer members, or fewer non-members, than folds.
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
    """The blind scores, {(client, kind of non-members): {record id: score}}. `rows` has the same keys: whether each
    record is a member (`audits.comparisons.ScoredRun.rows`).

    Where a coin chose the non-members, one classifier learns from all clients; for other kinds of non-members, which
    may differ from client to client, each client has a classifier of its own.
    """
    scores_by_row: dict[tuple[int | None, str], dict[str, float]] = {}
    for nonmembers in dict.fromkeys(kind for _, kind in rows):
        by_client = {k: row for (k, kind), row in rows.items() if kind == nonmembers}
        groups = [list(by_client)] if nonmembers in BY_COIN else [[k] for k in by_client]
        for group in groups:
            entries = [(client_name(k), r, is_member) for k in group for r, is_member in by_client[k].items()]
            clients, member = [name for name, *_ in entries], [is_member for *_, is_member in entries]
            scores = blind_scores([records[r] for _, r, _ in entries], member, clients, seed=seed)
            scores_by_row |= {(k, nonmembers): {r: scores[r] for r in by_client[k]} for k in group}
    return scores_by_row


def _thumbnail(image: np.ndarray) -> np.ndarray:
    """Block means [3 * 8 * 8] of an image [H, W, 3], edges cropped to a multiple of the block."""
    for axis in (0, 1):
        image = np.repeat(image, -(-THUMBNAIL // image.shape[axis]), axis)  # a tiny picture has no eight blocks a side
    h, w = (side // THUMBNAIL for side in image.shape[:2])
    blocks = image[: h * THUMBNAIL, : w * THUMBNAIL].reshape(THUMBNAIL, h, THUMBNAIL, w, 3)
    return blocks.mean(axis=(1, 3)).ravel()
