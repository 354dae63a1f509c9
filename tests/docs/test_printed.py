from __future__ import annotations

from docs._ext import printed
from layerprobe.papers.tables import find_table, paper_names, read_tables


def test_every_table_of_every_paper_is_printed() -> None:
    text = printed.page()
    tables = [f"{paper}:{name}: " for paper in paper_names() for name in read_tables(paper)]
    assert len(tables) > 20
    assert [name for name in tables if f"{{dropdown}} {name}" not in text] == []


def test_a_row_has_its_values_and_its_command() -> None:
    text = printed.page()
    assert "| NetA pool5.3 | VGG16-BN | 512 | 87.8 | 66.4 | 74.8 |" in text
    row = find_table("zhai-wu-2019:table3").rows[-2]
    assert printed.command(row) == "layerprobe train normsoftmax-r50-SET --data SET:DIR \\\n  --set 'net.fc=[128]'"
    assert printed.command(row) in text


def test_a_known_error_of_a_paper_is_marked() -> None:
    assert "| Lifted structure | GoogLeNet | 64/64/512? | 53.0 | 47.2 | 62.5 |" in printed.page()
