from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from layerprobe.data import contents, tables, tar_shards
from layerprobe.data.contents import with_digests
from layerprobe.data.hash_table import hash_names
from layerprobe.data.image_files import Files
from layerprobe.data.splits import digests_of
from layerprobe.data.tar_shards import load
from layerprobe.system.errors import DataError
from tests.data.tabled import IMAGES, LABELS, PATHS, rows, write
from tests.workflow.conftest import Silent

CLASSES = {name: number for number, name in enumerate(dict.fromkeys(LABELS))}


def shard(path: Path, members: Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]]) -> Path:
    """A tar file with these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items() if isinstance(members, Mapping) else members:
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def members(*, rows: range = range(8), label: str = "cls") -> dict[str, bytes | str]:
    """Images with their labels beside them."""
    found: dict[str, bytes | str] = {}
    for row in rows:
        key = PATHS[row].removesuffix(".jpg")
        found[f"{key}.jpg"] = IMAGES[row]
        text = {"cls": str(CLASSES[LABELS[row]]), "txt": f"{LABELS[row]}\n", "json": json.dumps({"label": LABELS[row]})}
        found[f"{key}.{label}"] = text[label]
    return found


def shards(folder: Path) -> Path:
    """Four tar files of two images each."""
    for number in range(4):
        shard(folder / f"{number:03}.tar", members(rows=range(2 * number, 2 * number + 2), label="txt"))
    return folder


@pytest.mark.parametrize("label", ["cls", "txt", "json"])
def test_images_labels_and_ids_are_those_of_the_members(tmp_path: Path, label: str) -> None:
    dataset = load(shard(tmp_path / "a.tar", members(label=label)))
    names = dataset.class_names
    assert names == (("0", "1", "2", "3") if label == "cls" else ("ant", "bee", "cat", "dog"))
    found = {
        name: (split.labels.tolist(), [split.image(row).shape for row in range(4)], split.ids)
        for name, split in dataset.splits.items()
    }
    expected = tables.load(write(tmp_path / "t.parquet", rows(path=PATHS)), image_column="image", id_column="path")
    for name, split in expected.splits.items():
        shapes = [split.image(row).shape for row in range(4)]
        assert found[name] == (split.labels.tolist(), shapes, split.ids)


def test_hashes_are_those_of_the_images(tmp_path: Path) -> None:
    hashed = [
        with_digests(dataset, tmp_path / "tables", Silent())
        for dataset in (
            load(shard(tmp_path / "a.tar", members())),
            tables.load(write(tmp_path / "t.parquet", rows())),
        )
    ]
    for name in ("train", "test"):
        first, other = (digests_of(dataset.splits[name]).tolist() for dataset in hashed)
        assert first == other


def test_hashes_that_are_kept_by_name_are_read_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load(shards(tmp_path / "s"))
    with monkeypatch.context() as earlier:
        earlier.setattr(contents, "_hash_names", lambda names: hash_names(names))
        expected = with_digests(dataset, tmp_path / "tables", Silent())
    monkeypatch.setattr(contents, "_of_file", None)
    hashed = with_digests(dataset, tmp_path / "tables", Silent())
    for name in ("train", "test"):
        assert digests_of(hashed.splits[name]).tolist() == digests_of(expected.splits[name]).tolist()


@pytest.mark.parametrize("root", ["{000..003}.tar", "*.tar", "", "{000,001,002,003}.tar"])
def test_a_folder_a_glob_and_braces_name_shards(tmp_path: Path, root: str) -> None:
    shards(tmp_path / "s")
    dataset = load(tmp_path / "s" / root if root else tmp_path / "s")
    assert sum((split.ids for split in dataset.splits.values()), ()) == tuple(PATHS)


def test_two_patterns_in_braces_are_each_with_each(tmp_path: Path) -> None:
    for number in range(4):
        shard(tmp_path / f"{'ab'[number // 2]}-{number % 2}.tar", members(rows=range(2 * number, 2 * number + 2)))
    dataset = load(tmp_path / "{a,b}-{0..1}.tar")
    assert sum((split.ids for split in dataset.splits.values()), ()) == tuple(PATHS)


def test_splits_are_those_of_the_files_names(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.tar", members(rows=range(4)))
    shard(tmp_path / "query-0.tar", members(rows=range(4, 8, 2)))
    shard(tmp_path / "gallery-0.tar", members(rows=range(5, 8, 2)))
    dataset = load(tmp_path)
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 4, "test": 2, "gallery": 2}
    assert dataset.search_in == {"test": "gallery"}


def test_values_of_json_are_columns_and_splits(tmp_path: Path) -> None:
    contents: dict[str, bytes | str] = {}
    for row in range(8):
        contents[f"{row}.jpg"] = IMAGES[row]
        values = {"kind": LABELS[row], "split": "train" if row < 4 else "test", "camera": row % 2, "boxes": [1]}
        contents[f"{row}.json"] = json.dumps(values)
    dataset = load(shard(tmp_path / "a.tar", contents), label_column="kind")
    assert dataset.class_names == ("ant", "bee", "cat", "dog")
    assert dataset.splits["test"].columns == {"camera": ("0", "1", "0", "1")}


def test_images_of_a_shard_without_a_value_have_none(tmp_path: Path) -> None:
    for number in range(4):
        further = {"size": number} if number in (1, 2) else {}
        for row in (2 * number, 2 * number + 1):
            found = members(rows=range(row, row + 1), label="json")
            key = PATHS[row].removesuffix(".jpg")
            found[f"{key}.json"] = json.dumps({"label": LABELS[row], **further})
            shard(tmp_path / f"{row}.tar", found)
    columns = {name: split.columns for name, split in load(tmp_path).splits.items()}
    assert columns == {"train": {"size": ("", "", "1", "1")}, "test": {"size": ("2", "2", "", "")}}


def test_other_members_and_folders_are_passed_over(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", members())
    with tarfile.open(path, "a") as tar:
        folder = tarfile.TarInfo("more")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        tar.addfile(tarfile.TarInfo("README.md"))
    assert sum(len(split) for split in load(path).splits.values()) == 8


def test_one_of_several_images_is_named_by_its_ending(tmp_path: Path) -> None:
    contents = {name.replace(".jpg", ".left.jpg"): content for name, content in members().items()}
    contents |= {name.replace(".left.", ".right."): IMAGES[0] for name in contents if ".left." in name}
    path = shard(tmp_path / "a.tar", {name: contents[name] for name in sorted(contents)})
    with pytest.raises(DataError, match=r"ant/0 has several images: left.jpg and right.jpg. Name their"):
        load(path)
    assert load(path, image_column="left.jpg").splits["test"].ids[0] == "cat/0.left.jpg"


def bad(tmp_path: Path, changed: Mapping[str, bytes | str | None]) -> Path:
    contents = {**members(), **changed}
    return shard(tmp_path / "a.tar", {name: x for name, x in sorted(contents.items()) if x is not None})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"bee/1.cls": None}, r"a.tar: bee/1 has no label. Expected a text KEY.cls or KEY.txt"),
        ({"bee/1.cls": " "}, "a.tar: bee/1 has no label; it has cls"),
        (
            {"bee/1.txt": "bee"},
            "a.tar: bee/1 has several labels: cls and txt. Name one by --set data.label",
        ),
        ({"bee/1.jpg": None}, "a.tar: bee/1 has no image. Remove its members"),
        (
            {"bee/1.cls": None, "bee/1.json": '{"label": [1, 2]}'},
            r"the label of bee/1 is \[1, 2\]. Expected one text",
        ),
        ({"bee/1.cls": None, "bee/1.json": '{"label": 0.5}'}, "the label of bee/1 is 0.5. Expected one text or whole"),
        ({"bee/1.json": "{"}, r"a.tar: bee/1.json is not JSON \(Expecting"),
        ({"bee/1.json": "[1]"}, r"a.tar: bee/1.json is no JSON object. Expected"),
        ({"bee/1.cls": b"\xff"}, "a.tar: a label is not UTF-8. Write it again"),
    ],
)
def test_what_is_wrong_with_a_member_is_told_with_its_key(
    tmp_path: Path, changed: Mapping[str, bytes | str | None], error: str
) -> None:
    with pytest.raises(DataError, match=error):
        load(bad(tmp_path, changed))


@pytest.mark.parametrize(
    ("name", "compress"), [("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)]
)
def test_a_compressed_tar_is_refused(tmp_path: Path, name: str, compress: object) -> None:
    path = shard(tmp_path / "a.tar", members())
    path.write_bytes(compress(path.read_bytes()))  # type: ignore[operator] # one of three functions
    with pytest.raises(DataError, match=f"a.tar: compressed by {name}, in which no image can be read at its place"):
        load(path)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_a_truncated_tar_is_refused(tmp_path: Path, share: float) -> None:
    path = shard(tmp_path / "a.tar", members())
    with tarfile.open(path) as tar:
        end = tar.getmembers()[-1]
    content = path.read_bytes()[: end.offset_data + 512]
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match="a.tar: truncated"):
        load(path)


def test_a_tar_without_its_end_is_refused(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", members())
    with tarfile.open(path) as tar:
        end = tar.getmembers()[-1]
    path.write_bytes(path.read_bytes()[: end.offset_data + 512])
    with pytest.raises(DataError, match="a.tar: truncated: the tar file has no end. Get the shard again"):
        load(path)


def test_a_file_that_is_no_tar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(DataError, match=r"a.tar: cannot be read as tar \("):
        load(tmp_path / "a.tar")


def test_missing_shards_are_named(tmp_path: Path) -> None:
    folder = shards(tmp_path / "s")
    (folder / "002.tar").unlink()
    with pytest.raises(DataError, match=re.escape("2 of 5 shards are missing: 002.tar, 004.tar. Get them again")):
        load(folder / "{000..004}.tar")
    with pytest.raises(DataError, match="no tar file lies there. Expected a tar file"):
        load(folder / "x*.tar")


def test_the_index_is_kept_and_made_anew_for_another_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = shard(tmp_path / "a.tar", members()), list[Path]()
    headers = tar_shards._read_headers

    def counted(file: Path) -> list[tar_shards._Member]:
        read.append(file)
        return headers(file)

    monkeypatch.setattr(tar_shards, "_read_headers", counted)
    for _ in range(2):
        dataset = load(path, index_folder=tmp_path / "index")
    assert len(read) == 1
    shard(path, {**members(), "eel/0.jpg": IMAGES[0], "eel/0.cls": "7"})
    assert len(load(path, index_folder=tmp_path / "index").class_names) == len(dataset.class_names) + 1
    (index,) = (tmp_path / "index").iterdir()
    index.write_text("{")
    load(path, index_folder=tmp_path / "index")
    assert len(read) == 3


def linked(path: Path, contents: Mapping[str, bytes | str], links: Mapping[str, str], kind: bytes) -> Path:
    """A shard with links behind its files."""
    shard(path, contents)
    with tarfile.open(path, "a") as tar:
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, target
            tar.addfile(link)
    return path


def test_a_hard_link_is_the_file_that_it_names(tmp_path: Path) -> None:
    links = {"eel/0.jpg": "ant/0.jpg", "eel/0.cls": "ant/0.cls", "eel/1.jpg": "eel/0.jpg", "eel/1.cls": "bee/1.cls"}
    linked_split = load(linked(tmp_path / "a.tar", members(), links, tarfile.LNKTYPE)).splits
    targets = {**links, "eel/1.jpg": "ant/0.jpg"}
    copies = {name: members()[target] for name, target in targets.items()}
    copied = load(shard(tmp_path / "b.tar", {**members(), **copies})).splits
    for name, split in copied.items():
        assert linked_split[name].ids == split.ids
        assert linked_split[name].labels.tolist() == split.labels.tolist()
        for row in range(len(split)):
            np.testing.assert_array_equal(linked_split[name].image(row), split.image(row))


@pytest.mark.parametrize(
    ("target", "kind"), [("ant/9.jpg", tarfile.LNKTYPE), ("ant/0.jpg", tarfile.SYMTYPE)], ids=["hard", "symbolic"]
)
def test_a_link_without_bytes_is_refused(tmp_path: Path, target: str, kind: bytes) -> None:
    path = linked(tmp_path / "a.tar", members(), {"eel/0.jpg": target}, kind)
    with pytest.raises(DataError, match=f"a.tar: eel/0.jpg is a link to {target}, which is no file of the shard in"):
        load(path)


def sparse(path: Path, form: str, data: bytes) -> Path:
    """A shard whose image has its bytes behind a hole of 1024 zeros, as GNU tar writes it."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT if form == "PAX" else tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("ant/0.png")
        if form == "PAX":
            extent = f"1\n1024\n{len(data)}\n".encode().ljust(512, b"\0")
            info.size, size = len(extent) + len(data), str(1024 + len(data))
            info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": size}
            info.pax_headers["GNU.sparse.name"] = info.name
            tar.addfile(info, io.BytesIO(extent + data))
        else:
            info.type, info.size = tarfile.GNUTYPE_SPARSE, len(data)
            block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
            block[386:410] = b"%011o\0%011o\0" % (1024, len(data))
            block[483:495] = b"%011o\0" % (1024 + len(data))
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
            assert tar.fileobj is not None
            tar.fileobj.write(bytes(block) + data.ljust(-(-len(data) // 512) * 512, b"\0"))
            tar.offset = tar.fileobj.tell()
        label = tarfile.TarInfo("ant/0.cls")
        label.size = 1
        tar.addfile(label, io.BytesIO(b"0"))
    return path


@pytest.mark.parametrize("form", ["GNU", "PAX"])
def test_a_sparse_member_is_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(DataError, match=r"a.tar: ant/0.png is stored sparse, and cannot .* Write the shard again with"):
        load(sparse(tmp_path / "a.tar", form, IMAGES[0]))


def test_endings_count_in_upper_case_too(tmp_path: Path) -> None:
    contents = {f"{name[:-4]}{name[-4:].upper()}": content for name, content in members().items()}
    dataset = load(shard(tmp_path / "a.tar", contents), image_column="JPG")
    assert dataset.class_names == ("0", "1", "2", "3")
    assert dataset.splits["test"].ids[0] == "cat/0.JPG"


def test_hidden_members_are_passed_over(tmp_path: Path) -> None:
    contents = {**members(), **{f"ant/._{row}.{ending}": b"\0" for row in range(2) for ending in ("jpg", "cls")}}
    assert sum(len(split) for split in load(shard(tmp_path / "a.tar", contents)).splits.values()) == 8


@pytest.mark.parametrize("place", [1, 16], ids=["beside it", "further on"])
def test_a_member_that_lies_twice_is_refused(tmp_path: Path, place: int) -> None:
    ordered = [*members().items()]
    path = shard(tmp_path / "a.tar", [*ordered[:place], ordered[0], *ordered[place:]])
    with pytest.raises(DataError, match="a.tar: ant/0.jpg lies twice. Write the shard again with it once"):
        load(path)


def test_members_of_one_image_that_lie_apart_are_refused(tmp_path: Path) -> None:
    contents = dict(sorted(members().items(), key=lambda item: item[0].endswith("cls")))
    with pytest.raises(DataError, match="a.tar: the members of ant/0 lie apart. Write the shard again: the members"):
        load(shard(tmp_path / "a.tar", contents))


def test_a_shard_that_shrinks_is_told_of(tmp_path: Path) -> None:
    split = load(shard(tmp_path / "a.tar", members())).splits["test"]
    assert isinstance(split.image, Files)
    (tmp_path / "a.tar").write_bytes(b"short")
    with pytest.raises(DataError, match=r"a.tar: at byte [0-9]+: the tar file is shorter now. Get it again"):
        split.image(0)


def test_images_with_other_values_or_files_keep_their_own(tmp_path: Path) -> None:
    contents: dict[str, bytes | str] = {}
    for row in range(8):
        contents[f"{row}.jpg"] = IMAGES[row]
        if row % 3 == 1:
            contents[f"{row}.left.jpg"] = IMAGES[0]
        values = {"label": LABELS[row]} | ({"jpg": row} if row % 2 else {})
        contents[f"{row}.json"] = json.dumps(values)
    dataset = load(shard(tmp_path / "a.tar", contents), image_column="jpg", index_folder=tmp_path / "index")
    kept = load(tmp_path / "a.tar", image_column="jpg", index_folder=tmp_path / "index")
    for splits in (dataset.splits, kept.splits):
        assert [splits["test"].columns["jpg"], splits["test"].ids] == [
            ("", "5", "", "7"),
            ("4.jpg", "5.jpg", "6.jpg", "7.jpg"),
        ]
        assert [splits["test"].image(row).tolist() for row in range(4)] == [
            np.asarray(PIL.Image.open(io.BytesIO(content))).tolist() for content in IMAGES[4:]
        ]
