"""Where image data sets keep their pictures, and which of these their own lists count as training and as test.

Each reader takes the data set's folder and a generator, and returns its training and its test rows. The official lists
count, train and val together; Caltech101 and EuroSAT have none, so three tenths of each class, drawn at random, are for
testing.
"""

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.class_folders import Rows, class_folders, with_test
from fedaudit.tasks.local_files import need, one_line, path_below, read_json

EUROSAT = ("2750", "EuroSAT_RGB")  # folder of its pictures, in the archives of 2018 and 2023
FLOWERS: tuple[str, ...] = tuple(  # the categories of Oxford Flowers, 1 to 102
    (
        "pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily, moon "
        "orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea, spear thistle, "
        "yellow iris, globe-flower, purple coneflower, peruvian lily, balloon flower, giant white arum lily, fire "
        "lily, pincushion flower, fritillary, red ginger, grape hyacinth, corn poppy, prince of wales feathers, "
        "stemless gentian, artichoke, sweet william, carnation, garden phlox, love in the mist, mexican aster, "
        "alpine sea holly, ruby-lipped cattleya, cape flower, great masterwort, siam tulip, lenten rose, barbeton "
        "daisy, daffodil, sword lily, poinsettia, bolero deep blue, wallflower, marigold, buttercup, oxeye daisy, "
        "common dandelion, petunia, wild pansy, primula, sunflower, pelargonium, bishop of llandaff, gaura, "
        "geranium, orange dahlia, pink-yellow dahlia?, cautleya spicata, japanese anemone, black-eyed susan, "
        "silverbush, californian poppy, osteospermum, spring crocus, bearded iris, windflower, tree poppy, gazania, "
        "azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily, anthurium, "
        "frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress, canna "
        "lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow, mexican petunia, "
        "bromelia, blanket flower, trumpet creeper, blackberry lily"
    ).split(", ")
)


def _lines(path: Path, least: int, separator: str | None = None) -> Iterator[list[str]]:
    """Yield the fields of each line of a text file: split at `separator` into `least` fields, the last with the rest of
    the line, or at all white space (None). Blank lines are skipped. InputError: the file cannot be read, or a line has
    fewer than `least` fields, or a blank one."""
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


def read_caltech101(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Training and test rows, without the background class and Faces_easy, which has the photographs of Faces,
    cropped."""
    return with_test(class_folders(base / "101_ObjectCategories", ("BACKGROUND_Google", "Faces_easy")), rng)


def read_eurosat(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    images = next(one for name in EUROSAT if user_files.exists(one := base / name))
    return with_test(class_folders(images), rng)


def read_oxford_pets(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    def rows(split: str) -> Rows:
        path = base / "annotations" / f"{split}.txt"
        names = (parts[0] for parts in _lines(path, 4))
        return [(path_below(base / "images", f"{name}.jpg", path), name.rpartition("_")[0].lower()) for name in names]

    return rows("trainval"), rows("test")


def read_oxford_flowers(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
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
    """Flat arrays of whole numbers from a MATLAB file, {key: array}. InputError: the file cannot be read, or a value is
    no whole number from 0 on."""
    numbers = _matlab(path, keys)
    for key, values in numbers.items():
        if values.dtype.kind not in "iuf" or not np.array_equal(values, np.clip(np.nan_to_num(values), 0, 2**31) // 1):
            raise InputError(f"{path}: {key} must hold whole numbers from 0 on; download it again")
    return {key: values.astype(np.int64) for key, values in numbers.items()}


def _matlab(path: Path, keys: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Flat arrays from a MATLAB file, {key: array}. InputError: the file cannot be read, or lacks a key."""
    from scipy.io import loadmat

    try:
        with user_files.opened(path) as file:
            content = loadmat(file)
        return {key: np.asarray(content[key]).ravel() for key in keys}
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}); download it again") from error
    except Exception as error:  # its reader raises anything on damaged files
        raise InputError(f"{path} is no readable MATLAB file with {', '.join(keys)}; download it again") from error


