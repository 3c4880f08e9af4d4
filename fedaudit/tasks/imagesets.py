"""Ten classification data sets on the local disk, in the folder layouts that CoOp and torchvision use. Nothing is
downloaded.

Where a data set's folder holds a `split_zhou_*.json` (Zhou et al., CoOp, 2022), its train and test lists count and its
val list is left out, as in the papers. Elsewhere the official lists count, train and val together; Caltech101 and
EuroSAT have none, so three tenths of each class, drawn with the seed, are for testing. Pictures stay files until they
are used. Layouts and sources: docs/images.md.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.classification import Labelled, Picture
from fedaudit.tasks.local_files import below, need, one_line, read_json, shown

Rows = list[tuple[Picture, str]]  # pictures with the class as the files name it
TEST_SHARE = 0.3  # where a data set has no test list; CoOp's share
SUFFIXES = (".jpg", ".jpeg", ".png")
FLOWERS: tuple[str, ...] = tuple(  # the categories of Oxford Flowers, 1 to 102
    (
        "pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily, moon "
        "orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea, spear thistle, "
        "yellow "
        "iris, globe-flower, purple coneflower, peruvian lily, balloon flower, giant white arum lily, fire lily, "
        "pincushion flower, fritillary, red ginger, grape hyacinth, corn poppy, prince of wales feathers, stemless "
        "gentian, artichoke, sweet william, carnation, garden phlox, love in the mist, mexican aster, alpine sea "
        "holly, "
        "ruby-lipped cattleya, cape flower, great masterwort, siam tulip, lenten rose, barbeton daisy, daffodil, sword "
        "lily, poinsettia, bolero deep blue, wallflower, marigold, buttercup, oxeye daisy, common dandelion, petunia, "
        "wild pansy, primula, sunflower, pelargonium, bishop of llandaff, gaura, geranium, orange dahlia, pink-yellow "
        "dahlia?, cautleya spicata, japanese anemone, black-eyed susan, silverbush, californian poppy, osteospermum, "
        "spring crocus, bearded iris, windflower, tree poppy, gazania, azalea, water lily, rose, thorn apple, morning "
        "glory, passion flower, lotus, toad lily, anthurium, frangipani, clematis, hibiscus, columbine, desert-rose, "
        "tree "
        "mallow, magnolia, cyclamen, watercress, canna lily, hippeastrum, bee balm, ball moss, foxglove, "
        "bougainvillea, "
        "camellia, mallow, mexican petunia, bromelia, blanket flower, trumpet creeper, blackberry lily"
    ).split(", ")
)


@dataclass(frozen=True)
class ImageSet:
    """A data set: the folders it may lie in, what its pictures' folder is called there, and who reads its own lists."""

    folders: tuple[str, ...]  # below the data root: CoOp's name, torchvision's
    images: str  # folder (or file) that shows that the data set is there
    read: Callable[[Path, np.random.Generator], tuple[Rows, Rows]]  # training and test rows of the official layout
    origin: str  # where to get it
    renamed: Mapping[str, str] = field(default_factory=dict)  # folder name to what a prompt says


def load(name: str, root: Path, rng: np.random.Generator) -> Labelled:
    """The data set `name` below `root`, or in `root` itself. InputError for whatever is missing or unreadable."""
    kind = IMAGE_SETS[name]
    base = _base(name, kind, root)
    with _unpacked(name, base):
        splits = [one for one in user_files.listed(base) if one.match("split_zhou_*.json")]
        train, test = _coop(splits[0], base / kind.images) if splits else kind.read(base, rng)
        _check_files([*train, *test], base)
    names = {raw: kind.renamed.get(raw, raw).replace("_", " ").strip() for _, raw in (*train, *test)}
    classes = tuple(sorted(set(names.values())))
    _check_names(names, base)
    place = {raw: classes.index(said) for raw, said in names.items()}
    labels = [np.array([place[raw] for _, raw in rows], np.int64) for rows in (train, test)]
    pictures = [[picture for picture, _ in rows] for rows in (train, test)]
    found = Labelled(name, classes, pictures[0], labels[0], pictures[1], labels[1])
    for first in np.unique(found.labels, return_index=True)[1]:
        _check_readable(found.pictures[first])
    return found


@contextmanager
def _unpacked(name: str, base: Path) -> Iterator[None]:
    """InputError for a folder that cannot be listed: it is a file, or a link that leads nowhere."""
    try:
        yield
    except OSError as error:
        place = error.filename or base
        raise InputError(f"{name}: {place} cannot be listed ({error.strerror}); unpack the data set again") from error


