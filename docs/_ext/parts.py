"""The registered losses, metrics, post-processing, data sets, networks and plots: docstrings and options."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from docs._ext.markdown import code, entry, escaped, parsed, table
from docs._ext.words import default_words, type_words
from layerprobe import registry
from layerprobe.plots.options import PlotOptions
from layerprobe.registry import DATASETS, IMAGENET_WEIGHTS, LOSSES, METRICS, NETS, PLOTS, POST_PROCESSING, SHARE_METRICS
from layerprobe.values.sections import SECTIONS

# Parameters that are no keys of a recipe.
_GIVEN = ("self", "embedding_dim", "num_classes", "argument", "root", "image_size", "index_folder")


def loaded(target: str) -> Any:
    """The object of a registry's line, `module:attribute`."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def module_docstring(module: str) -> str:
    """Read without importing the module."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def options(function: Any, prefix: str, *, given: Collection[str] = _GIVEN) -> list[str]:
    """An entry for each keyword argument of a part's factory, which links call `prefix.argument`."""
    callee = function.func if isinstance(function, partial) else function
    called = callee.__init__ if inspect.isclass(callee) else callee
    hints, docstring = get_type_hints(called, include_extras=True), parsed(callee)
    return [
        entry(
            name,
            (type_words(hints[name]), default_words(parameter.default)),
            escaped(docstring.entries.get("Args", {}).get(name, "")),
            target=f"{prefix}.{name}",
        )
        for name, parameter in inspect.signature(called).parameters.items()
        if name not in given and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


def batches(loss: Any) -> str:
    """The batches that suit a loss: `classes, 4 images a class`."""
    return loss.sampler if loss.sampler == "shuffled" else f"{loss.sampler}, {loss.images_per_class} images a class"


def losses() -> str:
    """A table of the losses, then a section for each."""
    by_name = {name: loaded(target) for name, target in LOSSES.items()}
    rows = [
        (f"[{code(name)}](#{name})", escaped(parsed(loss).summary), escaped(batches(loss)))
        for name, loss in by_name.items()
    ]
    sections = [
        "\n\n".join([f"## {name}", parsed(loss).markdown, *options(loss, f"loss.{name}")])
        for name, loss in by_name.items()
    ]
    return "\n\n".join([table([("loss", "value", "default batches"), *rows]), *sections])


def metrics() -> str:
    """A section for each metric, and for metrics of one class together."""
    by_class: dict[Any, list[str]] = {}
    for name, target in METRICS.items():
        factory = loaded(target)
        by_class.setdefault(factory.func if isinstance(factory, partial) else factory, []).append(name)
    sections = []
    for metric, names in by_class.items():
        unit = "a share, shown in percent" if names[0] in SHARE_METRICS else "a number, shown as it is"
        keys = options(metric, f"metrics.{names[0]}") if len({METRICS[name] for name in names}) == 1 else []
        keyed = f"Keys of `[metrics.{names[0]}]`:" if keys else ""
        title = "## " + ", ".join(names)
        sections.append("\n\n".join([title, f"*{unit[0].upper()}{unit[1:]}.*", parsed(metric).markdown, keyed, *keys]))
    return "\n\n".join(sections)


def post_processing() -> str:
    """A section for each post-processing."""
    sections = []
    for name, target in POST_PROCESSING.items():
        docstring = parsed(loaded(target))
        argument = docstring.entries.get("Args", {}).get("argument", "")
        shown = f"`{name}…`: {escaped(argument)}" if argument else ""
        sections.append("\n\n".join([f"## {name.rstrip(':')}", docstring.markdown, shown]))
    return "\n\n".join(sections)


def data_sets() -> str:
    """A section for each data set."""
    return "\n\n".join(_data_set(name, loaded(target)) for name, target in DATASETS.items())


def _data_set(name: str, spec: Any) -> str:
    facts = [("images", escaped(spec.holds)), ("layout", escaped(spec.layout)), ("source", _address(spec.where))]
    facts += [(split, str(size)) for split, size in spec.counts.items()]
    common = ", ".join(
        f"`data.{key} = {value!r}`".replace("'", '"') for key, value in spec.defaults.items() if key != "root"
    )
    facts += [("defaults", common)]
    rows = [(label, text) for label, text in facts if text]
    keys = options(spec.load, f"data.{name}")
    return "\n\n".join(
        [
            f"## {name}",
            f"```text\n--data {spec.usage(name)}\n```",
            table([("", ""), *rows]),
            parsed(spec.load).markdown,
            *keys,
        ]
    )


def _address(where: str) -> str:
    first, _, rest = where.partition(" ")
    return f"<{first}> {escaped(rest)}".strip() if first.startswith("https://") else escaped(where)


def networks() -> str:
    """A section for each network of layerprobe, then for each source of others."""
    networks_here = [_network(name, target) for name, target in NETS.items()]
    (builder,) = {loaded(target).__func__ for target in NETS.values()}
    keys = options(builder, "net", given=(*_GIVEN, "seed", *SECTIONS["net"].model_fields))
    sources = []
    for name, usage in zip(registry.SOURCES, registry.MODEL_NAMES, strict=True):
        text = parsed(module_docstring(registry.SOURCES[name].partition(":")[0])).markdown
        sources.append(f"### {name.rstrip(':')}\n\n`{usage}`\n\n{text}")
    heading = "### Options of these networks\n\nThey are keys of `[net]` in a recipe:"
    return "\n\n".join(
        ["## Networks of layerprobe", *networks_here, heading, *keys, "## Models of other libraries", *sources]
    )


def _network(name: str, target: str) -> str:
    weights = "`imagenet` (torchvision's), `none` or a file" if name in IMAGENET_WEIGHTS else "`none` or a file"
    text = parsed(module_docstring(target.partition(":")[0])).markdown
    return f"### {name}\n\n{text}\n\nWeights: {weights}."


def plots() -> str:
    """A section for each plot: what it shows, and the options that it takes."""
    flags: Mapping[str, Any] = get_type_hints(PlotOptions, include_extras=True)
    by_name = {name: loaded(target) for name, target in PLOTS.items()}
    modules = Counter(plot.draw.__module__ for plot in by_name.values())
    return "\n\n".join(_plot(name, plot, flags, modules) for name, plot in by_name.items())


def _plot(name: str, plot: Any, flags: Mapping[str, Any], modules: Mapping[str, int]) -> str:
    module = plot.draw.__module__
    # What the module draws; of several plots of one module, what each of them draws.
    shown = escaped(parsed(module_docstring(module) if modules[module] == 1 else plot.draw).summary)
    taken = ", ".join(f"`--{option}`" for option in plot.options if option in flags)
    options_line = f"Options: {taken}." if taken else "It takes no options of its own."
    command = f"```sh\nlayerprobe plot {name} RUN\n```"
    return "\n\n".join(filter(None, [f"## {name}", command, shown, options_line]))