def read_stanford_cars(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Training and test rows; the year comes first in a class's name, as in CoOp: 2012 Audi A5 Coupe."""
    meta = base / "devkit" / "cars_meta.mat"
    names = [str(one.item()) for one in _matlab(meta, ("class_names",))["class_names"]]

    def rows(folder: str, path: Path) -> Rows:
        try:
            listed = [
                (str(one["fname"].item()), names[int(one["class"].item()) - 1])
                for one in _matlab(path, ("annotations",))["annotations"]
            ]
        except (ValueError, IndexError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: its annotations must hold fname and class, a number of {meta}; download it again"
            ) from error
        return [(path_below(base / folder, file, path), _year_first(name)) for file, name in listed]

    return (
        rows("cars_train", base / "devkit" / "cars_train_annos.mat"),
        rows("cars_test", base / "cars_test_annos_withlabels.mat"),
    )


def _year_first(name: str) -> str:
    model, _, year = name.rpartition(" ")
    return f"{year} {model}".strip()


def read_sun397(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Training and test rows of the first of ten partitions; class names are CoOp's: outdoor apartment building for
    /a/apartment_building/outdoor."""

    def rows(split: str) -> Rows:
        path, pictures = base / f"{split}_01.txt", Rows()
        for (line,) in _lines(path, 1, "\n"):
            picture = line.strip().removeprefix("/")
            letter, *names = picture.split("/")[:-1] or [""]
            if not letter or not names:
                raise InputError(f"{path}: {line[:60]!r} names no picture as /a/abbey/sun_1.jpg does; unpack it again")
            pictures.append((path_below(base / "SUN397", picture, path), " ".join(reversed(names))))
        return pictures

    return rows("Training"), rows("Testing")


def read_domain(domain: str, base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Training and test rows of one domain of DomainNet or Office-Caltech10, by the lists of FedBN and FedOTP
    (DOMAIN_train.pkl), or of DomainNet (DOMAIN_train.txt, also in splits/), or else by folders."""
    for ending, listed in ((".pkl", _pickled_list), (".txt", _domain_list)):
        for folder in (base, base / "splits"):
            paths = [folder / f"{domain}_{split}{ending}" for split in ("train", "test")]
            if user_files.exists(paths[0]):
                rows: list[Rows] = [[_in_domain(base, domain, *row, path) for row in listed(path)] for path in paths]
                return rows[0], rows[1]
    return with_test(class_folders(base / domain), rng)


def _domain_list(path: Path) -> list[tuple[str, str]]:
    """(Picture, class) of each line, such as clipart/zebra/clipart_345_000001.jpg 344."""
    return [(picture, Path(picture).parent.name) for picture, *_ in _lines(path, 2)]


def _pickled_list(path: Path) -> list[tuple[str, str]]:
    """(Picture, class) of a pickle that holds the list of pictures and the list of their classes."""
    try:
        with user_files.opened(path) as file:
            pictures, classes = _Plain(file, encoding="latin1").load()
        rows = [(str(picture), str(name)) for picture, name in zip(pictures, classes, strict=True)]
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); unpack it again") from error
    except Exception as error:  # bytes that are no pickle raise anything
        raise InputError(f"{path} holds no list of pictures with a list of their classes; unpack it again") from error
    return rows


def _in_domain(base: Path, domain: str, picture: str, name: str, where: Path) -> tuple[Path, str]:
    """(File below `base`, class name); what a list writes before the domain's name is where the lists' authors had the
    data."""
    parts = picture.split("/")
    if domain not in parts:
        raise InputError(f"{where}: the picture {short_repr(picture)} is not of {domain}; unpack it again")
    return path_below(base, "/".join(parts[parts.index(domain) :]), where), name


def read_food101(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    def rows(split: str) -> Rows:
        path = base / "meta" / f"{split}.json"
        content = read_json(path)
        if not isinstance(content, dict):
            raise InputError(f"{path} must hold one JSON object, not {type(content).__name__}")
        listed = {name: need(content, name, path, list) for name in content}
        if bad := [file for files in listed.values() for file in files if not isinstance(file, str)]:
            raise InputError(f"{path}: its lists must hold pictures by name, not {short_repr(bad[0])}")
        return [
            (path_below(base / "images", f"{file}.jpg", path), name) for name, files in listed.items() for file in files
        ]

    return rows("train"), rows("test")


def read_dtd(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Training and test rows, (file, class name), of the first of ten partitions; validation pictures are training
    rows."""

    def rows(*splits: str) -> Rows:
        lists = [base / "labels" / f"{split}1.txt" for split in splits]
        return [
            (path_below(base / "images", f"{name}/{file.strip()}", path), name)
            for path in lists
            for name, file in _lines(path, 2, "/")
        ]

    return rows("train", "val"), rows("test")


def read_fgvc_aircraft(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Training and test rows, (file, class name); classes are variants (100). Validation pictures are left out, as in
    CoOp."""

    def rows(split: str) -> Rows:
        path = base / f"images_variant_{split}.txt"
        return [(path_below(base / "images", f"{n}.jpg", path), name.strip()) for n, name in _lines(path, 2, " ")]

    return rows("train"), rows("test")


def read_ucf101(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Training and test rows, (frame's file, class name), of the first of three splits; class and folder names are
    CoOp's: Apply_Eye_Makeup for ApplyEyeMakeup."""

    def rows(split: str) -> Rows:
        path, frames = base / "ucfTrainTestlist" / f"{split}list01.txt", Rows()
        for action, video in _lines(path, 2, "/"):
            name = "_".join(re.findall("[A-Z][^A-Z]*", action))
            frame = path_below(base / "UCF-101-midframes", f"{name}/{video.partition('.avi')[0]}.jpg", path)
            frames.append((frame, name))
        return frames

    return rows("train"), rows("test")


def read_cifar10(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    names = _cifar_names(base / "batches.meta", "label_names")
    train = [base / f"data_batch_{i}" for i in range(1, 6)]
    return _cifar(train, "labels", names), _cifar([base / "test_batch"], "labels", names)


def read_cifar100(base: Path, rng: np.random.Generator) -> tuple[Rows, Rows]:
    names = _cifar_names(base / "meta", "fine_label_names")
    return _cifar([base / "train"], "fine_labels", names), _cifar([base / "test"], "fine_labels", names)


def _cifar(files: Sequence[Path], key: str, names: Sequence[str]) -> Rows:
    """Rows (pixels [32, 32, 3], class name) of batch files, whose rows are three 32 x 32 planes, with labels at `key`.
    InputError: they do not fit."""
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
    """The class names of CIFAR, by label."""
    names = _unpickled(file, (key,))[key]
    if not isinstance(names, list) or not all(map(one_line, names)) or len(set(names)) < len(names):
        raise InputError(f"{file}: {key} must list the names of classes, each once, not {short_repr(names)}")
    return names


class _Plain(pickle.Unpickler):
    """Unpickles arrays and plain containers; UnpicklingError for anything else, as it could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("_core", "core"), name) in {("numpy", "ndarray"), ("numpy", "dtype"), _RECONSTRUCT, _ENCODE}:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"{module}.{name}")


_RECONSTRUCT, _ENCODE = ("numpy.core.multiarray", "_reconstruct"), ("_codecs", "encode")


def _unpickled(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """The values at `keys` of a batch file of CIFAR's Python version. InputError: it is none."""
    try:
        with user_files.opened(path) as file:
            content = _Plain(file, encoding="latin1").load()
        return {key: content[key] for key in keys}
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); unpack CIFAR's Python version again") from error
    except Exception as error:  # bytes that are no pickle raise anything
        raise InputError(
            f"{path} is no batch of CIFAR's Python version ({', '.join(keys)}); unpack it again"
        ) from error
