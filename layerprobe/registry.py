"""Names -> parts, as text, so that listing the names imports nothing."""

from __future__ import annotations

import functools
import importlib
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from layerprobe.system.errors import UnknownNameError

DATASETS = {
    "glyphs": "layerprobe.data.glyphs:SPEC",
    "digits": "layerprobe.data.digits:SPEC",
    "folder": "layerprobe.data.folder:SPEC",
    "csv": "layerprobe.data.csv_file:SPEC",
    "parquet": "layerprobe.data.tables:PARQUET",
    "hf-dataset": "layerprobe.data.tables:HF_DATASET",
    "wds": "layerprobe.data.tar_shards:SPEC",
    "cub200": "layerprobe.data.cub200:SPEC",
    "cars196": "layerprobe.data.cars196:SPEC",
    "sop": "layerprobe.data.sop:SPEC",
    "inshop": "layerprobe.data.inshop:SPEC",
    "market1501": "layerprobe.data.market1501:SPEC",
    "torchvision": "layerprobe.data.torchvision_sets:SPEC",
}
NETS = {
    "vgg16_bn": "layerprobe.nets.vgg16_bn:build",
    "resnet50": "layerprobe.nets.resnet:build_resnet50",
    "googlenet": "layerprobe.nets.googlenet:build",
    "googlenet_caffe": "layerprobe.nets.googlenet_caffe:build",
    "bn_inception": "layerprobe.nets.bn_inception:build",
    "resnet18": "layerprobe.nets.resnet:build_resnet18",
    "lenet": "layerprobe.nets.lenet:build",
}
# torchvision's ImageNet weights, for `weights = "imagenet"`; without a line a network takes a file.
IMAGENET_WEIGHTS = {
    "vgg16_bn": "torchvision.models:VGG16_BN_Weights",
    "resnet50": "torchvision.models:ResNet50_Weights",
    "googlenet": "torchvision.models:GoogLeNet_Weights",
    "resnet18": "torchvision.models:ResNet18_Weights",
}
# Models from elsewhere, in `probe --model`, `layers` and [net] name.
SOURCES = {
    "timm:": "layerprobe.sources.timm_models:SOURCE",
    "hf:": "layerprobe.sources.hugging_face:SOURCE",
    "open_clip:": "layerprobe.sources.open_clip_models:SOURCE",
    "torchvision:": "layerprobe.sources.torchvision_models:SOURCE",
    "python:": "layerprobe.sources.python_file:SOURCE",
}
# How the models of each are named, for `--help` and errors.
MODEL_NAMES = (
    "timm:NAME",
    "hf:ORG/NAME or hf:FOLDER",
    "open_clip:ARCH/TAG",
    "torchvision:NAME[/WEIGHTS]",
    "python:FILE.py:FUNCTION",
)
# What [net] name takes: both.
NETWORKS = ChainMap(SOURCES, NETS)
LOSSES = {
    "smooth_triplet": "layerprobe.losses.smooth_triplet:SmoothTriplet",
    "triplet": "layerprobe.losses.triplet:Triplet",
    "contrastive": "layerprobe.losses.contrastive:Contrastive",
    "lifted_structure": "layerprobe.losses.lifted_structure:LiftedStructure",
    "n_pairs": "layerprobe.losses.n_pairs:NPairs",
    "angular": "layerprobe.losses.angular:Angular",
    "ranked_list": "layerprobe.losses.ranked_list:RankedList",
    "structured_clustering": "layerprobe.losses.structured_clustering:StructuredClustering",
    "prototypical": "layerprobe.losses.prototypical:Prototypical",
    "margin": "layerprobe.losses.margin:Margin",
    "multi_similarity": "layerprobe.losses.multi_similarity:MultiSimilarity",
    "supcon": "layerprobe.losses.supcon:SupCon",
    "cross_batch_memory": "layerprobe.losses.cross_batch_memory:CrossBatchMemory",
    "softmax": "layerprobe.losses.softmax:Softmax",
    "norm_softmax": "layerprobe.losses.norm_softmax:NormSoftmax",
    "heated_softmax": "layerprobe.losses.heated_softmax:HeatedSoftmax",
    "subsampled_softmax": "layerprobe.losses.subsampled_softmax:SubsampledSoftmax",
    "proxy_nca": "layerprobe.losses.proxy_nca:ProxyNCA",
    "proxy_triplet": "layerprobe.losses.proxy_triplet:ProxyTriplet",
    "proxy_anchor": "layerprobe.losses.proxy_anchor:ProxyAnchor",
    "soft_triple": "layerprobe.losses.soft_triple:SoftTriple",
    "arcface": "layerprobe.losses.margin_softmax:ArcFace",
    "cosface": "layerprobe.losses.margin_softmax:CosFace",
}
POST_PROCESSING = {
    "l2": "layerprobe.post_processing.unfitted:L2",
    "pca:": "layerprobe.post_processing.pca:PCA",
    "whiten:": "layerprobe.post_processing.pca:Whiten",
    "lwhiten:": "layerprobe.post_processing.supervised:LearnedWhitening",
    "lda:": "layerprobe.post_processing.supervised:DiscriminantAnalysis",
    "random:": "layerprobe.post_processing.random_projection:RandomProjection",
    "shift": "layerprobe.post_processing.shift:Shift",
    "binary": "layerprobe.post_processing.unfitted:Binary",
    "layernorm": "layerprobe.post_processing.unfitted:LayerNorm",
    "first:": "layerprobe.post_processing.unfitted:First",
    "float16": "layerprobe.post_processing.quantised:Float16",
    "int8": "layerprobe.post_processing.quantised:Int8",
}
# Metrics that are shares: people are shown percent.
SHARE_METRICS = {
    "MAP@R": "layerprobe.metrics.precision:PrecisionAtPositives",
    "R-precision": "layerprobe.metrics.precision:PrecisionAtPositives",
    "mAP": "layerprobe.metrics.precision:PrecisionAtPositives",
    "MRR": "layerprobe.metrics.precision:ReciprocalRank",
    "NMI": "layerprobe.metrics.clustering:ClusterAgreement",
    "AMI": "layerprobe.metrics.clustering:ClusterAgreement",
    "accuracy": "layerprobe.metrics.classification:Accuracy",
    "kNN@10": "layerprobe.metrics.classification:KNN10",
    "kNN@20": "layerprobe.metrics.classification:KNN20",
    "kNN@100": "layerprobe.metrics.classification:KNN100",
    "kNN@200": "layerprobe.metrics.classification:KNN200",
    "few-shot@1": "layerprobe.metrics.classification:FEW_SHOT_1",
    "few-shot@5": "layerprobe.metrics.classification:FEW_SHOT_5",
}
# Metrics that are not fractions: shown without percent.
PLAIN_METRICS = {
    "intra-inter": "layerprobe.metrics.geometry:IntraInter",
    "alignment": "layerprobe.metrics.geometry:Alignment",
    "uniformity": "layerprobe.metrics.geometry:Uniformity",
    "rho": "layerprobe.metrics.geometry:SpectralDecay",
    "effective-rank": "layerprobe.metrics.geometry:EffectiveRank",
    "two-nn": "layerprobe.metrics.geometry:TwoNN",
    "hubness": "layerprobe.metrics.geometry:Hubness",
}
METRICS = SHARE_METRICS | PLAIN_METRICS
PLOTS = {
    "train-vs-test": "layerprobe.plots.train_vs_test:PLOT",
    "curves": "layerprobe.plots.curves:PLOT",
    "loss": "layerprobe.plots.over_epochs:LOSS_PLOT",
    "learnt": "layerprobe.plots.over_epochs:LEARNT_PLOT",
    "layers": "layerprobe.plots.layers:PLOT",
    "gap": "layerprobe.plots.gap:PLOT",
    "histograms": "layerprobe.plots.histograms:PLOT",
    "spectrum": "layerprobe.plots.spectrum:PLOT",
    "features-2d": "layerprobe.plots.features_2d:PLOT",
    "map": "layerprobe.plots.map:PLOT",
    "gradient": "layerprobe.plots.gradient:PLOT",
    "det": "layerprobe.plots.det:PLOT",
    "cka": "layerprobe.plots.cka:PLOT",
    "dims": "layerprobe.plots.dims:PLOT",
    "gallery-size": "layerprobe.plots.gallery_size:PLOT",
    "panels": "layerprobe.plots.panels:PLOT",
    "over-key": "layerprobe.plots.trainings:OVER_KEY_PLOT",
    "recall-at-k": "layerprobe.plots.trainings:RECALL_AT_K_PLOT",
}
# Of `--log KIND[:WHERE]`; each is a package, and an extra, of its name.
TRACKERS = {
    "tensorboard": "layerprobe.trackers.tensorboard:TensorBoard",
    "wandb": "layerprobe.trackers.wandb:WandB",
    "mlflow": "layerprobe.trackers.mlflow:MLflow",
    "trackio": "layerprobe.trackers.trackio:Trackio",
}