def _check_names(names: Mapping[str, str], base: Path) -> None:
    """Classes have names of their own that a prompt can hold, and there are two of them."""
    known: dict[str, str] = {}
    for raw, said in names.items():
        if not one_line(said):
            raise InputError(f"{base}: a class must have a name on one line, not {shown(raw)}")
        if known.setdefault(said, raw) != raw:
            raise InputError(
                f"{base}: the classes {known[said]!r} and {raw!r} are both {said!r} in prompts; rename one"
            )
    if len(known) == 1:
        raise InputError(f"{base}: there is one class, {next(iter(known))!r}; to tell classes apart takes two")


def _base(name: str, kind: ImageSet, root: Path) -> Path:
    places = [*(root / folder for folder in kind.folders), root]
    for base in places:
        if user_files.exists(base / kind.images):
            return base
    looked = ", ".join(str(base / kind.images) for base in places)
    raise InputError(f"--data-root {root}: {name} is not there (looked for {looked}); get it from {kind.origin}")


def _coop(path: Path, images: Path) -> tuple[Rows, Rows]:
    """Rows of a split file: {"train": [[path below the images, label, class name], ...], "val": ..., "test": ...}."""
    content = read_json(path)
    rows: list[Rows] = []
    for split in ("train", "test"):
        items = need(content, split, path, list)
        bad = [item for item in items if not _is_row(item)]
        if bad or not items:
            raise InputError(
                f"{path}: {split!r} must list [picture, label, class name], not {shown(bad[0] if bad else items)}"
            )
        rows.append([(below(images, picture, path), said) for picture, _, said in items])
        pairs = {(str(label), str(said)) for _, label, said in items}
        if len(pairs) != len({label for label, _ in pairs}) or len(pairs) != len({said for _, said in pairs}):
            raise InputError(
                f"{path}: in {split!r} a label has two class names or a name two labels; download it again"
            )
    return rows[0], rows[1]


def _is_row(item: object) -> bool:
    return isinstance(item, list) and len(item) == 3 and isinstance(item[1], int | str) and one_line(item[2])


def _check_files(rows: Rows, base: Path) -> None:
    """Every file of the lists is there; each folder is listed once, which is quick on remote disks too."""
    there: dict[Path, set[str]] = {}
    for picture, _ in rows:
        if isinstance(picture, Path):
            parent = picture.parent
            if parent not in there:
                there[parent] = {one.name for one in parent.iterdir()} if parent.is_dir() else set()
            if picture.name not in there[parent]:
                raise InputError(f"{picture}: no such file, but the lists of {base} name it; unpack the images again")


def _check_readable(picture: Picture) -> None:
    """Decode one picture. The others are named when they are read."""
    if isinstance(picture, Path):
        try:
            with user_files.picture(picture) as opened:
                opened.load()
        except OSError as error:
            raise InputError(f"{picture} is no readable image ({error.strerror or error})") from error


