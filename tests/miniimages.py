"""Miniatures of the classification data sets in the layouts of their archives, as CoOp and torchvision want them unpacked.

Every builder takes the data root and whether CoOp's layout is wanted (its folder names, and its split file where it has
one), and returns what a reader must find: {"train" or "test": {file below the data set's folder: class name in prompts}}.
Sizes: 8 training and 3 test pictures of each of three classes, or what the official lists say.
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.io import savemat

from tests.minidata import picture, write

Found = dict[str, dict[str, str]]
Rows = Sequence[tuple[str, str, str]]  # split, file and class name
TRAIN, VAL, TEST = 5, 3, 3  # pictures of a class; official validation pictures are for training


def _text(path: Path, lines: Sequence[str]) -> Path:
    return write(path, "".join(f"{line}\n" for line in lines).encode())


def _paint(path: Path) -> None:
    """Write a picture that no other file of the data set has."""
    write(path, picture(zlib.crc32("/".join(path.parts[-2:]).encode())))


def _splits(n: int) -> list[tuple[str, int]]:
    """The split and number of each picture of a class, from n on."""
    names = ["train"] * TRAIN + ["val"] * VAL + ["test"] * TEST
    return [(split, n + i) for i, split in enumerate(names)]


def _found(rows: Rows, *, val: str | None = "train") -> Found:
    """Rows (split, file, name) by split; validation rows join the training, or are left out (None)."""
    found: Found = {"train": {}, "test": {}}
    for split, file, name in rows:
        target = val if split == "val" else split
        if target is not None:
            found[target][file] = name
    return found


def split_file(path: Path, images: str, rows: Rows, names: dict[str, str] | None = None) -> Found:
    """CoOp's split of rows (split, file, name in the file); the first test picture of each class goes to training, to tell it
    from the official lists. `names`: what the file's names become in prompts."""
    first = {name: file for split, file, name in reversed(rows) if split == "test"}
    moved = [("train" if first[name] == file else split, file, name) for split, file, name in rows]
    labels = {name: label for label, name in enumerate(dict.fromkeys(name for _, _, name in rows))}
    content = {
        split: [[file.removeprefix(f"{images}/"), labels[name], name] for s, file, name in moved if s == split]
        for split in ("train", "val", "test")
    }
    write(path, content)
    return _found([(s, file, (names or {}).get(name, name)) for s, file, name in moved], val=None)


def _painted(base: Path, rows: Iterable[tuple[str, str, str]]) -> Rows:
    """These rows, with their pictures."""
    made = [*rows]
    for _, file, _ in made:
        _paint(base / file)
    return made


def _joined(rows: Rows) -> dict[str, Rows]:
    """Rows for training, with those for validation, and for testing."""
    return {name: [row for row in rows if (row[0] == "test") == (name == "test")] for name in ("train", "test")}


def _class_folders(base: Path, images: str, names: Mapping[str, str], name: str, first: int = 1) -> Rows:
    """A folder per class with eleven pictures `name`; rows with the splits that CoOp's file shall say."""
    numbered = [(folder, said, split, n) for folder, said in names.items() for split, n in _splits(first)]
    rows = ((split, f"{images}/{folder}/{name.format(folder, n)}", said) for folder, said, split, n in numbered)
    return _painted(base, rows)


def caltech101(root: Path, coop: bool) -> Found:
    base = root / ("caltech-101" if coop else "caltech101")
    names = {"airplanes": "airplane", "Faces": "face", "water_lilly": "water lilly"}
    rows = _class_folders(base, "101_ObjectCategories", names, "image_{1:04d}.jpg")
    for left_out in ("BACKGROUND_Google", "Faces_easy"):
        _paint(base / f"101_ObjectCategories/{left_out}/image_0001.jpg")
    for file in ("airplanes/.DS_Store", "airplanes/._0001.jpg", "airplanes/Thumbs.db", "__MACOSX/._0001.jpg"):
        write(base / "101_ObjectCategories" / file, b"no image")
    if coop:
        raw = [(s, file, name.replace(" ", "_")) for s, file, name in rows]
        names = {"water_lilly": "water lilly"}
        return split_file(base / "split_zhou_Caltech101.json", "101_ObjectCategories", raw, names)
    return {"all": {file: name for _, file, name in rows}}


def eurosat(root: Path, coop: bool) -> Found:
    names = {"AnnualCrop": "Annual Crop Land", "Forest": "Forest", "SeaLake": "Sea or Lake"}
    rows = _class_folders(root / "eurosat", "2750", names, "{0}_{1}.jpg")
    if coop:
        return split_file(root / "eurosat/split_zhou_EuroSAT.json", "2750", rows)
    return {"all": {file: name for _, file, name in rows}}


