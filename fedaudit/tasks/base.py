"""A task's result: a federation of clients with their records, and which of these each client trained on."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import DamagedPicture
from fedaudit.tasks.metrics import caption_scores

IMAGE = "<image>"  # where a prompt shows its picture


@dataclass(frozen=True, eq=False)
class Record:
    """One image with an instruction and the right answer. `id` is stable and says nothing about membership.

    InputError: a text with a NUL or half a character, a prompt without exactly one `<image>`, a blank `text`, or pixels
    that are not [H, W, 3].
    """

    id: str
    group: str  # what the partition goes by: the object class of a caption, the topic of a question
    picture: NDArray[np.uint8] | Path | bytes  # pixels [H, W, 3], an image file or its bytes; decoded when used
    prompt: str  # the instruction, with one <image>
    text: str  # what the model learns to say
    references: tuple[str, ...] = ()  # right answers, for evaluation
    domain: str = ""  # which of several data sets it is from
    where: str = ""  # file and line or row that it is from, for messages

    def __post_init__(self) -> None:
        if isinstance(self.picture, np.ndarray):
            self._check(self.picture)
        texts = "".join((self.id, self.group, self.prompt, self.text, *self.references, self.domain))
        if "\0" in texts or not is_text(texts):
            raise InputError(f"{self.called} holds a NUL or half a character (a lone surrogate), which no text has")
        if self.prompt.count(IMAGE) != 1:
            raise InputError(f"{self.called}: its prompt must hold {IMAGE} once, not {self.prompt.count(IMAGE)} times")
        if not self.text.strip():
            raise InputError(f"{self.called}: its text is empty")

    @property
    def called(self) -> str:
        """The record's name in messages: its id, and in brackets where it is from."""
        name = self.id if self.id.isprintable() else ascii(self.id)
        return f"record {name} ({self.where})" if self.where else f"record {name}"

    @property
    def image(self) -> NDArray[np.uint8]:
        """Pixels [H, W, 3] in RGB, of an animation the first frame. DamagedPicture: the file is missing or no image."""
        if isinstance(self.picture, np.ndarray):
            return self.picture
        try:
            pixels = np.asarray(user_files.decode(self.picture))
        except OSError as error:
            where = f"{self.called}: {self.picture if isinstance(self.picture, Path) else 'its image'}"
            raise DamagedPicture(f"{where} is no readable image ({error.strerror or error})") from error
        self._check(pixels)
        return pixels

    def require_image(self) -> None:
        """DamagedPicture as `image`."""
        _ = self.image

    @property
    def content(self) -> bytes:
        """Bytes that identify the picture: those of its file, or its pixels after their shape."""
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
    """A party with its candidates (`records`), each a member or a held-out record by an independent coin."""

    name: str
    records: tuple[Record, ...]  # candidates of an attack: members and held-out records, in an uninformative order
    reference: tuple[Record, ...]  # same distribution, never trained on: attacks take their thresholds from these
    member: NDArray[np.bool_] = field(repr=False)  # [len(records)]; for training and for audits only
    background: tuple[Record, ...] = ()  # further training records that are no candidates
    classes: tuple[str, ...] = ()  # classification: the classes of its records, in label order
    canaries: tuple[Record, ...] = ()  # for the bound of epsilon; not attacked otherwise
    canary_included: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), repr=False)  # [len(canaries)]
    # whether canaries that their coin left out are in training with weight 0; a training done elsewhere never saw them
    weightless: bool = True

    @property
    def candidates(self) -> list[str]:
        """Ids of all records that a coin decided about: `records`, then `canaries`."""
        return [record.id for record in (*self.records, *self.canaries)]

    @property
    def training_records(self) -> tuple[Record, ...]:
        """Members, canaries, and background records. Canaries that their coin left out are listed too, with weight 0
        (`weightless`): so n_k, batches, sampling rates, epochs and the mean over clients do not depend on the coins."""
        members = tuple(record for record, used in zip(self.records, self.member.tolist(), strict=True) if used)
        return members + tuple(r for r in self.canaries if self.weightless or r.id not in self._out) + self.background

    @property
    def left_out(self) -> frozenset[str]:
        """Ids of the training records with weight 0: canaries that their coin left out."""
        return self._out if self.weightless else frozenset()

    @property
    def _out(self) -> frozenset[str]:
        coins = zip(self.canaries, self.canary_included.tolist(), strict=True)
        return frozenset(record.id for record, used in coins if not used)

    @property
    def labelled_candidates(self) -> list[tuple[Record, bool]]:
        """Every candidate and canary, with True where it is trained on (with weight 1)."""
        used = np.concatenate([self.member, self.canary_included]).tolist()
        return list(zip((*self.records, *self.canaries), used, strict=True))


