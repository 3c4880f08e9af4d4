"""MSCOCO captions from local files, with NoCaps as non-members that no client could hold.

Clients draw by object class: the category of a picture's largest annotated object, Dirichlet(0.5). The default sizes give
the 300 members and 300 NoCaps pictures of FedRand's attack; unlike there, every client also holds out as many records of
its own. Source of the set-up: FedRand, sections 4.1 and 4.2, appendix A. Layouts, downloads and costs: docs/data.md.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaudit.errors import InputError
from fedaudit.tasks.base import Federation
from fedaudit.tasks.captions import INSTRUCTION
from fedaudit.tasks.local import (
    Item,
    Row,
    choose_splits,
    federate,
    folder,
    need,
    parquet_files,
    parquet_rows,
    read_json,
)

SOURCE = (
    "annotations_trainval2017.zip, train2017.zip and val2017.zip from the MSCOCO site, unpacked, or its parquet files"
)
NOCAPS = "nocaps_val_4500_captions.json from the nocaps site with its pictures in images/, or its parquet files"
KEYS = set("images annotations categories id file_name image_id caption category_id area name domain".split())
PARQUET = {
    "captions": ("answer", "captions", "caption", "sentences", "sentences_raw", "annotations_captions"),
    "group": ("category", "label", "objects"),
    "domain": ("domain", "image_domain", "region"),
    "picture": ("image_id", "cocoid", "image_open_images_id", "image_file_name", "file_name", "filename"),
}


@dataclass(frozen=True)
class Params:
    data_root: str = field(
        default="", metadata={"help": "folder of MSCOCO: annotations/ and train2017/, or parquet files"}
    )
    nocaps_root: str = field(
        default="", metadata={"help": "folder of NoCaps (default: nocaps in the data root, if there)"}
    )
    nocaps_domain: str = field(
        default="out-domain", metadata={"help": "NoCaps pictures: in-domain, near-domain, out-domain or all"}
    )
    records: int = field(default=25, metadata={"help": "expected training records per client; as many are held out"})
    background: int = field(
        default=0, metadata={"help": "further training records per client that are not asked about"}
    )
    reference: int = field(default=75, metadata={"help": "records per client kept for thresholds"})
    novel: int = field(default=300, metadata={"help": "out-of-distribution records, from NoCaps"})
    test: int = field(default=40, metadata={"help": "test pictures for utility, in and out of distribution"})
    dirichlet: float = field(default=0.5, metadata={"help": "concentration of the partition by object class"})

    def __post_init__(self) -> None:
        for name, least in (("records", 2), ("background", 0), ("reference", 2), ("novel", 2), ("test", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 1e-3 <= self.dirichlet <= 1e6:
            raise ValueError(f"dirichlet must lie between 0.001 and 1000000, not {self.dirichlet}")
        if self.nocaps_domain not in ("in-domain", "near-domain", "out-domain", "all"):
            raise ValueError(
                f"nocaps_domain must be in-domain, near-domain, out-domain or all, not {self.nocaps_domain}"
            )


def coco(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on the MSCOCO files of `data_root`."""
    root = folder(params.data_root, flag="--data-root", source=SOURCE)
    beside = root / "nocaps"
    wanted = params.nocaps_root or (str(beside) if beside.is_dir() else "")
    nocaps = folder(wanted, flag="--nocaps-root", source=NOCAPS) if wanted else None
    novel = _nocaps(nocaps, params.nocaps_domain) if nocaps else []
    pool, test = _official(root) or _parquet(root, nocaps or beside)
    return federate(pool, test, novel, params=params, clients=clients, seed=seed)


def _official(root: Path) -> tuple[list[Item], list[Item]] | None:
    """The layout of the MSCOCO site, of 2017 or 2014; None without caption files. Splits without pictures are not there."""
    names = [split + year for year in ("2017", "2014") for split in ("train", "val")]
    notes = {name: path for name in names if (path := _beside(root, f"captions_{name}.json")) is not None}
    folders = ((name, base / name) for name in notes for base in (root / "images", root))
    images = {name: path for name, path in folders if path.is_dir()}
    for year in ("2017", "2014"):
        there = [name.removesuffix(year) for name in images if name.endswith(year)]
        if there:
            chosen = choose_splits(there, ("val",))
            pool, test = (_captions(notes[one + year], images[one + year]) if one else [] for one in chosen)
            return pool, test
    if notes:
        name = next(iter(notes))
        raise InputError(f"{root}: neither {name}/ nor images/{name}/ is there; unpack {name}.zip from the MSCOCO site")
    return None


def _beside(root: Path, name: str) -> Path | None:
    return next((path for path in (root / "annotations" / name, root / name) if path.is_file()), None)


def _captions(path: Path, images: Path) -> list[Item]:
    """All pictures of one caption file that have a caption, with the class of their largest object."""
    classes = _classes(path.with_name(path.name.replace("captions", "instances")))
    return [
        _item(f"coco-{_key(n)}", classes.get(n, "none"), images / need(image, "file_name", path, str), texts)
        for n, image, texts in _told(path)
    ]


def _item(name: str, group: str, source: Path | Row, texts: tuple[str, ...]) -> Item:
    return Item(name, group, source, INSTRUCTION, texts)


