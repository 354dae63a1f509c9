from __future__ import annotations

from collections.abc import Callable

import pytest

from layerprobe.data import pixel_cache
from layerprobe.system.errors import BusyError, UnknownNameError
from layerprobe.system.files import sha256
from layerprobe.workflow.manage.cache import clean_images, list_images
from layerprobe.workflow.train.building import TrainRequest, build, with_decoded_images
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent


def test_cleaning_spares_runs_and_what_is_in_use(
    request_for: Callable[..., TrainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixel_cache, "_LIMIT", 0)  # too large to be held in memory
    request = request_for("train.epochs=0")
    run = train(request, Silent())
    built = with_decoded_images(build(request), request, Silent())
    before = {path: sha256(path) for path in run.folder.rglob("*") if path.is_file()}
    kept = list_images(request.cache)
    assert len(kept) == 2
    assert clean_images(request.cache) == []
    with pytest.raises(BusyError, match="in use by another process. Wait until that process ends"):
        clean_images(request.cache, [kept[0].id])
    del built
    with pytest.raises(UnknownNameError, match="unknown entry 'x'"):
        clean_images(request.cache, [kept[0].id, "x"])
    assert clean_images(request.cache, [kept[0].id]) == kept[:1]
    assert clean_images(request.cache) == kept[1:]
    assert list_images(request.cache) == []
    assert {path: sha256(path) for path in run.folder.rglob("*") if path.is_file()} == before
