from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.data import inshop
from layerprobe.data.inshop import load
from layerprobe.data.spec import Count
from layerprobe.data.splits import Dataset, require_retrieval
from layerprobe.system.errors import DataError
from tests.data import fabricated
from tests.data.fabricated import spread

SMALL = {"train": Count(10, 4, (1, 3)), "test": Count(7, 4, (1, 2)), "gallery": Count(7, 4, (1, 2))}
HOME = "In-shop Clothes Retrieval Benchmark"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    fabricated.inshop(tmp_path / "Eval", tmp_path / "Img")
    return tmp_path


def small(root: Path) -> Dataset:
    return inshop._load(root, SMALL)


@pytest.mark.parametrize(
    ("lists", "images", "name"),
    [
        ("Eval", "Img", "img"),
        (".", ".", "img"),
        ("Eval", "Img", "img_highres"),
        (".", ".", "img_highres"),
        ("Eval", ".", "img"),
        (f"{HOME}/Eval", f"{HOME}/Img", "img"),
        (HOME, HOME, "img"),
    ],
)
def test_every_layout_gives_the_same_images(tmp_path: Path, lists: str, images: str, name: str) -> None:
    fabricated.inshop(tmp_path / lists, tmp_path / images, images=name)
    dataset = small(tmp_path)
    assert dataset.splits["test"].ids[0] == f"{name}/WOMEN/Dresses/id_00000003/02_2_front.jpg"
    assert {split.image(0).shape for split in dataset.splits.values()} == {(40, 40, 3)}


def test_of_both_sizes_the_papers_is_taken(copy: Path) -> None:
    fabricated.inshop(copy / "Eval", copy / "Img", images="img_highres")
    assert small(copy).splits["train"].ids[0].startswith("img/")


def test_a_folder_of_the_papers_size_without_an_image_is_passed_over(tmp_path: Path) -> None:
    fabricated.inshop(tmp_path / "Eval", tmp_path / "Img", images="img_highres")
    (tmp_path / "Img/img/WOMEN").mkdir(parents=True)
    assert small(tmp_path).splits["train"].ids[0].startswith("img_highres/")


def test_a_folder_of_the_papers_size_that_lacks_the_first_image_is_taken(copy: Path) -> None:
    fabricated.inshop(copy / "Eval", copy / "Img", images="img_highres")
    (copy / "Img/img/WOMEN/Dresses/id_00000002/03_1_front.jpg").unlink()
    with pytest.raises(DataError, match="1 of 24 listed images are missing: img/WOMEN/Dresses/id_00000002/03_1_front"):
        small(copy)


def test_queries_are_searched_in_a_gallery_of_the_same_items(copy: Path) -> None:
    dataset = require_retrieval(small(copy), source=copy)
    assert list(dataset.splits) == ["train", "test", "gallery"]
    assert dataset.search_in == {"test": "gallery"}
    assert dataset.class_names == tuple(f"id_{item:08}" for item in (2, 7, 9, 40, 3, 5, 11, 60))
    assert dataset.splits["train"].labels.tolist() == [0, 0, 0, 1, 2, 2, 2, 3, 3, 3]
    assert dataset.splits["test"].labels.tolist() == [4, 4, 5, 6, 6, 7, 7]
    assert dataset.splits["gallery"].labels.tolist() == [4, 4, 5, 5, 6, 7, 7]
    assert not set(dataset.splits["test"].ids) & set(dataset.splits["gallery"].ids)


def test_an_image_is_the_one_its_label_names(copy: Path) -> None:
    dataset = small(copy)
    for split in dataset.splits.values():
        for i, label in enumerate(split.labels.tolist()):
            assert split.ids[i].split("/")[3] == dataset.class_names[label]