def load(kind: str, registered: Mapping[str, str], name: str) -> Any:
    """Import the part of a name.

    Args:
        kind: its name in the error ("loss").
        name: a key of it. The key of post-processing that ends in a colon takes an argument: `pca:` stands for `pca:D`,
            and D is the first argument of the returned factory.

    Returns:
        The factory, class or function; a DatasetSpec for a data set.

    Raises:
        UnknownNameError: no such name; the message has the near miss.
    """
    factory, argument = load_apart(kind, registered, name)
    return functools.partial(factory, argument) if argument else factory


def load_apart(kind: str, registered: Mapping[str, str], name: str) -> tuple[Any, str]:
    """As `load`, but the part and its argument apart, as sources have it: NAME of `timm:NAME`; else an empty text."""
    stem, colon, argument = name.partition(":")
    key = name if name in registered else f"{stem}{colon}"
    if key not in registered or (key.endswith(":") and not argument):
        raise UnknownNameError(kind, name, registered)
    module, _, attribute = registered[key].partition(":")
    return getattr(importlib.import_module(module), attribute), argument if key.endswith(":") else ""


def is_source(name: str) -> bool:
    """Whether a network comes from elsewhere, as `timm:NAME` does."""
    return f"{name.partition(':')[0]}:" in SOURCES
