"""Small copies of the benchmarks as they lie on disks, with what has misled loaders before.

Class ids have gaps, images are listed in another order than their names', one is grey, one ends in capitals, and
macOS's `._` files lie between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

IDS = (1, 3, 57, 98, 101, 120, 160, 196)  # the published boundaries, 98 and 100, have four on each side
SIZES = dict.fromkeys(IDS, 3)
SLASH = "Ram C/V Cargo Van Minivan 2012"

Listed = list[tuple[int, str]]  # class id, file name


def spread(ids: Sequence[int], total: int, smallest: int, largest: int) -> dict[int, int]:
    """Sizes of classes with a given sum and given extremes, the rest as equal as can be."""
    rest, more = divmod(total - smallest - largest, len(ids) - 2)
    sizes = [smallest, *(rest + (i < more) for i in range(len(ids) - 2)), largest]
    return dict(zip(ids, sizes, strict=True))


def write_image(path: Path, class_id: int, number: int) -> None:
    """A colour of the class with noise, 40 x 40; the third image of a class is grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = np.random.default_rng(class_id).integers(0, 256, 3)
    noise = np.random.default_rng([class_id, number]).integers(-20, 20, (40, 40, 3))
    image = Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8))
    (image.convert("L") if number == 2 else image).save(path, "JPEG")
    (path.parent / f"._{path.name}").write_bytes(b"\0\5\x16\7")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def cub(folder: Path, sizes: Mapping[int, int] = SIZES, *, train: int = 8, images: bool = True) -> None:
    """CUB_200_2011 with `train` images in its official training split; labels listed in another order than images."""
    members = [(c, i) for c, size in sizes.items() for i in range(size)]
    paths = {
        number: f"{c:03}.Bird_{c}/Bird_{99 - i}.{'JPG' if (c, i) == (1, 1) else 'jpg'}"
        for number, (c, i) in enumerate(members, start=1)
    }
    write_lines(folder / "images.txt", (f"{number} {path}" for number, path in paths.items()))
    labels = [f"{number} {c}" for number, (c, _) in enumerate(members, start=1)]
    write_lines(folder / "image_class_labels.txt", reversed(labels))
    write_lines(folder / "classes.txt", (f"{c} {c:03}.Bird_{c}" for c in sizes))
    official = set(sorted(members, key=lambda member: member[::-1])[:train])
    flags = [f"{number} {int(member in official)}" for number, member in enumerate(members, start=1)]
    write_lines(folder / "train_test_split.txt", flags)
    write_lines(folder / "bounding_boxes.txt", (f"{number} 60.0 27.0 325.0 304.0" for number in paths))
    for (c, i), path in zip(members, paths.values(), strict=True):
        if images:
            write_image(folder / "images" / path, c, i)


def sop(folder: Path, sizes: Mapping[int, int] = SIZES, *, tested_from: int = 101, images: bool = True) -> None:
    """Stanford_Online_Products with upper-case endings."""
    number = 0
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for c, size in sizes.items():
        for i in range(size):
            number += 1
            path = f"{('bicycle', 'chair')[c % 2]}_final/11108{c}_{size - i}.JPG"
            lines["test" if c >= tested_from else "train"].append(f"{number} {c} {c % 2 + 1} {path}")
            if images:
                write_image(folder / path, c, i)
    for name, listed in lines.items():
        write_lines(folder / f"Ebay_{name}.txt", ["image_id class_id super_class_id path", *listed])


def inshop_rows(sizes: Mapping[int, tuple[int, int, int]]) -> list[tuple[str, str, str]]:
    """Image, item and status of items with so many train, query and gallery images."""
    return [
        (f"img/WOMEN/Dresses/id_{item:08}/{i:02}_{part}_front.jpg", f"id_{item:08}", status)
        for item, counts in sizes.items()
        for part, (status, size) in enumerate(zip(("train", "query", "gallery"), counts, strict=True), start=1)
        for i in range(size, 0, -1)
    ]


INSHOP = {2: (3, 0, 0), 7: (1, 0, 0), 9: (3, 0, 0), 40: (3, 0, 0)} | {
    3: (0, 2, 2), 5: (0, 1, 2), 11: (0, 2, 1), 60: (0, 2, 2),
}  # fmt: skip


def inshop(
    eval_folder: Path, folder: Path | None, sizes: Mapping[int, tuple[int, int, int]] = INSHOP, *, images: str = "img"
) -> None:
    """The In-Shop list, padded with spaces as the real one is, and its images below folder/images."""
    rows = inshop_rows(sizes)
    lines = [f"{name:<70} {item:<16} {status}" for name, item, status in rows]
    head = [str(len(rows)), f"{'image_name':<70} {'item_id':<16} evaluation_status"]
    write_lines(eval_folder / "list_eval_partition.txt", [*head, *lines])
    for number, (name, item, _) in enumerate(rows):
        if folder is not None:
            write_image(folder / images / name.removeprefix("img/"), int(item.removeprefix("id_")), number % 3)


# Person -> camera -> images in bounding_box_train, or in query and bounding_box_test.
MARKET_TRAIN = {2: {1: 2, 3: 1}, 7: {2: 2}, 1500: {1: 1, 6: 2}}
MARKET_TEST = {
    1: {1: (1, 2), 2: (1, 1), 5: (0, 1)},
    3: {1: (1, 1), 4: (0, 2)},
    1501: {3: (1, 3)},  # seen by one camera alone: nothing is right for its query
    0: {1: (0, 2), 6: (0, 1)},
    -1: {2: (0, 3)},
}  # fmt: skip