def oxford_pets(root: Path, coop: bool) -> Found:
    base = root / ("oxford_pets" if coop else "oxford-iiit-pet")
    marks = {"Abyssinian": "1 1 1", "american_bulldog": "2 2 1", "Egyptian_Mau": "3 1 2"}
    numbered = [(breed, split, n) for breed in marks for split, n in _splits(98)]  # as there: not padded with zeros
    rows = _painted(base, ((split, f"images/{breed}_{n}.jpg", breed) for breed, split, n in numbered))
    write(base / "images/Abyssinian_100.mat", b"")
    for split, part in _joined(rows).items():
        lines = [f"{Path(file).stem} {marks[breed]}" for _, file, breed in part]
        _text(base / f"annotations/{'test' if split == 'test' else 'trainval'}.txt", lines)
    rows = [(split, file, breed.lower()) for split, file, breed in rows]
    names = {breed.lower(): breed.lower().replace("_", " ") for breed in marks}
    if coop:
        return split_file(base / "split_zhou_OxfordPets.json", "images", rows, names)
    return _found([(s, file, names[name]) for s, file, name in rows])


def oxford_flowers(root: Path, coop: bool) -> Found:
    base = root / ("oxford_flowers" if coop else "flowers-102")
    names = {1: "pink primrose", 60: "pink-yellow dahlia", 102: "blackberry lily"}
    numbered = [(label, split, n) for i, label in enumerate(names) for split, n in _splits(11 * i + 1)]
    rows = _painted(base, ((split, f"jpg/image_{n:05d}.jpg", names[label]) for label, split, n in numbered))
    savemat(base / "imagelabels.mat", {"labels": np.array([[label for label, _, _ in numbered]], np.uint8)})
    sets = {"trnid": "train", "valid": "val", "tstid": "test"}
    ids = {key: [[n for _, split, n in reversed(numbered) if split == name]] for key, name in sets.items()}
    savemat(base / "setid.mat", {key: np.array(numbers, np.uint16) for key, numbers in ids.items()})
    if coop:
        write(base / "cat_to_name.json", {str(label): name for label, name in names.items()})
        raw = [(s, file, "pink-yellow dahlia?" if "dahlia" in name else name) for s, file, name in rows]
        clean = {"pink-yellow dahlia?": "pink-yellow dahlia"}
        return split_file(base / "split_zhou_OxfordFlowers.json", "jpg", raw, clean)
    return _found(rows)


def food101(root: Path, coop: bool) -> Found:
    base, kinds = root / "food-101", ("apple_pie", "waffles", "beet_salad")
    rows = _class_folders(base, "images", {kind: kind for kind in kinds}, "{1}.jpg", 1005)
    for split, part in _joined(rows).items():
        lists = {kind: [f"{kind}/{Path(file).stem}" for _, file, own in part if own == kind] for kind in kinds}
        write(base / f"meta/{split}.json", lists)
    names = {kind: kind.replace("_", " ") for kind in kinds}
    if coop:
        return split_file(base / "split_zhou_Food101.json", "images", rows, names)
    return _found([(s, file, names[name]) for s, file, name in rows])


def dtd(root: Path, coop: bool) -> Found:
    base, kinds = root / ("dtd" if coop else "dtd/dtd"), ("banded", "lacelike", "zigzagged")
    rows = _class_folders(base, "images", {kind: kind for kind in kinds}, "{0}_{1:04d}.jpg", 2)
    for split in ("train", "val", "test"):
        _text(base / f"labels/{split}1.txt", [file.removeprefix("images/") for s, file, _ in rows if s == split])
        _text(base / f"labels/{split}2.txt", [])
    write(base / "imdb/imdb.mat", b"")
    return split_file(base / "split_zhou_DescribableTextures.json", "images", rows) if coop else _found(rows)


def fgvc_aircraft(root: Path, coop: bool) -> Found:
    """CoOp has no split file for it: its layout is the archive's folder data/, renamed."""
    base = root / ("fgvc_aircraft" if coop else "fgvc-aircraft-2013b/data")
    variants = ("707-320", "Boeing 717", "DHC-8-100")
    numbered = [(name, split, n) for k, name in enumerate(variants) for split, n in _splits(34958 + 100 * k)]
    rows = _painted(base, ((split, f"images/{n:07d}.jpg", name) for name, split, n in numbered))
    _text(base / "variants.txt", variants)
    parts = {"train": ("train",), "val": ("val",), "test": ("test",), "trainval": ("train", "val")}
    for part, splits in parts.items():
        lines = [f"{n:07d} {name}" for name, split, n in numbered if split in splits]
        _text(base / f"images_variant_{part}.txt", lines)
    return _found(rows, val=None)