def _lines(path: Path, least: int, separator: str | None = None) -> Iterator[list[str]]:
    """The lines of a text file in their fields, of which there are `least` at least; blank ones are skipped."""
    try:
        lines = user_files.read_bytes(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    for number, line in enumerate(lines, 1):
        fields = line.split(separator, least - 1 if separator else -1)
        if line.strip():
            if len(fields) < least:
                raise InputError(f"{path}, line {number}: {line[:60]!r} must have {least} parts; unpack it again")
            if not all(field.strip() for field in fields):
                raise InputError(f"{path}, line {number}: {line[:60]!r} has an empty part; unpack it again")
            yield fields


def _class_folders(images: Path, rng: np.random.Generator, skip: Collection[str] = ()) -> tuple[Rows, Rows]:
    """A folder per class without a test list: three tenths of each class, drawn at random, are for testing."""
    train: Rows = []
    test: Rows = []
    for folder in (one for one in user_files.listed(images) if one.name not in skip and not one.is_file()):
        files = [file for file in user_files.listed(folder) if file.suffix.lower() in SUFFIXES and file.name[0] != "."]
        if not files:
            held = f"{folder} holds no images ({', '.join(SUFFIXES)}), {user_files.largest(folder)}"
            raise InputError(f"{held}; unpack the data set again")
        order = [(files[i], folder.name) for i in rng.permutation(len(files))]
        cut = round(TEST_SHARE * len(files))
        test += order[:cut]
        train += order[cut:]
    if not train:
        raise InputError(
            f"{images} holds no folders with images, {user_files.largest(images)}; unpack the data set again"
        )
    return train, test


def _caltech101(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Without the background class, and without Faces_easy: the same photographs as Faces, cropped."""
    return _class_folders(base / "101_ObjectCategories", rng, ("BACKGROUND_Google", "Faces_easy"))


def _eurosat(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    return _class_folders(base / "2750", rng)


def _oxford_pets(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    def rows(split: str) -> Rows:
        path = base / "annotations" / f"{split}.txt"
        names = (parts[0] for parts in _lines(path, 4))
        return [(below(base / "images", f"{name}.jpg", path), name.rpartition("_")[0].lower()) for name in names]

    return rows("trainval"), rows("test")


def _oxford_flowers(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    splits = _matrices(base / "setid.mat", ("trnid", "valid", "tstid"))
    labels = _matrices(base / "imagelabels.mat", ("labels",))["labels"]
    if not np.isin(labels, np.arange(1, len(FLOWERS) + 1)).all():
        raise InputError(f"{base / 'imagelabels.mat'}: labels must lie between 1 and {len(FLOWERS)}; download it again")

    def rows(*keys: str) -> Rows:
        numbers = np.concatenate([splits[key] for key in keys]).tolist()
        if not all(0 < n <= len(labels) for n in numbers):
            raise InputError(f"{base / 'setid.mat'}: a picture has none of the {len(labels)} labels of imagelabels.mat")
        return [(base / "jpg" / f"image_{n:05d}.jpg", FLOWERS[labels[n - 1] - 1]) for n in numbers]

    return rows("trnid", "valid"), rows("tstid")


def _matrices(path: Path, keys: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Flat integer arrays of a MATLAB file."""
    from scipy.io import loadmat

    try:
        with user_files.opened(path) as file:
            found = loadmat(file)
        numbers = {key: np.asarray(found[key]).ravel() for key in keys}
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}); download it again") from error
    except Exception as error:  # its reader raises anything on damaged files
        raise InputError(f"{path} is no readable MATLAB file with {', '.join(keys)}; download it again") from error
    for key, values in numbers.items():
        if values.dtype.kind not in "iuf" or not np.array_equal(values, np.clip(np.nan_to_num(values), 0, 2**31) // 1):
            raise InputError(f"{path}: {key} must hold whole numbers from 0 on; download it again")
    return {key: values.astype(np.int64) for key, values in numbers.items()}


def _food101(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    def rows(split: str) -> Rows:
        path = base / "meta" / f"{split}.json"
        content = read_json(path)
        if not isinstance(content, dict):
            raise InputError(f"{path} must hold one JSON object, not {type(content).__name__}")
        listed = {name: need(content, name, path, list) for name in content}
        if bad := [file for files in listed.values() for file in files if not isinstance(file, str)]:
            raise InputError(f"{path}: its lists must hold pictures by name, not {shown(bad[0])}")
        return [(below(base / "images", f"{file}.jpg", path), name) for name, files in listed.items() for file in files]

    return rows("train"), rows("test")


def _dtd(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """The first of its ten partitions."""

    def rows(*splits: str) -> Rows:
        lists = [base / "labels" / f"{split}1.txt" for split in splits]
        return [
            (below(base / "images", f"{name}/{file.strip()}", path), name)
            for path in lists
            for name, file in _lines(path, 2, "/")
        ]

    return rows("train", "val"), rows("test")


def _fgvc_aircraft(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """By variant: 100 classes. The validation pictures are left out, as CoOp leaves them out."""

    def rows(split: str) -> Rows:
        path = base / f"images_variant_{split}.txt"
        return [(below(base / "images", f"{n}.jpg", path), name.strip()) for n, name in _lines(path, 2, " ")]

    return rows("train"), rows("test")


def _ucf101(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """The first of its three splits; the frames' folders are CoOp's, Apply_Eye_Makeup for ApplyEyeMakeup."""

    def rows(split: str) -> Rows:
        path, found = base / "ucfTrainTestlist" / f"{split}list01.txt", Rows()
        for action, video in _lines(path, 2, "/"):
            name = "_".join(re.findall("[A-Z][^A-Z]*", action))
            frame = below(base / "UCF-101-midframes", f"{name}/{video.partition('.avi')[0]}.jpg", path)
            found.append((frame, name))
        return found

    return rows("train"), rows("test")


def _cifar10(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    names = _cifar_names(base / "batches.meta", "label_names")
    train = [base / f"data_batch_{i}" for i in range(1, 6)]
    return _cifar(train, "labels", names), _cifar([base / "test_batch"], "labels", names)


def _cifar100(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    names = _cifar_names(base / "meta", "fine_label_names")
    return _cifar([base / "train"], "fine_labels", names), _cifar([base / "test"], "fine_labels", names)


def _cifar(files: Sequence[Path], key: str, names: Sequence[str]) -> Rows:
    """Pixels of the batches; a row of `data` is a picture's three planes of 32 x 32."""
    rows: Rows = []
    for file in files:
        batch = _unpickled(file, ("data", key))
        try:
            planes, labels = np.asarray(batch["data"]), np.asarray(batch[key])
            if planes.dtype != np.uint8 or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
                raise ValueError("they must be bytes, and numbers from 0 on")
            pixels = np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            rows += [(picture, names[label]) for picture, label in zip(pixels, labels.tolist(), strict=True)]
        except (ValueError, TypeError, IndexError) as error:
            raise InputError(f"{file}: its pictures and labels do not fit ({error}); unpack it again") from error
    return rows


def _cifar_names(file: Path, key: str) -> list[str]:
    """The classes of CIFAR by label."""
    names = _unpickled(file, (key,))[key]
    if not isinstance(names, list) or not all(map(one_line, names)) or len(set(names)) < len(names):
        raise InputError(f"{file}: {key} must list the names of classes, each once, not {shown(names)}")
    return names


class _Plain(pickle.Unpickler):
    """Builds arrays and plain containers; a pickle that names anything else is refused, as it could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("_core", "core"), name) in {("numpy", "ndarray"), ("numpy", "dtype"), _RECONSTRUCT, _ENCODE}:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"{module}.{name}")


_RECONSTRUCT, _ENCODE = ("numpy.core.multiarray", "_reconstruct"), ("_codecs", "encode")


def _unpickled(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """A batch of CIFAR's Python version."""
    try:
        with user_files.opened(path) as file:
            found = _Plain(file, encoding="latin1").load()
        return {key: found[key] for key in keys}
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); unpack CIFAR's Python version again") from error
    except Exception as error:  # bytes that are no pickle raise anything
        raise InputError(
            f"{path} is no batch of CIFAR's Python version ({', '.join(keys)}); unpack it again"
        ) from error


IMAGE_SETS: dict[str, ImageSet] = {
    "caltech101": ImageSet(
        ("caltech-101", "caltech101"),
        "101_ObjectCategories",
        _caltech101,
        "data.caltech.edu/records/mzrjq-6wc02 (caltech-101.zip, with 101_ObjectCategories.tar.gz unpacked)",
        {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"},
    ),
    "oxford_pets": ImageSet(
        ("oxford_pets", "oxford-iiit-pet"),
        "images",
        _oxford_pets,
        "www.robots.ox.ac.uk/~vgg/data/pets (images.tar.gz and annotations.tar.gz)",
    ),
    "oxford_flowers": ImageSet(
        ("oxford_flowers", "flowers-102"),
        "jpg",
        _oxford_flowers,
        "www.robots.ox.ac.uk/~vgg/data/flowers/102 (102flowers.tgz, imagelabels.mat and setid.mat)",
        {"pink-yellow dahlia?": "pink-yellow dahlia"},  # the official list is in doubt
    ),
    "food101": ImageSet(
        ("food-101", "food101"),
        "images",
        _food101,
        "data.vision.ee.ethz.ch/cvl/datasets_extra/food-101 (food-101.tar.gz)",
    ),
    "cifar10": ImageSet(
        ("cifar-10-batches-py",), "test_batch", _cifar10, "www.cs.toronto.edu/~kriz/cifar.html (cifar-10-python.tar.gz)"
    ),
    "cifar100": ImageSet(
        ("cifar-100-python",), "train", _cifar100, "www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz)"
    ),
    "dtd": ImageSet(("dtd", "dtd/dtd"), "images", _dtd, "www.robots.ox.ac.uk/~vgg/data/dtd (dtd-r1.0.1.tar.gz)"),
    "eurosat": ImageSet(
        ("eurosat",),
        "2750",
        _eurosat,
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
    ),
    "fgvc_aircraft": ImageSet(
        ("fgvc_aircraft", "fgvc-aircraft-2013b/data"),
        "images",
        _fgvc_aircraft,
        "www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft (fgvc-aircraft-2013b.tar.gz)",
    ),
    "ucf101": ImageSet(
        ("ucf101",),
        "UCF-101-midframes",
        _ucf101,
        "github.com/KaiyangZhou/CoOp, DATASETS.md (UCF-101-midframes.zip and split_zhou_UCF101.json)",
    ),
}