def _key(picture: Any) -> str:
    """What a picture goes by in the id of its record."""
    return f"{picture:012d}" if isinstance(picture, int) else Path(str(picture)).stem


def _told(path: Path) -> Iterable[tuple[Any, Any, tuple[str, ...]]]:
    """Id, object and captions of each picture in a file of MSCOCO's form; blank captions are left out."""
    content, told = read_json(path, KEYS), dict[Any, list[str]]()
    for note in need(content, "annotations", path, list):
        told.setdefault(need(note, "image_id", path), []).append(need(note, "caption", path))
    images = {need(image, "id", path): image for image in need(content, "images", path, list)}
    for picture, image in images.items():
        if texts := _texts(told.get(picture)):
            yield picture, image, texts


def _classes(path: Path) -> dict[int, str]:
    """Picture id to the name of its largest object's category."""
    content, largest = read_json(path, KEYS), dict[int, tuple[float, int]]()
    names = {need(kind, "id", path): need(kind, "name", path) for kind in need(content, "categories", path, list)}
    for thing in need(content, "annotations", path, list):
        number, size = need(thing, "image_id", path), (need(thing, "area", path), need(thing, "category_id", path))
        largest[number] = max(size, largest.get(number, size))
    unknown = {kind for _, kind in largest.values()} - set(names)
    if unknown:
        raise InputError(f"{path}: category_id {min(unknown)} is not among its categories")
    return {number: str(names[kind]) for number, (_, kind) in largest.items()}


def _parquet(root: Path, skip: Path) -> tuple[list[Item], list[Item]]:
    files = parquet_files(root, skip=skip)
    if not files:
        raise InputError(
            f"--data-root {root}: no data set recognised; looked for annotations/captions_train2017.json (or val2017, "
            f"train2014, val2014) and for *.parquet anywhere below; it should hold {SOURCE}"
        )
    pool, test = choose_splits(files, ("val", "test", "train"))
    items = {split: _items("coco", split, files[split], "all")[0] for split in (pool, test) if split is not None}
    return items[pool], items[test] if test is not None else []


def _items(name: str, split: str, files: list[Path], group: str) -> tuple[list[Item], dict[str, str]]:
    """One item for each picture of parquet files, and its domain by id. Rows that name the same picture are one item."""
    first: dict[str, tuple[Row, dict[str, Any]]] = {}
    told: dict[str, list[str]] = {}
    for n, (row, values) in enumerate(parquet_rows(files, PARQUET, needed=("captions",))):
        picture = values["picture"]
        if picture is None and isinstance(values["captions"], str):
            picture = values["path"]
        if picture == "":
            raise InputError(
                f"{row}: with one caption in a row, a column must tell which rows show the same picture; it needs "
                f"{' or '.join(PARQUET['picture'])}"
            )
        name_of_row = "-".join(filter(None, (name, split, _key(n if picture is None else picture))))
        first.setdefault(name_of_row, (row, values))
        told.setdefault(name_of_row, []).extend(_texts(values["captions"]))
    items = [
        _item(one, _group(values["group"], group), row, tuple(told[one]))
        for one, (row, values) in first.items()
        if told[one]
    ]
    return items, {one: str(values["domain"] or "") for one, (_, values) in first.items()}


def _nocaps(root: Path, domain: str) -> list[Item]:
    """NoCaps pictures of a domain; of all domains where nothing says which is whose, as in the usual parquet files."""
    path = _beside(root, "nocaps_val_4500_captions.json")
    files = {} if path else parquet_files(root)
    domains: dict[str, str] = {}
    items: list[Item] = []
    if path is not None:
        folders = [base / name for base in (path.parent, root) for name in ("images", "val", "nocaps_images", ".")]
        images = next(one for one in folders if one.is_dir())
        for number, image, texts in _told(path):
            picture = images / need(image, "file_name", path, str)
            items.append(_item(f"nocaps-{_key(number)}", str(image.get("domain") or "novel"), picture, texts))
            domains[items[-1].id] = str(image.get("domain") or "")
    for split, paths in files.items():
        more, their = _items("nocaps", split, paths, "novel")
        items, domains = items + more, domains | their
    if not items:
        raise InputError(f"--nocaps-root {root}: no picture with captions recognised; it should hold {NOCAPS}")
    there = Counter(filter(None, domains.values()))
    if domain == "all" or not there:
        return items
    if domain not in there:
        raise InputError(f"--nocaps-domain {domain}: {root} has only {', '.join(sorted(there))}")
    return [item for item in items if domains[item.id] == domain]


def _texts(value: Any) -> tuple[str, ...]:
    """The captions in a string, a list of them, or sentences with their `raw` text; blank ones are left out."""
    if isinstance(value, dict):
        value = value.get("raw")
    if isinstance(value, list):
        return tuple(text for one in value for text in _texts(one))
    return (value.strip(),) if isinstance(value, str) and value.strip() else ()


def _group(value: Any, otherwise: str) -> str:
    """The class in a column: a name, the most frequent of several, or the largest of `objects` with their areas."""
    if isinstance(value, dict):
        names, areas = value.get("category") or [], value.get("area") or []
        value = names[areas.index(max(areas))] if areas and len(areas) == len(names) else names
    if isinstance(value, list):
        value = Counter(value).most_common(1)[0][0] if value else "none"
    return otherwise if value is None else str(value)