def ucf101(root: Path, coop: bool) -> Found:
    base, actions = root / "ucf101", ("Apply_Eye_Makeup", "Handstand_Pushups", "Yo_Yo")
    numbered = [(action, split, n) for action in actions for split, n in _splits(1)]
    videos = ((split, f"{action}/v_{action.replace('_', '')}_g{n:02d}_c01", action) for action, split, n in numbered)
    rows = _painted(base, ((split, f"UCF-101-midframes/{video}.jpg", action) for split, video, action in videos))
    names = {action: action.replace("_", " ") for action in actions}
    if coop:
        return split_file(base / "split_zhou_UCF101.json", "UCF-101-midframes", rows, names)
    classes = [action.replace("_", "") for action in actions]
    _text(base / "ucfTrainTestlist/classInd.txt", [f"{n} {action}" for n, action in enumerate(classes, 1)])
    for split, part in _joined(rows).items():
        labels = {action: "" if split == "test" else f" {n}" for n, action in enumerate(actions, 1)}
        lines = [f"{action.replace('_', '')}/{Path(file).stem}.avi{labels[action]}" for _, file, action in part]
        _text(base / f"ucfTrainTestlist/{split}list01.txt", lines)
    return _found([(s, file, names[name]) for s, file, name in rows])


class _Python2(pickle._Pickler):
    """Writes str and bytes as Python 2 wrote its str, which is how CIFAR's batches were made."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    def save_text(self, value: str) -> None:
        self.save_bytes(value.encode("latin1"))

    dispatch[bytes] = save_bytes
    dispatch[str] = save_text


def python2_pickle(content: object) -> bytes:
    out = io.BytesIO()
    _Python2(out, 2).dump(content)
    return out.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar_pixels(n: int) -> np.ndarray:
    """Picture n, [32, 32, 3]."""
    return np.random.default_rng(n).integers(0, 256, (32, 32, 3), np.uint8)


def cifar_batch(path: Path, numbers: Sequence[int], key: str, classes: int) -> dict[str, int]:
    """Pictures of these numbers, number n of class n modulo `classes`; returns the label of each by its number."""
    labels = [n % classes for n in numbers]
    data = np.stack([cifar_pixels(n).transpose(2, 0, 1).ravel() for n in numbers])
    content = {"batch_label": "a batch", key: labels, "data": data, "filenames": [f"{n}.png" for n in numbers]}
    if key == "fine_labels":
        content["coarse_labels"] = [0] * len(numbers)
    write(path, python2_pickle(content))
    return {str(n): label for n, label in zip(numbers, labels, strict=True)}


def cifar10(root: Path, coop: bool) -> Found:
    base, names = root / "cifar-10-batches-py", ["airplane", "automobile", "bird"]
    train: dict[str, int] = {}
    for i in range(5):
        train |= cifar_batch(base / f"data_batch_{i + 1}", range(6 * i, 6 * i + 6), "labels", 3)
    test = cifar_batch(base / "test_batch", range(100, 109), "labels", 3)
    write(base / "batches.meta", python2_pickle({"num_cases_per_batch": 6, "label_names": names, "num_vis": 3072}))
    return {"train": {n: names[k] for n, k in train.items()}, "test": {n: names[k] for n, k in test.items()}}


def cifar100(root: Path, coop: bool) -> Found:
    base, names = root / "cifar-100-python", ["apple", "aquarium_fish", "maple_tree"]
    train = cifar_batch(base / "train", range(30), "fine_labels", 3)
    test = cifar_batch(base / "test", range(100, 109), "fine_labels", 3)
    write(base / "meta", python2_pickle({"fine_label_names": names, "coarse_label_names": ["x"]}))
    clean = [name.replace("_", " ") for name in names]
    return {"train": {n: clean[k] for n, k in train.items()}, "test": {n: clean[k] for n, k in test.items()}}


def _struct(rows: Sequence[dict[str, object]]) -> np.ndarray:
    """Rows as MATLAB keeps a struct array, [1, n]."""
    table = np.zeros((1, len(rows)), dtype=[(key, object) for key in rows[0]])
    for n, row in enumerate(rows):
        table[0, n] = tuple(row.values())
    return table


def stanford_cars(root: Path, coop: bool) -> Found:
    base, parts = root / "stanford_cars", {"train": "train", "val": "train", "test": "test"}
    models = ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "smart fortwo Convertible 2012")
    rows, lists = [], {"train": [], "test": []}
    for label, (name, year) in enumerate((model.rsplit(" ", 1) for model in models), 1):
        for split, n in _splits(100 * label):
            file = f"cars_{parts[split]}/{n:05d}.jpg"
            write(base / file, picture(n))
            lists[parts[split]].append({"bbox_x1": 1, "class": label, "fname": f"{n:05d}.jpg"})
            rows.append((split, file, f"{year} {name}"))
    (base / "devkit").mkdir()
    savemat(base / "devkit/cars_meta.mat", {"class_names": np.array([models], object)})
    savemat(base / "devkit/cars_train_annos.mat", {"annotations": _struct(lists["train"])})
    savemat(base / "cars_test_annos_withlabels.mat", {"annotations": _struct(lists["test"])})
    return split_file(base / "split_zhou_StanfordCars.json", "-", rows) if coop else _found(rows)


def sun397(root: Path, coop: bool) -> Found:
    base = root / "sun397"
    places = {"a/abbey": "abbey", "a/apartment_building/outdoor": "outdoor apartment_building", "z/zoo": "zoo"}
    rows = _class_folders(base, "SUN397", places, "sun_{1}.jpg")
    _text(base / "ClassName.txt", [f"/{folder}" for folder in places])
    for split, part in _joined(rows).items():
        _text(base / f"{split.title()}ing_01.txt", [file.removeprefix("SUN397") for _, file, _ in part])
    names = {place: place.replace("_", " ") for place in places.values()}
    if coop:
        return split_file(base / "split_zhou_SUN397.json", "SUN397", rows, names)
    return _found([(s, file, names[name]) for s, file, name in rows])


def _domain(base: Path, domain: str, kinds: Sequence[str]) -> Rows:
    """A domain's folder per class with hidden files of other systems; rows with the splits of its lists."""
    for kind in kinds:
        write(base / f"{domain}/{kind}/._{domain}_000001.jpg", b"no picture")
    write(base / f"{domain}/.directory", b"[Dolphin]")
    return _class_folders(base, domain, {kind: kind for kind in kinds}, f"{domain}_{{1:06d}}.jpg")