def test_the_list_of_the_whole_set_gives_the_published_splits(tmp_path: Path) -> None:
    train = spread(range(1, 3998), 25882, 1, 162)
    query = spread(range(3998, 7983), 14218, 1, 66)
    gallery = spread(range(3998, 7983), 12612, 1, 65)
    sizes = {item: (size, 0, 0) for item, size in train.items()}
    sizes |= {item: (0, query[item], gallery[item]) for item in query}
    fabricated.inshop(tmp_path, None, sizes)
    found = inshop._read_annotations(tmp_path).counts()
    assert {name: str(size) for name, size in found.items()} == {
        "train": "25,882 images of 3,997 classes (1-162 each)",
        "test": "14,218 images of 3,985 classes (1-66 each)",
        "gallery": "12,612 images of 3,985 classes (1-65 each)",
    }
    assert found == inshop._COUNTS


def test_the_public_loader_wants_the_whole_set(copy: Path) -> None:
    with pytest.raises(DataError, match=r"gallery has 7 images of 4 .*expected 12,612 images of 3,985 classes \(1-65"):
        load(copy)
    assert load(copy, allow_partial=True).notes[2] == "partial: 7 of 12,612 gallery images of 4 of 3,985 classes"


def test_a_partial_gallery_is_searched_all_the_same(copy: Path) -> None:
    (copy / "Img/img/WOMEN/Dresses/id_00000011/01_3_front.jpg").unlink()
    dataset = inshop._load(copy, SMALL, allow_partial=True)
    assert dataset.notes == ("partial: 6 of 7 gallery images of 3 of 4 classes",)
    assert dataset.search_in == {"test": "gallery"}
    assert dataset.splits["test"].labels.tolist() == [4, 4, 5, 6, 6, 7, 7]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "img/x.jpg  id_1",
            "partition.txt:27: 2 cells in 'img/x.jpg id_1', expected <image_name> <item_id> <eval",
        ),
        (
            "img/x.jpg  id_1  test",
            "partition.txt:27: evaluation_status is 'test', expected train, query or gallery",
        ),
        ("img/../../x.jpg  id_1  train", "a listed path leaves the data folder: 'img/../../x.jpg'"),
        (
            "img/WOMEN/Dresses/id_00000003/02_2_front.jpg id_00000003 gallery",
            "1 images are listed twice: img/WOMEN/Dresses/id_00000003/02_2_front.jpg",
        ),
    ],
)
def test_bad_rows_are_refused(copy: Path, row: str, message: str) -> None:
    path = copy / "Eval/list_eval_partition.txt"
    path.write_text(f"25{path.read_text().removeprefix('24')}{row}\n")
    with pytest.raises(DataError) as caught:
        small(copy)
    assert message in str(caught.value)


def test_a_list_without_its_row_count_is_refused(copy: Path) -> None:
    path = copy / "Eval/list_eval_partition.txt"
    path.write_text(path.read_text().partition("\n")[2])
    with pytest.raises(DataError, match="partition.txt:2: the columns are '.*', expected 'image_name item_id ev"):
        small(copy)


def test_a_list_with_other_rows_than_it_says_is_refused(copy: Path) -> None:
    path = copy / "Eval/list_eval_partition.txt"
    path.write_text(path.read_text().replace("24", "99", 1))
    with pytest.raises(
        DataError, match=r"list_eval_partition.txt: 24 rows where its first line says 99\. Get the file"
    ):
        small(copy)
    assert inshop._load(copy, SMALL, allow_partial=True).notes == (
        "list_eval_partition.txt: 24 rows where its first line says 99",
    )


def test_a_row_count_that_is_no_number_is_refused(copy: Path) -> None:
    path = copy / "Eval/list_eval_partition.txt"
    path.write_text(path.read_text().replace("24", "many", 1))
    with pytest.raises(DataError, match=r"partition.txt:1: the first line is 'many', expected the number of rows"):
        small(copy)


def test_a_copy_without_its_images_names_them(copy: Path) -> None:
    (copy / "Img").rename(copy / "Pictures")
    with pytest.raises(DataError, match="24 of 24 listed images are missing: img/WOMEN/Dresses/id_00000002/03_1_front"):
        small(copy)


def test_another_folder_is_told_the_layouts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="list_eval_partition.txt is not there. Expected ROOT/ with Eval/list_eval_p"):
        small(tmp_path)
