"""A study under a trace that names samples: from the settings to what is sent, and what its decision says of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from optimizer.config import parse_settings
from optimizer.errors import InputError
from optimizer.evidence import trace_caveats
from optimizer.preparation import Preparation, prepare
from optimizer.testing.models import null_model


def prepared(tmp_path: Path, *named: str) -> Preparation:
    null_model("m").write(tmp_path / "models")
    rows = np.arange(40, dtype=np.float32).reshape(10, 4)
    np.savez(tmp_path / "samples.npz", INPUT0=rows, ids=np.array([f"s{number}" for number in range(10)]))
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(json.dumps({"at_s": n / 10, "sample": name}) for n, name in enumerate(named)))
    settings = {
        "inputs": {"file": str(tmp_path / "samples.npz")},
        "load": {"arrival": "trace", "trace": str(trace)},
    }
    return prepare(tmp_path / "models", "m", parse_settings(settings), tmp_path / "study")


def test_a_trace_over_all_samples_can_be_used_and_the_decision_says_how(tmp_path: Path) -> None:
    plan = prepared(tmp_path, *(f"s{number}" for number in range(10))).plan
    tune, held_out = ({sample.id for sample in samples.samples} for samples in (plan.tune, plan.held_out))
    assert set(plan.tune.stand_ins) == held_out
    assert set(plan.tune.stand_ins.values()) <= tune
    assert set(plan.held_out.stand_ins) == tune
    assert set(plan.held_out.stand_ins.values()) == held_out
    (caveat,) = trace_caveats(plan.tune, plan.held_out)
    assert "(3 while searching, 7 while confirming)" in caveat


def test_a_trace_that_both_sets_can_send_as_it_is_has_no_caveat(tmp_path: Path) -> None:
    plan = prepared(tmp_path, "s0").plan
    assert len(list(trace_caveats(plan.tune, plan.held_out))) == 1
    (tmp_path / "trace.jsonl").write_text('{"at_s": 0}\n')
    settings = parse_settings({"load": {"arrival": "trace", "trace": str(tmp_path / "trace.jsonl")}})
    plan = prepare(tmp_path / "models", "m", settings, tmp_path / "study").plan
    assert list(trace_caveats(plan.tune, plan.held_out)) == []


def test_a_trace_of_other_samples_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no sample has the id 'absent'"):
        prepared(tmp_path, "s0", "absent")
