"""MSCOCO captions from local files, with NoCaps as out-of-distribution non-members.

Clients draw by object class, the category of a picture's largest annotated object, Dirichlet(0.5). The default sizes
give the 300 members and 300 NoCaps pictures of FedRand's attack; unlike there, every client also holds out as many
records of its own. Source of the set-up: FedRand, sections 4.1 and 4.2, appendix A. Layouts, downloads and costs:
docs/reference/data.md.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, choice, number, text, whole
from fedaudit.tasks.base import Federation
from fedaudit.tasks.captions import INSTRUCTION
from fedaudit.tasks.local_files import (
    Item,
    choose_splits,
    federate,
    finite,
    folder,
    identifier,
    need,
    one_line,
    path_below,
    read_json,
    table_items,
)
from fedaudit.tasks.tables import Row, table_files, table_rows

SOURCE = (
    "annotations_trainval2017.zip, train2017.zip and val2017.zip from the MSCOCO site, unpacked, or its parquet files"
)
NOCAPS = "nocaps_val_4500_captions.json from the nocaps site with its pictures in images/, or its parquet files"
KARPATHY = "dataset_coco.json"
CLASSES = "instances_*.json, or a column category, label or objects"  # what tells the class of a picture
KEYS = set(
    "images annotations categories id file_name image_id caption category_id area name domain "
    "filepath filename cocoid split sentences raw".split()
)
PARQUET = {
    "captions": ("answer", "captions", "caption", "sentences", "sentences_raw", "annotations_captions"),
    "group": ("category", "label", "objects"),
    "domain": ("domain", "image_domain", "region"),
    "picture": ("image_id", "cocoid", "image_open_images_id", "image_file_name", "file_name", "filename"),
}


@dataclass(frozen=True)
class Params(Parameters):
    data_root: str = text("", "folder of MSCOCO: annotations/ and train2017/, or parquet files")
    nocaps_root: str = text("", "folder of NoCaps (default: nocaps in the data root, if there)")
    nocaps_domain: str = choice("out-domain", "NoCaps pictures", ("in-domain", "near-domain", "out-domain", "all"))
    records: int = whole(25, "expected training records per client; as many are held out", least=2, most=10**6)
    background: int = whole(0, "further training records per client that are not asked about", least=0, most=10**6)
    reference: int = whole(75, "records per client kept for thresholds", least=2, most=10**6)
    novel: int = whole(300, "out-of-distribution records, from NoCaps", least=2, most=10**6)
    test: int = whole(40, "test pictures for utility, in and out of distribution", least=1, most=10**6)
    dirichlet: float = number(0.5, "concentration of the partition by object class", least=0.001, most=10**6)


def coco(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on the MSCOCO files of `data_root`, with NoCaps if it is there."""
    pool, test, novel = load(params)
    return federate(pool, test, novel, params=params, clients=clients, seed=seed, classes=CLASSES)


def load(params: Params) -> tuple[list[Item], list[Item], list[Item]]:
    """(Items that clients draw from, items for testing, maybe none, and NoCaps items). InputError for whatever is
    missing or unreadable."""
    root = folder(params.data_root, flag="--data-root", source=SOURCE)
    beside = root / "nocaps"
    wanted = params.nocaps_root or (str(beside) if user_files.is_dir(beside) else "")
    nocaps = folder(wanted, flag="--nocaps-root", source=NOCAPS) if wanted else None
    novel = _nocaps(nocaps, params.nocaps_domain) if nocaps else []
    pool, test = _karpathy(root) or _official(root) or _parquet(root, nocaps or beside)
    return pool, test, novel


def _karpathy(root: Path) -> tuple[list[Item], list[Item]] | None:
    """(Pool, test) items of Karpathy's split of MSCOCO 2014; None without its file. Clients draw from train and
    restval, as captioning models train on both; val is left out where test is there. Pictures whose folder is missing
    do not count."""
    path = _beside(root, KARPATHY)
    if path is None:
        return None
    images = need(read_json(path, KEYS), "images", path, list)
    parts = sorted({need(image, "filepath", path, str) for image in images})
    folders = {part: _folder_of(root, part, path) for part in parts}
    objects = [_beside(root, f"instances_{part}.json") for part in parts if folders[part] is not None]
    present = [note for note in objects if note is not None]
    classes = (  # of one folder only they would tell train from restval
        {n: name for note in present for n, name in _classes(note).items()} if len(present) == len(objects) else {}
    )
    items: dict[str, list[Item]] = {split: [] for split in ("train", "restval", "val", "test")}
    for image in images:
        number = identifier(need(image, "cocoid", path), "a cocoid", path)
        where = f"{path}, image {number}"
        split, texts = need(image, "split", where, str), _texts(need(image, "sentences", where, list), where)
        if split not in items:
            raise InputError(f"{where}: the split must be {', '.join(items)}, not {short_repr(split)}")
        if (below := folders[image["filepath"]]) is not None and texts:
            picture = path_below(below, need(image, "filename", where, str), where)
            group = classes.get(number, "none") if classes else "all"
            items[split].append(Item(f"coco-{_key(number)}", group, picture, INSTRUCTION, texts, where))
    _distinct([item for some in items.values() for item in some])
    if pool := items["train"] + items["restval"]:
        return pool, items["test"] or items["val"]
    raise InputError(f"{root}: no picture of {path} is there to train on; unpack train2014.zip and val2014.zip")


