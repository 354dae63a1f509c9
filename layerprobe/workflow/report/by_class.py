"""The result of `classes` on the page of a run: its test classes by two layers, and pictures of the confused ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layerprobe.report.values import RunPage, ShownClasses, ShownConfusion
from layerprobe.system.errors import LayerprobeError
from layerprobe.system.progress import Silent
from layerprobe.values.classes import ComparedClass, ComparedClasses, Confusion
from layerprobe.values.facts import at_epoch_text
from layerprobe.workflow.classes.class_tables import class_heading, class_notes, two_names_text
from layerprobe.workflow.classes.classes import compare_classes
from layerprobe.workflow.classes.request import ClassesRequest
from layerprobe.workflow.report.choices import ranks_anew
from layerprobe.workflow.report.report_gallery import Galleries
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import stored_choice

SPLIT = "test"
PAIRS = 200_000_000  # of a query and a searched item; with more, a page would take minutes
_CLASSES = 100
_CONFUSIONS = 12
_CANDIDATES = 6  # for one class under two names, which are not among the largest confusions


@dataclass(frozen=True)
class ByClass:
    """What the page shows of two layers by class.

    Args:
        shown: None where they are not compared.
        pictures: those that no gallery has.
        notes: why they are not compared.
    """

    shown: ShownClasses | None = None
    pictures: tuple[bytes, ...] = ()
    notes: tuple[str, ...] = ()


class _Heard(Silent):
    """A listener that keeps the lines, which say why two layers are compared."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)


def compare_by_class(run: Run, page: RunPage, galleries: Galleries) -> ByClass:
    """The comparison that `layerprobe classes` makes of a run, or a line on why there is none."""
    if SPLIT not in page.data.splits:
        return ByClass()  # the gallery says so
    heard = _Heard()
    try:
        if (reason := _why_not(run, page)) is not None:
            return _left_out(run, reason)
        compared = compare_classes(run, ClassesRequest(), heard)
    except LayerprobeError as error:
        return _left_out(run, str(error))
    confusions = _shown_confusions(compared)
    pictures, places = _pictures_of(confusions, run, galleries)
    classes = _shown_classes(compared.classes)
    layers = {frozenset(x.names): " and ".join(x.layers) for x in compared.two_names}
    shown = ShownClasses(
        verdict=compared.verdict,
        lead=_lead(compared, classes, page.data.weights),
        classes=classes,
        notes=(*heard.lines, *_rest_of_classes(compared, run), *class_notes(compared, classes)),
        confusions=tuple(
            ShownConfusion(
                x.name,
                x.nearest,
                _confusion_text(x, layers.get(frozenset((x.name, x.nearest)))),
                x.examples,
                tuple((places.get(example.image, -1), places.get(example.nearest, -1)) for example in x.examples),
            )
            for x in confusions
        ),
        confusion_notes=(*_rest_of_confusions(compared, confusions, run), *_rest_of_candidates(compared, confusions)),
    )
    return ByClass(shown, pictures)


def _left_out(run: Run, reason: str) -> ByClass:
    return ByClass(notes=(f"classes of {run.name} are not compared: {reason}",))


def _why_not(run: Run, page: RunPage) -> str | None:
    """Why classes are not compared, where there is one alone, or where it takes minutes."""
    facts = page.data.splits[SPLIT]
    if facts.classes == 1:
        return f"{SPLIT} has a single class"
    gallery = facts.gallery or facts.queries
    if facts.queries * gallery > PAIRS:
        took = f"{facts.queries:,} images are searched for among {gallery:,}, which takes minutes"
        return f"{took}; {run.command('classes')} does it"
    if stored_choice(run) is None and ranks_anew([run], run.read()):
        return "no choice is stored"
    return None


def _lead(compared: ComparedClasses, classes: Sequence[ComparedClass], weights: str) -> str:
    numbers, layers = class_heading(compared, classes)
    # Layers of two epochs have these in their names.
    at = f", {at_epoch_text(compared.epochs[0], weights)}" if len(set(compared.epochs)) == 1 else ""
    return f"{numbers}{at}. {layers}."


def _shown_classes(classes: Sequence[ComparedClass]) -> tuple[ComparedClass, ...]:
    """All of them, or those at both ends of the order."""
    half = _CLASSES // 2
    return tuple(classes) if len(classes) <= _CLASSES else (*classes[:half], *classes[-half:])


def _rest_of_classes(compared: ComparedClasses, run: Run) -> list[str]:
    total, half = len(compared.classes), _CLASSES // 2
    if total <= _CLASSES:
        return []
    command = run.command("classes", "--csv", "classes.csv")
    return [
        f"{_CLASSES} of {total:,} classes: the {half} that lose most and the {half} that gain most; {command} has all"
    ]


def _shown_confusions(compared: ComparedClasses) -> list[Confusion]:
    """The largest, and further candidates for one class under two names, each in one direction."""
    largest = compared.confusions[:_CONFUSIONS]
    pairs = {frozenset((x.name, x.nearest)) for x in largest}
    candidates = {frozenset(x.names) for x in compared.two_names} - pairs
    further: dict[frozenset[str], Confusion] = {}
    for x in compared.confusions:
        pair = frozenset((x.name, x.nearest))
        if pair in candidates and len(further) < _CANDIDATES:
            further.setdefault(pair, x)
    return [*largest, *further.values()]


def _rest_of_confusions(compared: ComparedClasses, shown: Sequence[Confusion], run: Run) -> list[str]:
    total = len(compared.confusions)
    if not shown:
        return ["No image is confused with one of another class."]
    if total == len(shown):
        return []
    further = ", and candidates for one class under two names" * (len(shown) > _CONFUSIONS)
    command = run.command("classes", "--confusions", "pairs.csv")
    return [f"the largest {_CONFUSIONS} of {total:,} pairs{further}; {command} has all"]


def _rest_of_candidates(compared: ComparedClasses, shown: Sequence[Confusion]) -> list[str]:
    """The candidates for one class under two names that no pair shows, or that there are none at all."""
    pairs = {frozenset((x.name, x.nearest)) for x in shown}
    rest = [x for x in compared.two_names if frozenset(x.names) not in pairs]
    if not compared.two_names:
        return [two_names_text(())]
    return [f"further {two_names_text(rest)}"] if rest else []


def _confusion_text(x: Confusion, layers: str | None) -> str:
    counts = f"{x.a:,} of {x.images:,} images by A, {x.b:,} by B"
    return counts if layers is None else f"{counts}; one class under two names? (by {layers})"


def _pictures_of(
    confusions: Sequence[Confusion], run: Run, galleries: Galleries
) -> tuple[tuple[bytes, ...], Mapping[str, int]]:
    """The pictures that no gallery has, and image -> the place of its picture among all of the page."""
    read = galleries.readers.get(run.name)
    if read is None:
        return (), {}
    places_by_picture = {picture: place for place, picture in enumerate(galleries.pictures)}
    places: dict[str, int] = {}
    for name in (name for x in confusions for pair in x.examples for name in (pair.image, pair.nearest)):
        if (picture := read(name)) is not None:
            places[name] = places_by_picture.setdefault(picture, len(places_by_picture))
    return tuple(places_by_picture)[len(galleries.pictures) :], places
