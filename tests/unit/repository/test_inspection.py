from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from optimizer.errors import InputError
from optimizer.records.model import Blocker
from optimizer.repository.inspection import inspection_document, plan_possible
from optimizer.repository.reader import UnreadableModel, read_model


def test_the_document_holds_json_values_and_counts(tiny_repository: Path) -> None:
    ready = read_model(tiny_repository, "tiny")
    blocked = dataclasses.replace(ready, name="b", blockers=(Blocker("ensemble", "why", "what to do"),))
    unreadable = UnreadableModel("u", tiny_repository / "u", InputError("wrong", where="u/config.pbtxt:1:2"))
    document = inspection_document([ready, blocked, unreadable], repository=tiny_repository)
    assert json.loads(json.dumps(document)) == document
    assert document["summary"] == {"ready": 1, "blocked": 1, "unreadable": 1}
    first, second, third = document["models"]
    assert (first["status"], first["plan_possible"], first["served_by"]) == (
        "ready",
        True,
        "onnxruntime from 1/model.onnx",
    )
    assert first["inputs"][0]["dims"] == [4]
    assert first["versions"] == [
        {
            "number": 1,
            "served": True,
            "format": "onnx",
            "file": str(tiny_repository / "tiny" / "1" / "model.onnx"),
            "size_bytes": ready.versions[0].size_bytes,
        }
    ]
    assert second["blockers"] == [{"code": "ensemble", "fatal": True, "reason": "why", "remedy": "what to do"}]
    assert (third["status"], third["error"]["where"]) == ("unreadable", "u/config.pbtxt:1:2")


def test_advice_does_not_rule_out_a_plan(tiny_repository: Path) -> None:
    model = read_model(tiny_repository, "tiny")

    def possible(code: str) -> bool:
        return plan_possible(dataclasses.replace(model, blockers=(Blocker(code, "", "", fatal=False),)))

    assert possible("free_dimensions")
    assert not possible("datatype_not_in_tensorrt")
    assert not plan_possible(dataclasses.replace(model, blockers=(Blocker("free_dimensions", "", ""),)))
