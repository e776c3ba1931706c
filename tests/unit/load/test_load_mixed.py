"""A load over several models in turn, against a small gRPC server of ours."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.errors import InputError
from optimizer.load.bodies import Part, mixed_bodies
from optimizer.load.generator import LoadGenerator
from optimizer.records.measurement import Workload
from optimizer.records.samples import Sample
from optimizer.triton.client import parse_response

TYPES = {"IN": "FP32"}


def samples(first: int, count: int) -> list[Sample]:
    return [Sample(f"s{number}", {"IN": np.full((1, 2), number, np.float32)}) for number in range(first, first + count)]


def test_a_round_asks_every_model_equally_often() -> None:
    bodies, requests = mixed_bodies([Part("echo", samples(0, 3), TYPES), Part("slow", samples(10, 2), TYPES)])
    assert [(model, sample.id) for model, sample in requests] == [
        ("echo", "s0"), ("slow", "s10"), ("echo", "s1"), ("slow", "s11"), ("echo", "s2"), ("slow", "s10"),
    ]  # fmt: skip
    assert len(bodies.payloads) == 6


def test_every_model_answers_its_own_requests_in_turn(fake_server: Any, tmp_path: Path) -> None:
    parts = [Part("echo", samples(0, 4), TYPES), Part("slow", samples(10, 4), TYPES)]
    with LoadGenerator(fake_server.url, processes=1, directory=tmp_path) as generator:
        owners = generator.prepare_mixed(parts)
        window = generator.run("echo", Workload(concurrency=2, duration_s=0.6), candidate_id="mix", keep_responses=20)
    assert window.measurement.failed == 0
    log = window.records()
    counts = Counter(owners[index] for index in log.sample)
    assert abs(counts["echo"] - counts["slow"]) <= 2
    for index, response in window.responses:
        outputs, _ = parse_response(response)
        assert outputs["OUT"].flat[0] == parts[index % 2].samples[index // 2].inputs["IN"].flat[0]
    latency = {
        name: np.median([done - sent for done, sent, index in zip(log.done_ns, log.sent_ns, log.sample, strict=True)
                         if owners[index] == name])
        for name in ("echo", "slow")
    }  # fmt: skip
    assert latency["slow"] > latency["echo"]


def test_a_later_load_of_one_model_is_of_that_model_alone(fake_server: Any, tmp_path: Path) -> None:
    with LoadGenerator(fake_server.url, processes=1, directory=tmp_path) as generator:
        generator.prepare_mixed([Part("fail", samples(0, 2), TYPES)])
        generator.prepare(samples(0, 4), TYPES)
        window = generator.run("echo", Workload(concurrency=1, duration_s=0.2), candidate_id="c")
    assert window.measurement.requests > 0
    assert window.measurement.failed == 0


def test_shared_memory_does_not_mix(fake_server: Any, tmp_path: Path) -> None:
    generator = LoadGenerator(fake_server.url, processes=1, directory=tmp_path, shared_memory="system")
    with pytest.raises(InputError, match="mixed load"):
        generator.prepare_mixed([Part("echo", samples(0, 2), TYPES)])
