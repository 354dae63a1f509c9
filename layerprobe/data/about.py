"""What each data set needs and where it is to be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class About:
    """What a user has to know before the first run on a data set.

    Args:
        usage: what to give to --data.
        holds: what it is.
        layout: what its folder or file has to look like, in one line.
        where: its official page, as text; empty where there is none.
        counts: split -> images and classes of a whole copy, where they are known.
    """

    usage: str
    holds: str
    layout: str
    where: str = ""
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


# Classes of each; a set's splits are joined.
_TORCHVISION = {
    "CIFAR10": 10, "CIFAR100": 100, "Caltech101": 101, "Country211": 211, "DTD": 47, "EuroSAT": 10,
    "FGVCAircraft": 100, "FashionMNIST": 10, "Flowers102": 102, "Food101": 101, "Imagenette": 10, "KMNIST": 10,
    "MNIST": 10, "Omniglot": 1623, "OxfordIIITPet": 37, "SUN397": 397,
}  # fmt: skip

ABOUT: Mapping[str, About] = {
    "glyphs": About(
        "glyphs",
        "generated characters, for a first look",
        "nothing: made in memory",
        counts={"train": (1200, 60), "test": (1200, 60)},
    ),
    "folder": About(
        "folder:DIR",
        "images in a folder for each class",
        "DIR/CLASS/IMAGE, classes at any depth; the first half of the classes by name trains, the rest tests",
    ),
    "csv": About(
        "csv:FILE",
        "images listed in a table",
        "FILE with the columns path,label,split[,is_query,is_gallery]; paths relative to its folder; split is train,"
        " validation or test",
    ),
    "cub200": About(
        "cub200:ROOT",
        "CUB-200-2011, birds",
        "ROOT/ or ROOT/CUB_200_2011/ with images.txt, image_class_labels.txt, classes.txt and images/",
        "https://www.vision.caltech.edu/datasets/cub_200_2011/",
        {"train": (5864, 100), "test": (5924, 100)},
    ),
    "cars196": About(
        "cars196:ROOT",
        "Cars196, cars",
        "ROOT/ with cars_annos.mat and car_ims/; or devkit/, cars_test_annos_withlabels.mat, cars_train/ and"
        " cars_test/; or names.csv, anno_train.csv, anno_test.csv and car_data/; or the folders 1/ to 196/",
        "https://ai.stanford.edu/~jkrause/cars/car_dataset.html (its downloads are gone; see pytorch/vision#7545)",
        {"train": (8054, 98), "test": (8131, 98)},
    ),
    "sop": About(
        "sop:ROOT",
        "Stanford Online Products",
        "ROOT/ or ROOT/Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt and bicycle_final/ to"
        " toaster_final/",
        "https://cvgl.stanford.edu/projects/lifted_struct/",
        {"train": (59551, 11318), "test": (60502, 11316)},
    ),
    "inshop": About(
        "inshop:ROOT",
        "In-Shop Clothes Retrieval of DeepFashion",
        "ROOT/ with Eval/list_eval_partition.txt and Img/img/, or list_eval_partition.txt and img/",
        "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        {"train": (25882, 3997), "test": (14218, 3985), "gallery": (12612, 3985)},
    ),
    "torchvision": About(
        "torchvision:SET[:ROOT]",
        f"torchvision's sets (classes): {', '.join(f'{name} ({count:,})' for name, count in _TORCHVISION.items())}",
        "ROOT/ as torchvision keeps the set, beside torch's weights unless given; --set data.download=true gets it; the"
        " first half of the classes trains, the rest tests",
        "https://docs.pytorch.org/vision/stable/datasets.html",
    ),
}