Score = Callable[[Sequence[str], Sequence[Sequence[str]]], dict[str, float]]


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients of a task, records that no client has, and a test set."""

    clients: tuple[Client, ...]
    novel: tuple[Record, ...]  # out-of-distribution non-members, as in the papers; may be empty
    test: tuple[Record, ...]  # for utility, with several references each
    score: Score = caption_scores  # utility of answers [record] against references [record][reference], most up to 100
    novel_test: tuple[Record, ...] = ()  # for utility out of distribution
    classes: tuple[str, ...] = ()  # classification: all class names, in label order
    # record id to that of the first record with the same picture; only where clients share pictures, and so coins
    shared: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()  # sentences on the data that terminal and page say

    @property
    def records(self) -> dict[str, Record]:
        """Every record there is, {id: record}: of clients (canaries and background among them), novel and test sets."""
        everything = [*self.novel, *self.test, *self.novel_test]
        for client in self.clients:
            everything += [*client.records, *client.canaries, *client.reference, *client.background]
        return {record.id: record for record in everything}

    @property
    def sizes(self) -> list[int]:
        """The number of training records of each client, those of weight 0 included."""
        return [len(client.training_records) for client in self.clients]

    @property
    def truth(self) -> dict[str, bool]:
        """Whether each candidate and canary is trained on, by record id. Audits get this, attacks never do."""
        return {record.id: used for client in self.clients for record, used in client.labelled_candidates}

    @property
    def coins(self) -> dict[str, tuple[str, str]]:
        """{id of a candidate or canary: (id of its coin, stratum of the coin)}.

        A stratum names the clients that have the picture (canaries form strata of their own). Permuting coins within a
        stratum keeps every client's number of members.
        """
        holders: dict[str, str] = {}
        for client in self.clients:
            for record in client.records:
                coin = self.shared.get(record.id, record.id)
                holders[coin] = f"{holders[coin]}, {client.name}" if coin in holders else client.name
        coins = {r.id: self.shared.get(r.id, r.id) for c in self.clients for r in c.records}
        canaries = {r.id: (r.id, f"{c.name}, canaries") for c in self.clients for r in c.canaries}
        return {record: (coin, holders[coin]) for record, coin in coins.items()} | canaries


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8 (no lone surrogates)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def client_name(k: int) -> str:
    """The name of client k in tables and reports, such as client-03."""
    return f"client-{k:02d}"


Draw = Callable[[str, int, np.random.Generator], Sequence[Record]]  # (prefix of the ids, how many, generator)


def exchangeable_client(k: int, *, records: int, reference: int, seed: int, draw: Draw) -> Client:
    """Client k with 2 * records candidates, a fair coin for each, and `reference` reference records. Candidates, coins
    and reference records come from three generators, seeded by `seed` and k."""
    pool, coins, more = (np.random.default_rng((seed, 1, k, part)) for part in range(3))
    name = client_name(k)
    return Client(
        name,
        tuple(draw(name, 2 * records, pool)),
        tuple(draw(f"{name}-reference", reference, more)),
        coin_flips(2 * records, coins),
    )


def drawn_federation(
    params: Any, draw: Callable[..., tuple[Record, ...]], *, test_draw: Callable[..., tuple[Record, ...]], groups: int,
    novel_shapes: Sequence[str], clients: int, seed: int, score: Score = caption_scores,
) -> Federation:  # fmt: skip
    """A federation whose records are drawn on the spot, each part from a generator of its own.

    params: has the fields of `Drawn`. draw: takes what `Draw` says, and the keywords `proportions` [groups] (a client's
    share of each group) and `shapes` (the objects that may be drawn; `novel_shapes` out of distribution). test_draw:
    draws the test records in the same way, without `proportions`.
    """
    rng = {part: np.random.default_rng((seed, part)) for part in (0, 2, 3, 4)}
    proportions = rng[0].dirichlet(np.full(groups, params.dirichlet), size=clients)  # FedRand, section 4.1
    return Federation(
        clients=tuple(
            exchangeable_client(
                k, records=params.records, reference=params.reference, seed=seed, draw=partial(draw, proportions=shares)
            )
            for k, shares in enumerate(proportions)
        ),
        novel=draw("novel", params.novel, rng[2], shapes=novel_shapes),
        test=test_draw("test", params.test, rng[3]),
        score=score,
        novel_test=test_draw("novel-test", params.test, rng[4], shapes=novel_shapes),
    )


def coin_flips(n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Membership [n] by fair coins, drawn again until both sides have two records (one if n < 4, none if n < 2)."""
    while True:
        member = rng.random(n) < 0.5
        if min(member.sum(), n - member.sum()) >= min(2, n // 2):
            return member
