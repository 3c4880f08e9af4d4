"""Classification data sets on the local disk, in the layouts of CoOp, FedOTP and torchvision. Nothing is downloaded.

If a data set's folder has a `split_zhou_*.json` (Zhou et al., CoOp, 2022), its train and test lists are used and its
val list is left out, as in the papers. Otherwise `image_layouts` reads the official lists. Pictures stay files until
they are used. Layouts and sources: docs/reference/images.md.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short_repr

import numpy as np

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks import image_layouts as layouts
from fedaudit.tasks.class_folders import Rows
from fedaudit.tasks.classification import Labelled
from fedaudit.tasks.local_files import need, one_line, path_below, read_json


@dataclass(frozen=True)
class ImageSet:
    """A data set: the names of its folder, a part that shows it is there, and the reader of its official lists."""

    folders: tuple[str, ...]  # below the data root: CoOp's name, torchvision's
    images: str  # folder of its pictures (or a file); the data set is there if this is
    read: Callable[[Path, np.random.Generator], tuple[Rows, Rows]]  # training and test rows of the official layout
    origin: str  # where to get it
    renamed: Mapping[str, str] = field(default_factory=dict)  # class name in the files to that in prompts
    also: str = ""  # another name of `images`
    whole_paths: bool = False  # whether CoOp's split file names pictures from the data set's folder on

    def pictures(self, base: Path) -> Path:
        """The folder of its pictures in `base`, or where it should be."""
        other = base / self.also
        return other if self.also and user_files.exists(other) else base / self.images


def load(name: str, root: Path, rng: np.random.Generator) -> Labelled:
    """Load the data set `name` from `root` or a folder below it. InputError for whatever is missing or unreadable."""
    kind = IMAGE_SETS[name]
    base = _base(name, kind, root)
    with unpacked(name, base):
        splits = [one for one in user_files.listed(base) if one.match("split_zhou_*.json")]
        below = base if kind.whole_paths else kind.pictures(base)
        train, test = _coop(splits[0], below) if splits else kind.read(base, rng)
        _check_files([*train, *test], base)
    return labelled(name, base, train, test, kind.renamed)


def labelled(name: str, base: Path, train: Rows, test: Rows, renamed: Mapping[str, str] | None = None) -> Labelled:
    """The data set of these rows; underscores in class names become spaces. InputError: a class has no name for
    prompts, or no records. renamed: class name in the files to that in prompts."""
    names = {raw: (renamed or {}).get(raw, raw).replace("_", " ").strip() for _, raw in (*train, *test)}
    classes = tuple(sorted(set(names.values())))
    _check_names(names, base)
    label_of = {raw: classes.index(class_name) for raw, class_name in names.items()}
    labels = [np.array([label_of[raw] for _, raw in rows], np.int64) for rows in (train, test)]
    pictures = [[picture for picture, _ in rows] for rows in (train, test)]
    return Labelled(name, classes, pictures[0], labels[0], pictures[1], labels[1])


@contextmanager
def unpacked(name: str, base: Path) -> Iterator[None]:
    """Turn an OSError inside the `with` block into the InputError that a folder of the data set cannot be listed (a
    file, or a broken link)."""
    try:
        yield
    except OSError as error:
        place = error.filename or base
        raise InputError(f"{name}: {place} cannot be listed ({error.strerror}); unpack the data set again") from error


def _check_names(names: Mapping[str, str], base: Path) -> None:
    """Raise InputError unless there are two classes or more, with different names that a prompt can hold. `names`: by a
    class's name in the files its name in prompts."""
    raw_of: dict[str, str] = {}
    for raw, name in names.items():
        if not one_line(name):
            raise InputError(f"{base}: a class must have a name on one line, not {short_repr(raw)}")
        if raw_of.setdefault(name, raw) != raw:
            raise InputError(
                f"{base}: the classes {raw_of[name]!r} and {raw!r} are both {name!r} in prompts; rename one"
            )
    if len(raw_of) == 1:
        raise InputError(f"{base}: there is one class, {next(iter(raw_of))!r}; to tell classes apart takes two")


def _base(name: str, kind: ImageSet, root: Path) -> Path:
    places = [*(root / folder for folder in kind.folders), root]
    places += [root.parent] if root.name in (kind.images, kind.also) else []
    for base in places:
        if user_files.exists(kind.pictures(base)):
            return base
    candidates = ", ".join(str(base / kind.images) for base in places)
    raise InputError(f"--data-root {root}: {name} is not there (looked for {candidates}); get it from {kind.origin}")


def _coop(path: Path, images: Path) -> tuple[Rows, Rows]:
    """Training and test rows, (file, class name), of a split file: {"train": [[path below the images, label, class
    name], ...], ...}. InputError: a row is wrong."""
    content = read_json(path)
    rows: list[Rows] = []
    for split in ("train", "test"):
        items = need(content, split, path, list)
        bad = [item for item in items if not _is_row(item)]
        if bad or not items:
            raise InputError(
                f"{path}: {split!r} must list [picture, label, class name], not {short_repr(bad[0] if bad else items)}"
            )
        rows.append([(path_below(images, picture, path), class_name) for picture, _, class_name in items])
        pairs = {(str(label), str(class_name)) for _, label, class_name in items}
        if len(pairs) != len({label for label, _ in pairs}) or len(pairs) != len(
            {class_name for _, class_name in pairs}
        ):
            raise InputError(
                f"{path}: in {split!r} a label has two class names or a name two labels; download it again"
            )
    return rows[0], rows[1]