def market(folder: Path, test: Mapping[int, Mapping[int, tuple[int, int]]] = MARKET_TEST) -> None:
    """Market-1501's three folders, with a Thumbs.db as the real one has it."""

    def add(place: str, person: int, camera: int, count: int) -> None:
        for i in range(count):
            number = f"{person:04}" if person >= 0 else "-1"
            write_image(folder / place / f"{number}_c{camera}s1_{100 * i + 51:06}_{i:02}.jpg", person + 1, camera + i)

    for person, cameras in MARKET_TRAIN.items():
        for camera, images in cameras.items():
            add("bounding_box_train", person, camera, images)
    for person, seen in test.items():
        for camera, (queries, images) in seen.items():
            add("query", person, camera, queries)
            add("bounding_box_test", person, camera, images)
    (folder / "bounding_box_test/Thumbs.db").write_bytes(b"x")


def car_names() -> dict[int, str]:
    """196 names in no alphabetical order, one with a slash and two alike."""
    names = {c: f"Make {197 - c} Coupe" for c in range(1, 197)}
    return names | {57: SLASH, 120: "Twin 2012", 160: "Twin 2012"}


def shuffled(sizes: Mapping[int, int]) -> list[tuple[int, int]]:
    """Class id and number of every image, classes mixed."""
    members = [(c, i) for c, size in sizes.items() for i in range(size)]
    order = np.random.default_rng(0).permutation(len(members))
    return [members[place] for place in order.tolist()]


def _names_array() -> np.ndarray:
    names = np.empty((1, 196), object)
    names[0, :] = list(car_names().values())
    return names


def _struct(columns: Mapping[str, Sequence[object]]) -> np.ndarray:
    rows = np.empty((1, len(next(iter(columns.values())))), [(name, object) for name in columns])
    for name, values in columns.items():
        for place, value in enumerate(values):
            rows[0, place][name] = value
    return rows


def _boxes(images: int) -> dict[str, list[np.ndarray]]:
    return {name: [np.array([[300]], np.uint16)] * images for name in ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")}


def _save(path: Path, **variables: np.ndarray) -> None:
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, variables)


def _bytes(values: Iterable[int]) -> list[np.ndarray]:
    return [np.array([[value]], np.uint8) for value in values]


def official(members: Sequence[tuple[int, int]], train: int) -> list[bool]:
    """Which images are in an official training split of that size, the first of each class first."""
    chosen = set(sorted(members, key=lambda member: member[::-1])[:train])
    return [member in chosen for member in members]


def cars_one_folder(root: Path, sizes: Mapping[int, int] = SIZES, *, train: int = 8, images: bool = True) -> None:
    """cars_annos.mat with car_ims/, rows in no order of class."""
    members = shuffled(sizes)
    names = [f"car_ims/{number:06}.jpg" for number in range(1, len(members) + 1)]
    tested = [not in_train for in_train in official(members, train)]
    annotations = _struct(
        {
            "relative_im_path": names,
            **(_boxes(len(names)) if images else {}),
            "class": _bytes(c for c, _ in members),
            "test": _bytes(tested),
        }
    )
    _save(root / "cars_annos.mat", annotations=annotations, class_names=_names_array())
    (root / "car_ims").mkdir()
    for (c, i), name in zip(members, names, strict=True):
        if images:
            write_image(root / name, c, i)


def cars_devkit(
    root: Path, sizes: Mapping[int, int] = SIZES, *, train: int = 8, images: bool = True, labels: str = "."
) -> None:
    """The devkit: the same file names in cars_train/ and cars_test/, test classes in a file of its own."""
    members = shuffled(sizes)
    flags = official(members, train)
    files = {"train": root / "devkit/cars_train_annos.mat", "test": root / labels / "cars_test_annos_withlabels.mat"}
    for part, path in files.items():
        chosen = [member for member, in_train in zip(members, flags, strict=True) if in_train == (part == "train")]
        names = [f"{number:05}.jpg" for number in range(1, len(chosen) + 1)]
        classes = _bytes(c for c, _ in chosen)
        boxes = _boxes(len(names)) if images else {}
        _save(path, annotations=_struct({**boxes, "class": classes, "fname": names}))
        for (c, i), name in zip(chosen, names, strict=True):
            if images:
                write_image(root / f"cars_{part}" / name, c, i)
    _save(root / "devkit/cars_test_annos.mat", annotations=_struct({**_boxes(1), "fname": ["00001.jpg"]}))
    _save(root / "devkit/cars_meta.mat", class_names=_names_array())


def cars_named(
    root: Path,
    sizes: Mapping[int, int] = SIZES,
    *,
    train: int = 8,
    images: bool = True,
    place: str = "car_data/car_data",
) -> None:
    """Folders with the classes' names, the slash of one a hyphen."""
    names, members = car_names(), shuffled(sizes)
    write_lines(root / "names.csv", names.values())
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for number, ((c, i), in_train) in enumerate(zip(members, official(members, train), strict=True), start=1):
        part = "train" if in_train else "test"
        lines[part].append(f"{number:05}.jpg,39,116,569,375,{c}")
        if images:
            write_image(root / place / part / names[c].replace("/", "-") / f"{number:05}.jpg", c, i)
    for part, listed in lines.items():
        write_lines(root / f"anno_{part}.csv", listed)


def cars_numbered(root: Path, sizes: Mapping[int, int] = SIZES) -> None:
    """Folders 1 to 196."""
    for c, size in sizes.items():
        for i in range(size):
            write_image(root / str(c) / f"{9 - i:03}.{'JPG' if i == 1 else 'jpg'}", c, i)
