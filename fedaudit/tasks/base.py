"""What a task gives: a federation of clients with records, and the truth about who was trained on what."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.metrics import caption_scores

IMAGE = "<image>"  # where a prompt shows its picture


@dataclass(frozen=True, eq=False)
class Record:
    """One image with what is asked about it and the right answer. `id` is stable and says nothing about membership."""

    id: str
    group: str  # what the partition goes by: the object class of a caption, the topic of a question
    picture: (
        NDArray[np.uint8] | Path | bytes
    )  # pixels [H, W, 3], an image file, or the bytes of one; read when it is used
    prompt: str  # the instruction, with one <image>
    text: str  # what the model learns to say
    references: tuple[str, ...] = ()  # right answers, for evaluation
    domain: str = ""  # which of several data sets it is from
    where: str = ""  # file and line or row that it is from, for messages

    def __post_init__(self) -> None:
        if isinstance(self.picture, np.ndarray):
            self._check(self.picture)
        said = "".join((self.id, self.group, self.prompt, self.text, *self.references, self.domain))
        if "\0" in said or not is_text(said):
            raise InputError(f"{self.called} holds a NUL or half a character (a lone surrogate), which no text has")
        if self.prompt.count(IMAGE) != 1:
            raise InputError(f"{self.called}: its prompt must hold {IMAGE} once, not {self.prompt.count(IMAGE)} times")
        if not self.text.strip():
            raise InputError(f"{self.called}: its text is empty")

    @property
    def called(self) -> str:
        """The record as messages name it: by its id, and by where it is from."""
        name = self.id if self.id.isprintable() else ascii(self.id)
        return f"record {name} ({self.where})" if self.where else f"record {name}"

    @property
    def image(self) -> NDArray[np.uint8]:
        """Pixels [H, W, 3]; transparency is ignored, of an animation the first picture counts. InputError: missing or
        no image."""
        if isinstance(self.picture, np.ndarray):
            return self.picture
        try:
            with user_files.picture(self.picture) as opened:
                whole = opened.convert("RGBA") if opened.mode == "P" else opened  # else its transparency is warned of
                pixels = np.asarray(whole.convert("RGB"))
        except OSError as error:
            where = f"{self.called}: {self.picture if isinstance(self.picture, Path) else 'its image'}"
            raise InputError(f"{where} is no readable image ({error.strerror or error})") from error
        self._check(pixels)
        return pixels

    @property
    def content(self) -> bytes:
        """What names the picture: the bytes of its file, or of its pixels after their shape."""
        if isinstance(self.picture, np.ndarray):
            return f"{self.picture.shape}".encode() + np.ascontiguousarray(self.picture).tobytes()
        if isinstance(self.picture, bytes):
            return self.picture
        with self._read(self.picture):
            return user_files.read_bytes(self.picture)

    @property
    def digest(self) -> str:
        """SHA-256 of `content` in hexadecimal; a file is read once per process unless its size or time changes."""
        if isinstance(self.picture, Path):
            with self._read(self.picture):
                return user_files.sha256(self.picture)
        return hashlib.sha256(self.content).hexdigest()

    @contextmanager
    def _read(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"{self.called}: {path} cannot be read ({error.strerror or error})") from error

    def _check(self, pixels: NDArray[np.uint8]) -> None:
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
            raise InputError(f"{self.called}: its image must be [height, width, 3], not {list(pixels.shape)}")


@dataclass(frozen=True, eq=False)
class Client:
    """One party. Members and held-out records come from one draw and a coin per record: they are exchangeable."""

    name: str
    records: tuple[
        Record, ...
    ]  # the candidates of an attack: members and held-out records in an order that says nothing
    reference: tuple[Record, ...]  # more of the same distribution, never trained on: thresholds are taken from these
    member: NDArray[np.bool_] = field(repr=False)  # [len(records)]; for training and for audits only
    background: tuple[Record, ...] = ()  # further training records, which nobody asks about
    classes: tuple[str, ...] = ()  # classification: the classes of its records, in label order
    canaries: tuple[Record, ...] = ()  # no candidates of an attack on membership: they bound epsilon
    canary_included: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), repr=False)  # [len(canaries)]

    @property
    def candidates(self) -> list[str]:
        """Ids of the records that a coin decided about, canaries at the end."""
        return [record.id for record in (*self.records, *self.canaries)]

    @property
    def training_records(self) -> tuple[Record, ...]:
        """Its list: members, every canary, and background. What goes by the list (n_k, batches, sampling rates, epochs,
        the mean over clients) does not depend on canaries' coins; those that a coin left out weigh 0."""
        members = tuple(record for record, used in zip(self.records, self.member.tolist(), strict=True) if used)
        return members + self.canaries + self.background

    @property
    def left_out(self) -> frozenset[str]:
        """Ids of the records of its list that weigh 0."""
        coins = zip(self.canaries, self.canary_included.tolist(), strict=True)
        return frozenset(record.id for record, used in coins if not used)

    @property
    def drawn(self) -> list[tuple[Record, bool]]:
        """Candidates and canaries, each with whether it is trained on, with weight."""
        used = np.concatenate([self.member, self.canary_included]).tolist()
        return list(zip((*self.records, *self.canaries), used, strict=True))