def _is_row(item: object) -> bool:
    return isinstance(item, list) and len(item) == 3 and isinstance(item[1], int | str) and one_line(item[2])


def _check_files(rows: Rows, base: Path) -> None:
    """Raise InputError unless every file exists. Each folder is listed once, which is quick on remote disks too."""
    names_in: dict[Path, set[str]] = {}
    for picture, _ in rows:
        if isinstance(picture, Path):
            parent = picture.parent
            if parent not in names_in:
                names_in[parent] = {one.name for one in parent.iterdir()} if parent.is_dir() else set()
            if picture.name not in names_in[parent]:
                raise InputError(f"{picture}: no such file, but the lists of {base} name it; unpack the images again")


IMAGE_SETS: dict[str, ImageSet] = {
    "caltech101": ImageSet(
        ("caltech-101", "caltech101"),
        "101_ObjectCategories",
        layouts.read_caltech101,
        "data.caltech.edu/records/mzrjq-6wc02 (caltech-101.zip, with 101_ObjectCategories.tar.gz unpacked)",
        {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"},
    ),
    "oxford_pets": ImageSet(
        ("oxford_pets", "oxford-iiit-pet"),
        "images",
        layouts.read_oxford_pets,
        "www.robots.ox.ac.uk/~vgg/data/pets (images.tar.gz and annotations.tar.gz)",
    ),
    "oxford_flowers": ImageSet(
        ("oxford_flowers", "flowers-102"),
        "jpg",
        layouts.read_oxford_flowers,
        "www.robots.ox.ac.uk/~vgg/data/flowers/102 (102flowers.tgz, imagelabels.mat and setid.mat)",
        {"pink-yellow dahlia?": "pink-yellow dahlia"},  # the official list is in doubt
    ),
    "food101": ImageSet(
        ("food-101", "food101"),
        "images",
        layouts.read_food101,
        "data.vision.ee.ethz.ch/cvl/datasets_extra/food-101 (food-101.tar.gz)",
    ),
    "cifar10": ImageSet(
        ("cifar-10-batches-py",),
        "test_batch",
        layouts.read_cifar10,
        "www.cs.toronto.edu/~kriz/cifar.html (cifar-10-python.tar.gz)",
    ),
    "cifar100": ImageSet(
        ("cifar-100-python",),
        "train",
        layouts.read_cifar100,
        "www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz)",
    ),
    "dtd": ImageSet(
        ("dtd", "dtd/dtd"), "images", layouts.read_dtd, "www.robots.ox.ac.uk/~vgg/data/dtd (dtd-r1.0.1.tar.gz)"
    ),
    "eurosat": ImageSet(
        ("eurosat",),
        layouts.EUROSAT[0],
        layouts.read_eurosat,
        "github.com/phelber/eurosat (EuroSAT.zip, the RGB version)",
        {
            "AnnualCrop": "Annual Crop Land",
            "HerbaceousVegetation": "Herbaceous Vegetation Land",
            "Highway": "Highway or Road",
            "Industrial": "Industrial Buildings",
            "Pasture": "Pasture Land",
            "PermanentCrop": "Permanent Crop Land",
            "Residential": "Residential Buildings",
            "SeaLake": "Sea or Lake",
        },
        also=layouts.EUROSAT[1],
    ),
    "fgvc_aircraft": ImageSet(
        ("fgvc_aircraft", "fgvc-aircraft-2013b/data"),
        "images",
        layouts.read_fgvc_aircraft,
        "www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft (fgvc-aircraft-2013b.tar.gz)",
    ),
    "ucf101": ImageSet(
        ("ucf101",),
        "UCF-101-midframes",
        layouts.read_ucf101,
        "github.com/KaiyangZhou/CoOp, DATASETS.md (UCF-101-midframes.zip and split_zhou_UCF101.json)",
    ),
    "stanford_cars": ImageSet(
        ("stanford_cars",),
        "cars_train",
        layouts.read_stanford_cars,
        "github.com/KaiyangZhou/CoOp, DATASETS.md (cars_train, cars_test, devkit and split_zhou_StanfordCars.json)",
        whole_paths=True,
    ),
    "sun397": ImageSet(
        ("sun397",),
        "SUN397",
        layouts.read_sun397,
        "vision.princeton.edu/projects/2010/SUN (SUN397.tar.gz and Partitions.zip)",
    ),
}
OF_DOMAINS = {  # data sets of several domains: their folders, their domains and where to get them
    "domainnet": (
        ("domainnet", "DomainNet"),
        ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        "ai.bu.edu/M3SDA, or github.com/med-air/FedBN (ten classes, with lists)",
    ),
    "office_caltech10": (
        ("office_caltech_10",),
        ("amazon", "caltech", "dslr", "webcam"),
        "github.com/med-air/FedBN (office_caltech_10.zip)",
    ),
}
for _whole, (_folders, _domains, _origin) in OF_DOMAINS.items():
    for _domain in _domains:
        _read = functools.partial(layouts.read_domain, _domain)
        IMAGE_SETS[f"{_whole}_{_domain}"] = ImageSet(_folders, _domain, _read, _origin)


def each_domain(value: str) -> str:
    """The names in `value`, which is NAME or NAME+NAME and so on, where a data set of several domains stands for all of
    them: domainnet for domainnet_clipart+domainnet_infograph and so on."""
    names = (name.strip() for name in value.split("+"))
    return "+".join("+".join(f"{n}_{d}" for d in OF_DOMAINS[n][1]) if n in OF_DOMAINS else n for n in names)
