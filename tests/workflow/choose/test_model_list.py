from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.system.errors import DataError
from layerprobe.workflow.choose.model_list import ListedModel, read_models


def test_a_model_is_a_line_and_empty_cells_are_absent(tmp_path: Path) -> None:
    file = tmp_path / "models.csv"
    file.write_text("Model; weights; run\ntimm:a; ;\n\ntimm:a;none;mine\ntimm:b\n")
    assert read_models(file) == [
        ListedModel("timm:a", None, None),
        ListedModel("timm:a", "none", "mine"),
        ListedModel("timm:b", None, None),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "models.csv:1: no column model. Name the columns in the first line"),
        ("name\ntimm:a\n", "models.csv:1: column 'name'. Name the columns"),
        ("model,model\ntimm:a,timm:b\n", "models.csv:1: column 'model'. Name"),
        ("model\n\n", "models.csv: no model. Name one in each line below the columns"),
        ("model,weights\ntimm:a,none\n,best.pth\n", "models.csv:3: no model. Write a model such as timm:resnet18"),
        ("model\ntimm:a,none\n", "models.csv:2: 2 cells, and there are 1 columns. Write"),
        (
            "model,weights\ntimm:a,none\n\ntimm:a,none\n",
            "models.csv:4: timm:a is that of line 2. Name it once, or with",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "models.csv"
    file.write_text(text)
    with pytest.raises(DataError) as error:
        read_models(file)
    assert message in str(error.value)