Score = Callable[[Sequence[str], Sequence[Sequence[str]]], dict[str, float]]


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients of a task, records that no client holds, and a test set."""

    clients: tuple[Client, ...]
    novel: tuple[Record, ...]  # out of distribution: the papers' own non-members; may be empty
    test: tuple[Record, ...]  # for utility, with several references each
    score: Score = (
        caption_scores  # utility of answers [record] against references [record][reference], 100 at best for most
    )
    novel_test: tuple[Record, ...] = ()  # for utility out of distribution
    classes: tuple[str, ...] = ()  # classification: all class names, in label order
    # record to the first one that shows the same picture, where several clients hold it and one coin decided for all
    shared: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> dict[str, Record]:
        """Every record by id."""
        everything = [*self.novel, *self.test, *self.novel_test]
        for client in self.clients:
            everything += [*client.records, *client.canaries, *client.reference, *client.background]
        return {record.id: record for record in everything}

    @property
    def sizes(self) -> list[int]:
        """How many records each client's list holds, those of weight 0 included."""
        return [len(client.training_records) for client in self.clients]

    @property
    def truth(self) -> dict[str, bool]:
        """Record id to membership, for every candidate and canary of every client. Reaches audits, never attacks."""
        return {record.id: used for client in self.clients for record, used in client.drawn}

    @property
    def coins(self) -> dict[str, tuple[str, str]]:
        """Candidate or canary to its coin, and to the stratum within which coins may be exchanged without changing how
        many members any client has: whoever holds the picture, canaries apart."""
        holders: dict[str, str] = {}
        for client in self.clients:
            for record in client.records:
                coin = self.shared.get(record.id, record.id)
                holders[coin] = f"{holders[coin]}, {client.name}" if coin in holders else client.name
        coins = {r.id: self.shared.get(r.id, r.id) for client in self.clients for r in client.records}
        canaries = {r.id: (r.id, f"{c.name}, canaries") for c in self.clients for r in c.canaries}
        return {record: (coin, holders[coin]) for record, coin in coins.items()} | canaries


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def client_name(k: int) -> str:
    """How client k is called in tables and reports."""
    return f"client-{k:02d}"


Draw = Callable[
    [str, int, np.random.Generator], Sequence[Record]
]  # first part of the ids, how many, from which generator


def exchangeable_client(k: int, *, records: int, reference: int, seed: int, draw: Draw) -> Client:
    """Client k with 2 `records` candidates from one draw, a coin for each, and reference records; each from a generator
    of its own."""
    pool, coins, more = (np.random.default_rng((seed, 1, k, part)) for part in range(3))
    name = client_name(k)
    return Client(
        name,
        tuple(draw(name, 2 * records, pool)),
        tuple(draw(f"{name}-reference", reference, more)),
        coin_flips(2 * records, coins),
    )


def coin_flips(n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Membership [n] by a fair coin per record, all flipped again until each side has two records (one of n < 4)."""
    while True:
        member = rng.random(n) < 0.5
        if min(member.sum(), n - member.sum()) >= min(2, n // 2):
            return member


def dirichlet_proportions(
    clients: int, classes: int, concentration: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Class proportions [clients, classes] of each client, Dirichlet(concentration) (FedRand, section 4.1)."""
    return rng.dirichlet(np.full(classes, concentration), size=clients)