def _folder_of(root: Path, part: str, where: Path) -> Path | None:
    """The folder of pictures that Karpathy's split calls `part`; None if it is not there."""
    options = (path_below(base, part, where) for base in (root, root / "images"))
    return next((one for one in options if user_files.is_dir(one)), None)


def _official(root: Path) -> tuple[list[Item], list[Item]] | None:
    """(Pool, test) items in the layout of the MSCOCO site, of 2017 or 2014; None if there are no caption files. Splits
    without a folder of pictures do not count; InputError if none has one."""
    names = [split + year for year in ("2017", "2014") for split in ("train", "val")]
    notes = {name: path for name in names if (path := _beside(root, f"captions_{name}.json")) is not None}
    folders = ((name, base / name) for name in notes for base in (root / "images", root))
    images = {name: path for name, path in folders if user_files.is_dir(path)}
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
    return next((path for path in (root / "annotations" / name, root / name) if user_files.exists(path)), None)


def _captions(path: Path, images: Path) -> list[Item]:
    """An item for each picture of a caption file that has a caption; its group is the class of its largest object
    ("none" without one), or "all" if there is no file of objects."""
    objects = path.with_name(path.name.replace("captions", "instances"))
    classes = _classes(objects) if user_files.exists(objects) else None
    items = []
    for n, name, texts, where, _ in _annotated_pictures(path):
        group = "all" if classes is None else classes.get(n, "none")
        items.append(Item(f"coco-{_key(n)}", group, path_below(images, name, where), INSTRUCTION, texts, where))
    return _distinct(items)


def _distinct(items: list[Item]) -> list[Item]:
    """The items as they are. InputError if two have the same id: their file names differ only in folder or ending."""
    first_by_id: dict[str, Item] = {}
    for item in items:
        if (other := first_by_id.setdefault(item.id, item)) is not item:
            raise InputError(f"{item.where} and {other.where} would both be the record {item.id}; rename one of them")
    return items


def _key(picture: int | str) -> str:
    """The part of a record's id for its picture: the number in 12 digits, or the file name without ending."""
    return f"{picture:012d}" if isinstance(picture, int) else Path(picture).stem


def _annotated_pictures(path: Path) -> Iterable[tuple[int | str, str, tuple[str, ...], str, str]]:
    """Yield for each picture in a file of MSCOCO's form its id, file name, captions, place in the file (for messages)
    and domain. Blank captions are left out, and pictures without any other. InputError: two pictures have one id."""
    content, captions = read_json(path, KEYS), dict[int | str, list[str]]()
    for note in need(content, "annotations", path, list):
        number = identifier(need(note, "image_id", path), "an image_id", path)
        captions.setdefault(number, []).append(need(note, "caption", path, str))
    numbers: set[int | str] = set()
    for image in need(content, "images", path, list):
        number = identifier(need(image, "id", path), "the id of an image", path)
        if number in numbers:
            raise InputError(f"{path}: two images have the id {number}; download it again")
        numbers.add(number)
        domain = need(image, "domain", path, str) if "domain" in image else ""
        if texts := _texts(captions.get(number), path):
            yield number, need(image, "file_name", path, str), texts, f"{path}, image {number}", domain


def _classes(path: Path) -> dict[int | str, str]:
    """{picture id: name of its largest object's category}, from an instances file of MSCOCO."""
    content, largest = read_json(path, KEYS), dict[int | str, tuple[float, int]]()
    names: dict[int, str] = {}
    for kind in need(content, "categories", path, list):
        number, name = need(kind, "id", path, int), need(kind, "name", path, str)
        if number in names or name in names.values() or not one_line(name):
            raise InputError(
                f"{path}: the category {number} ({short_repr(name)}) must have an id and a name of its own"
            )
        names[number] = name
    for thing in need(content, "annotations", path, list):
        picture = identifier(need(thing, "image_id", path), "an image_id", path)
        size = (need(thing, "area", path), need(thing, "category_id", path, int))
        if not finite(size[0]):
            raise InputError(f"{path}: an area must be a number, not {short_repr(size[0])}")
        largest[picture] = max(size, largest.get(picture, size))
    unknown = {kind for _, kind in largest.values()} - set(names)
    if unknown:
        raise InputError(f"{path}: category_id {min(unknown)} is not among its categories")
    return {picture: names[kind] for picture, (_, kind) in largest.items()}


def _parquet(root: Path, skip: Path) -> tuple[list[Item], list[Item]]:
    official = "annotations/captions_train2017.json (or val2017, train2014, val2014)"
    return table_items(
        root, lambda split, files: _items("coco", split, files, "all")[0], test=("val", "test", "train"),
        official=official, source=SOURCE, skip=skip,
    )  # fmt: skip


