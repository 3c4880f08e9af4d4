"""A round of SecFPP between users and a server: the results computed on shares are all that is revealed (Algorithm 1).

Every user sends shares of its vectors to all users; they add and multiply shares and send the results, which the server
decodes. It learns the sums of groups, and the squared distances of users to group means; masks hide everything else
that decoding would show. Users may vanish after they sent shares, wrong answers are corrected, and both are named.

Server and users are honest but curious, and the server colludes with nobody (SecFPP, 3.2). Up to t users with pooled
shares learn nothing; shares of t + 1 and more reveal combinations of slices and noise, those of ell + t everything. A
server that colludes with c <= t users learns nothing from their shares, but can subtract their own vectors from every
sum; therefore groups have t + 2 users. Shares travel as if between two users (encrypted, if the server passes them on).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedaudit.machinery.errors import InputError
from fedaudit.privacy.clustering import Clusters, Floats, Numbers, Rule
from fedaudit.privacy.field import Residues
from fedaudit.privacy.sharing import Integers, Sharing, Tolerance, quantised

WIDTH = 8  # bytes of a residue
FINE = 10**6  # steps per unit of summed numbers: gradients and second moments
RANGE = 1000.0  # largest absolute entry of a gradient


@dataclass(frozen=True)
class Protocol:
    """Parameters that n users and the server agree on. InputError: the results could not be decoded."""

    users: int
    tolerance: Tolerance
    steps: int  # lambda: steps per unit of the vectors for distances, which have length 1
    entries: int  # length d of these vectors

    def __post_init__(self) -> None:
        _ = self.of_sums, self.of_distances  # raises InputError if results cannot be decoded
        if self.users < self.least:
            raise InputError(f"{self.users} users: a group has at least t + 2 = {self.least}")

    @property
    def least(self) -> int:
        """The smallest group for which anything is revealed: t colluders and two others."""
        return self.tolerance.colluders + 2

    @property
    def of_sums(self) -> Sharing:
        largest = self.users * (int(RANGE) * FINE + 1)
        return Sharing.planned(self.users, self.tolerance, degree=1, largest=largest)

    @property
    def of_distances(self) -> Sharing:
        """The sharing for squared distances of vectors in steps, multiplied by the group's size squared. With vectors
        of length 1 that is at most (2 (n - 1))^2 in units; rounding moves an entry by half a step."""
        far = 2 * (self.users - 1) * (self.steps + (self.entries**0.5) / 2)
        return Sharing.planned(self.users, self.tolerance, degree=2, largest=int(far**2) + 1)


@dataclass(eq=False)
class Meeting:
    """The parties of one round, and a record of what they did."""

    protocol: Protocol
    generators: Sequence[np.random.Generator]  # one per user, for its shares and masks
    absent: Collection[int] = ()  # users that vanish after they sent their shares
    liars: Collection[int] = ()  # users whose answers are wrong
    masked: bool = True  # False: the server decodes the whole polynomial of a distance
    named: set[int] = field(default_factory=set)  # users whose answers turned out wrong
    held: dict[str, Residues] = field(default_factory=dict)  # kept shares [holder, dealer, length], by name
    polynomials: Integers | None = (
        None  # [D (ell + t - 1) + 1, n, G]: values decoded from unmasked distances, slices first
    )
    sent: dict[str, Integers] = field(default_factory=dict)  # bytes [n] sent per user: "shares", "masks", "answers"
    decoded: int = 0  # number of residues

    @property
    def bytes_up(self) -> int:
        """Bytes that all users send; what is meant for other users passes through the server."""
        return int(sum(each.sum() for each in self.sent.values()))

    @property
    def bytes_down(self) -> int:
        """Bytes that the server passes on to users: shares and masks."""
        return int(sum(each.sum() for kind, each in self.sent.items() if kind != "answers"))

    def sums(self, vectors: Floats, groups: Sequence[Numbers], *, limit: float = RANGE, kept: str = "") -> Floats:
        """Sums [G, d] of vectors [n, d], rounded to 1 / FINE, over the G groups of users; `kept` is the name to keep
        the shares under, if any. InputError: an entry exceeds `limit`, or a group has fewer than t + 2 users."""
        sharing = self.protocol.of_sums
        self._check(groups)
        shares = self._deal(sharing, [quantised(vector, FINE, limit) for vector in vectors], kept)  # [n, n, length]
        answers = np.stack([sharing.field.sum(shares[group], axis=0) for group in groups], axis=1)  # [n, G, length]
        values = self._decode(sharing, answers.reshape(len(answers), -1)).reshape(sharing.slices, len(groups), -1)
        return values.transpose(1, 0, 2).reshape(len(groups), -1)[:, : vectors.shape[1]] / FINE

    def squared_distances(self, vectors: Floats, groups: Sequence[Numbers], *, kept: str = "") -> Floats:
        """Squared distances [n, G] of vectors [n, d], of length <= 1 and rounded to 1 / steps, to the means of G groups
        of users. kept: the name to keep the shares under, if any. InputError: an entry exceeds 1, or a group is too
        small."""
        sharing, steps = self.protocol.of_distances, self.protocol.steps
        self._check(groups)
        sizes = np.array([len(group) for group in groups])
        shares = self._deal(sharing, [quantised(vector, steps, 1.0 + 1e-9) for vector in vectors], kept)
        centres = np.stack([sharing.field.sum(shares[group], axis=0) for group in groups], axis=1)  # [n, G, length]
        answers = np.stack(
            [sharing.squared_distances(shares[:, j], centres[j], sizes) for j in range(len(self.generators))]
        )
        words = answers.reshape(len(answers), -1)
        if self.masked:
            slices = self._decode(sharing, sharing.field.add(words, self._masks(sharing, words.shape[1])))
        else:
            values = self._decode(sharing, words, values=sharing.size)
            self.polynomials = values.reshape(sharing.size, len(vectors), len(groups))
            slices = values[: sharing.slices]
        whole = sharing.field.sum(sharing.field.of(slices), axis=0).reshape(len(vectors), len(groups))
        return whole / (steps * sizes.astype(np.float64)) ** 2

    def _deal(self, sharing: Sharing, vectors: Sequence[Integers], kept: str) -> Residues:
        """The shares [dealer, holder, length] of all users' vectors; kept in `held` under the name `kept`, if that is
        not ""."""
        shares = np.stack([sharing.share(v, rng) for v, rng in zip(vectors, self.generators, strict=True)])
        self._count("shares", range(len(shares)), shares[0].size)
        if kept:
            self.held[kept] = shares.swapaxes(0, 1)
        return shares

    def _masks(self, sharing: Sharing, count: int) -> Residues:
        """Shares [n, count], a row per user, of random polynomials whose values at the slices sum to zero. Added to
        answers they hide all of these but the sum over slices. Each is a sum of polynomials from t + 1 users, so that t
        colluders do not know it."""
        dealers = range(self.protocol.tolerance.colluders + 1)
        dealt = np.stack([sharing.zero_sums(count, self.generators[user]) for user in dealers])
        self._count("masks", dealers, dealt[0].size)
        return sharing.field.sum(dealt, axis=0)

    def _decode(self, sharing: Sharing, answers: Residues, *, values: int | None = None) -> Integers:
        """Signed values [points, W] that the server decodes from answers [n, W] without the absent users', as
        `Sharing.opened` does; `answers` of liars are falsified first, in place, and wrong users are named."""
        there = [user for user in range(len(answers)) if user not in self.absent]
        for user in sorted(self.liars):
            answers[user] += 1 + sharing.field.uniform(answers[user].shape, self.generators[user]) % (
                sharing.field.q - 1
            )
        self._count("answers", there, answers.shape[1])
        decoded, wrong = sharing.opened(there, sharing.field.of(answers[there]), values=values)
        self.named |= set(wrong)
        self.decoded += decoded.size
        return decoded

    def _count(self, kind: str, users: Sequence[int], residues: int) -> None:
        self.sent.setdefault(kind, np.zeros(self.protocol.users, np.int64))[users] += residues * WIDTH

    def _check(self, groups: Sequence[Numbers]) -> None:
        small = min(map(len, groups))
        if small < self.protocol.least:
            raise InputError(f"a group of {small} users: at least t + 2 = {self.protocol.least} hide each other")


def pooled_moment(meeting: Meeting, matrices: Floats, noise: Floats | float = 0.0) -> Floats:
    """sum_i A_i^T A_i [d, d], up to rounding, by a secure sum over the users' matrices A_i [b, d] in [n, b, d].

    Every user adds its row of `noise` [n, d (d + 1) / 2] to the entries on and above the diagonal, row by row, and
    cuts them off at -1 and 1. InputError: an entry of A_i^T A_i exceeds 1, as none does where A_i has Frobenius norm 1
    or less."""
    upper = np.triu_indices(matrices.shape[2])
    moments = np.einsum("nbd,nbe->nde", matrices, matrices)[:, *upper]
    if np.any(noise):
        moments = np.clip(moments + noise, -1, 1)
    (total,) = meeting.sums(
        RANGE * moments, [np.arange(len(matrices))], limit=RANGE + 1 / FINE
    )  # the finest steps possible
    pooled = np.zeros((matrices.shape[2],) * 2)
    pooled[upper] = total / RANGE
    return pooled + np.triu(pooled, 1).T


def secpc(
    meeting: Meeting, rule: Rule, clusters: Clusters, vectors: Floats, rng: np.random.Generator
) -> tuple[Clusters, Floats]:
    """Run a round of SecFPP's Algorithm 1: the new clusters, and the squared distances [n, G] of users to the old
    groups' means, which it reveals."""
    distances = meeting.squared_distances(vectors, clusters.groups(rule.least), kept="prompts")
    return rule.revise(clusters, distances, rng), distances
