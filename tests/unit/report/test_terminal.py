from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from optimizer.report.layout import Column, Table
from optimizer.report.sections import sections
from optimizer.repository.inspection import inspection_document
from optimizer.repository.reader import read_repository
from optimizer.terminal import show_document, show_inspection
from optimizer.terminal.tables import fitting

Document = dict[str, Any]


def console(width: int, *, terminal: bool = True) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False,
        soft_wrap=not terminal,
    )  # fmt: skip


def shown(document: Document, width: int, *, terminal: bool = True) -> list[str]:
    out = console(width, terminal=terminal)
    show_document(document, out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_reports_fit_the_terminal(decided: Document, width: int) -> None:
    lines = shown(decided, width)
    assert max(map(len, lines)) <= width
    assert any(line.startswith("as-found") for line in lines)


def test_what_matters_least_is_left_out_first(decided: Document) -> None:
    table = next(section for section in sections(decided) if section.key == "candidates").tables[0]

    def headings(width: int) -> list[str]:
        return [str(column.header) for column in fitting(table, width).columns]

    everything = [column.name for column in table.columns]
    assert headings(200) == everything
    assert headings(80) == ["candidate", "state", "inferences/s", "p99 ms", "gain"]
    assert [name for name in everything if name in headings(120)] == headings(120)
    assert set(headings(80)) < set(headings(120))


def test_numbers_are_never_folded_and_stand_to_the_right() -> None:
    table = Table((Column("route"), Column("rate", numeric=True)), (("-a=on " * 20, "1,234,567"), ("x", "1")))
    out = console(40)
    out.print(fitting(table, 40))
    assert isinstance(out.file, io.StringIO)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]
    assert lines[1].endswith(" 1,234,567")
    assert lines[-1].endswith(" " * 8 + "1")
    assert max(map(len, lines)) <= 40
    assert all(line.startswith("-a=on") for line in lines[1:-1])


def test_a_terminal_shows_the_first_rows_and_says_so(invent: Any) -> None:
    document = invent(candidates=60)
    assert any(line.startswith("32 more rows") for line in shown(document, 120))
    assert not any("more rows" in line for line in shown(document, 120, terminal=False))


def test_markup_of_the_console_in_a_name_is_text(decided: Document) -> None:
    decided["model"] = "[red]x[/red]"
    decided["decision"]["sentence"] = "[bold]kept[/bold]"
    text = "\n".join(shown(decided, 120))
    assert "[red]x[/red]" in text
    assert "[bold]kept[/bold]" in text


def test_optimize_tells_the_decision_and_what_to_type_next(decided: Document) -> None:
    document = {"kind": "optimize", "models": [{"model": "classifier", "study": decided, "applied": None}]}
    lines = [line.strip() for line in shown(document, 120)]
    assert any("replaces what is there" in line for line in lines)
    assert any(line.startswith("triton-optimizer apply") for line in lines)
    assert "The race" not in lines


def test_inspect_shows_what_blocks_and_the_remedy(tiny_repository: Path) -> None:
    broken = tiny_repository / "broken"
    broken.mkdir()
    (broken / "config.pbtxt").write_text('name: "broken"\nmax_batch_size: many\n')
    text = tiny_repository / "text"
    (text / "1").mkdir(parents=True)
    (text / "1" / "model.py").write_text("")
    (text / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 4\n'
        'input [ { name: "T" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    )
    document = inspection_document(read_repository(tiny_repository))
    out = console(100)
    show_inspection(document, out)
    assert isinstance(out.file, io.StringIO)
    told = out.file.getvalue()
    assert max(map(len, told.splitlines())) <= 100
    assert "3 models: " in told
    tree = told[told.index("tiny  ") :]
    assert "onnxruntime from 1/model.onnx" in tree
    assert "batching: up to 8, not dynamic" in tree
    assert "[4]" in tree
    for entry in document["models"]:
        for blocker in entry.get("blockers", ()):
            assert " ".join(blocker["reason"].split())[:40] in " ".join(told.replace("│", " ").split())
    assert "remedy: " in told
    assert "config.pbtxt" in told


def test_status_shows_stale_evidence_and_how_to_take_it_back() -> None:
    back = "triton-optimizer rollback R --model a"
    written = {"written": True, "stale": ["gpu"], "gain": {"ratio": 1.25}, "route": "-x=on", "roll_back": back}
    rows = [
        {
            "model": "a",
            "lines": ["a: version 2", "  STALE: gpu: A -> B"],
            "version": 2,
            "format": "tensorrt",
            **written,
        },
        {"model": "b", "lines": ["b: version 1"], "version": 1, "format": "onnx", "written": False, "stale": None},
        {"model": "c", "error": "cannot be read"},
    ]
    lines = shown({"kind": "status", "models": rows}, 100)
    overview = [line.split() for line in lines[:4]]
    assert overview[1] == ["a", "2", "(tensorrt)", "-x=on", "+25.0%", "stale"]
    assert overview[3][:2] == ["c", "unreadable"]
    assert f"  take it back: {back}" in lines
    assert "c: cannot be read" in lines