def fedbn_lists(base: Path, domain: str, rows: Rows, prefix: str) -> None:
    """DOMAIN_train.pkl and DOMAIN_test.pkl: an array of paths from the data root on, and one of class names."""
    for split, part in _joined(rows).items():
        paths, names = (np.array(column) for column in zip(*((f"{prefix}/{f}", n) for _, f, n in part), strict=True))
        write(base / f"{domain}_{split}.pkl", pickle.dumps((paths, names), 2))


def domainnet_clipart(root: Path, coop: bool) -> Found:
    """With FedBN's and FedOTP's lists, or with those of DomainNet."""
    base = root / ("domainnet" if coop else "DomainNet")
    rows = _domain(base, "clipart", ("bird", "ice_cream", "zebra"))
    if coop:
        fedbn_lists(base, "clipart", rows, "DomainNet")
    else:
        for split, part in _joined(rows).items():
            _text(base / f"splits/clipart_{split}.txt", [f"{file} 7" for _, file, _ in part])
    return _found([(s, file, name.replace("_", " ")) for s, file, name in rows])


def office_caltech10_amazon(root: Path, coop: bool) -> Found:
    """With FedBN's and FedOTP's lists, or without any."""
    base = root / "office_caltech_10"
    rows = _domain(base, "amazon", ("back_pack", "bike", "mug"))
    clean = [(s, file, name.replace("_", " ")) for s, file, name in rows]
    if coop:
        fedbn_lists(base, "amazon", rows, "office_caltech_10")
        return _found(clean)
    return {"all": {file: name for _, file, name in clean}}


BUILDERS: dict[str, Callable[[Path, bool], Found]] = {
    "caltech101": caltech101, "oxford_pets": oxford_pets, "oxford_flowers": oxford_flowers, "food101": food101,
    "cifar10": cifar10, "cifar100": cifar100, "dtd": dtd, "eurosat": eurosat, "fgvc_aircraft": fgvc_aircraft,
    "ucf101": ucf101, "stanford_cars": stanford_cars, "sun397": sun397, "domainnet_clipart": domainnet_clipart,
    "office_caltech10_amazon": office_caltech10_amazon,
}  # fmt: skip