def _items(name: str, split: str, files: list[Path], group: str) -> tuple[list[Item], dict[str, str]]:
    """(An item for each picture with a caption in parquet files, {item id: domain}). Rows with the same picture are one
    item. group: the class of pictures whose row names none."""
    first: dict[str, tuple[Row, dict[str, Any]]] = {}
    captions: dict[str, list[str]] = {}
    for n, (row, values) in enumerate(table_rows(files, PARQUET, needed=("captions",))):
        values["picture"] = picture = _picture(n, row, values)
        name_of_row = "-".join(filter(None, (name, split, _key(picture))))
        other, same = first.setdefault(name_of_row, (row, values))
        if same["picture"] != picture:
            raise InputError(f"{row} and {other} would both be the record {name_of_row}; rename a picture")
        captions.setdefault(name_of_row, []).extend(_texts(values["captions"], row))
    items = [
        Item(one, _group(values["group"], group, row), row, INSTRUCTION, tuple(captions[one]), str(row))
        for one, (row, values) in first.items()
        if captions[one]
    ]
    return items, {one: _domain(values["domain"], row) for one, (row, values) in first.items()}


def _picture(n: int, row: Row, values: dict[str, Any]) -> int | str:
    """The value that rows of one picture share; n, the row's own number, if every row has its own picture."""
    picture = values["picture"]
    if picture is None and isinstance(values["captions"], str):
        picture = values["path"]
    if picture == "":
        raise InputError(
            f"{row}: with one caption in a row, a column must tell which rows show the same picture; it needs "
            f"{' or '.join(PARQUET['picture'])}"
        )
    return n if picture is None else identifier(picture, "what names a picture", row)


def _domain(value: Any, where: Row) -> str:
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: a domain must be a text, not {short_repr(value)}")
    return value or ""


def _nocaps(root: Path, domain: str) -> list[Item]:
    """The NoCaps items of a domain; all items if the files name no domain, as the usual parquet files. InputError:
    there are none."""
    path = _beside(root, "nocaps_val_4500_captions.json")
    items, domains = _nocaps_file(root, path) if path is not None else ([], {})
    for split, paths in ({} if path else table_files(root)).items():
        split_items, split_domains = _items("nocaps", split, paths, "novel")
        items, domains = items + split_items, domains | split_domains
    if not items:
        raise InputError(
            f"--nocaps-root {root}: no picture with captions recognised in {path or root}; it should hold {NOCAPS}"
        )
    count = Counter(filter(None, domains.values()))
    if domain == "all" or not count:
        return items
    if domain not in count:
        raise InputError(f"--nocaps-domain {domain}: {root} has only {', '.join(sorted(count))}")
    return [item for item in items if domains[item.id] == domain]


def _nocaps_file(root: Path, path: Path) -> tuple[list[Item], dict[str, str]]:
    """(Items of the site's caption file, {item id: domain})."""
    folders = [base / name for base in (path.parent, root) for name in ("images", "val", "nocaps_images", ".")]
    images = next(one for one in folders if user_files.is_dir(one))
    pictures = list(_annotated_pictures(path))
    items = [
        Item(f"nocaps-{_key(number)}", domain or "novel", path_below(images, name, where), INSTRUCTION, texts, where)
        for number, name, texts, where, domain in pictures
    ]
    return _distinct(items), {item.id: one[-1] for item, one in zip(items, pictures, strict=True)}


def _texts(value: Any, where: str | Path | Row) -> tuple[str, ...]:
    """The captions in a string, a list of these, or a dict with `raw` text; blank ones are left out."""
    if isinstance(value, dict) and "raw" in value:
        value = value["raw"]
    if isinstance(value, list):
        return tuple(text for one in value for text in _texts(one, where))
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: captions must be text, or a list of texts, not {short_repr(value)}")
    return (value.strip(),) if value and value.strip() else ()


def _group(value: Any, otherwise: str, where: Row) -> str:
    """The class in a column: a name, the most frequent of a list ("none" if empty), the largest of `objects`;
    `otherwise` for None."""
    if isinstance(value, dict):
        value = _largest(value.get("category") or [], value.get("area") or [], where)
    if isinstance(value, list):
        kinds = [identifier(one, "a class", where) for one in value]
        value = Counter(kinds).most_common(1)[0][0] if kinds else "none"
    return otherwise if value is None else str(identifier(value, "a class", where))


def _largest(names: Any, areas: Any, where: Row) -> Any:
    """The class, of `names`, with the largest of `areas`; `names` itself if there are no areas. InputError: they do not
    fit."""
    if not isinstance(names, list) or not isinstance(areas, list) or not all(map(finite, areas)):
        raise InputError(f"{where}: objects must have a list of category and a list of area in numbers")
    if areas and len(areas) != len(names):
        raise InputError(f"{where}: {len(names)} objects have {len(areas)} areas")
    return names[areas.index(max(areas))] if areas else names
