"""layerprobe: which layer of an embedding network generalises?"""

from __future__ import annotations

TYPE_CHECKING = False  # not imported from typing: until the command has begun, Ctrl-C would print a traceback

if TYPE_CHECKING:
    from layerprobe import registry
    from layerprobe.encoder.loading import load_encoder
    from layerprobe.losses.loss import loss
    from layerprobe.ranking import nearest_neighbours, nearest_positive_ranks, recall_at_k
    from layerprobe.values.retrieval import SearchRules
    from layerprobe.workflow.choose.choose_features import choose
    from layerprobe.workflow.python.explain_pair import explain
    from layerprobe.workflow.python.probe_model import probe
    from layerprobe.workflow.python.user_model import extract, layers
    from layerprobe.workflow.run.opened_run import open_run
    from layerprobe.workflow.watch.watch import Watch

__version__ = "0.1.0"
__all__ = [
    "SearchRules",
    "Watch",
    "__version__",
    "choose",
    "explain",
    "extract",
    "layers",
    "load_encoder",
    "loss",
    "nearest_neighbours",
    "nearest_positive_ranks",
    "open_run",
    "probe",
    "recall_at_k",
    "registry",
]

_MODULES = {
    "SearchRules": "values.retrieval",
    "Watch": "workflow.watch.watch",
    "choose": "workflow.choose.choose_features",
    "explain": "workflow.python.explain_pair",
    "extract": "workflow.python.user_model",
    "layers": "workflow.python.user_model",
    "load_encoder": "encoder.loading",
    "loss": "losses.loss",
    "nearest_neighbours": "ranking",
    "nearest_positive_ranks": "ranking",
    "open_run": "workflow.run.opened_run",
    "probe": "workflow.python.probe_model",
    "recall_at_k": "ranking",
}


def __getattr__(name: str) -> object:
    # On first use, so that `import layerprobe` (and its --help) imports no torch.
    if name in (*_MODULES, "registry"):
        from importlib import import_module

        if name == "registry":
            return import_module("layerprobe.registry")
        return getattr(import_module(f"layerprobe.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'layerprobe' has no attribute {name!r}")
