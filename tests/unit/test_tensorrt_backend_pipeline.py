"""Two batches in flight of one instance (``trt_lanes``), on the doubles."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.unit.test_tensorrt_backend import GRAPHS, Backend, config, plan, rows
from tests.unit.test_tensorrt_backend import backend as backend

ENGINES = ("own", "shared")


def pipelined(engine: str, **more: str) -> dict[str, Any]:
    values = {"pipeline": "on", "engine_process": engine, **more}
    return {"parameters": {name: {"string_value": value} for name, value in values.items()}}


@pytest.mark.parametrize("engine", ENGINES)
def test_many_batches_in_flight_are_answered_rightly(backend: Backend, engine: str) -> None:
    instance = backend.load(plan(), config(**pipelined(engine)))
    requests, returned, expected = [], [], []
    for number in range(40):
        batch = [backend.request(x=rows(1 + (number + k) % 3, 100 * number + k)) for k in range(3)]
        answers = instance.execute(batch)
        assert answers == [None] * 3, "each is sent by its sender"
        requests += batch
        returned += answers
        expected += [request.inputs()[0].as_numpy() * 2 + 1 for request in batch]
    for answer, wanted in zip(backend.answers(requests, returned), expected, strict=True):
        np.testing.assert_array_equal(answer["y"], wanted)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_shape_fails_alone(backend: Backend, engine: str) -> None:
    instance = backend.load(plan(), config(**pipelined(engine)))
    for _ in range(4):
        good, bad = backend.run(instance, backend.request(x=rows(2)), backend.request(x=rows(2, width=5)))
        np.testing.assert_array_equal(good["y"], rows(2) * 2 + 1)
        assert "no optimization profile in use admits: 'x' [2,5]" in bad


def test_graphs_of_both_lanes_are_right(backend: Backend) -> None:
    instance = backend.load(plan(), config(**pipelined("own"), **GRAPHS))
    backend.cuda.calls.clear()
    for number in range(6):
        value = rows(8, 7 * number)
        np.testing.assert_array_equal(backend.run(instance, backend.request(x=value))[0]["y"], value * 2 + 1)
    assert backend.cuda.calls.count("cudaGraphLaunch") == 6


def test_an_error_that_cuda_survives_fails_one_batch(backend: Backend) -> None:
    instance = backend.load(plan(), config(**pipelined("own")))
    backend.cuda.state["fail_next"]["cudaStreamSynchronize"] = 1
    assert "cudaErrorInvalidValue" in backend.run(instance, backend.request(x=rows(2)))[0]
    for _ in range(3):
        np.testing.assert_array_equal(backend.run(instance, backend.request(x=rows(2)))[0]["y"], rows(2) * 2 + 1)


def test_a_lost_gpu_context_is_said_to_every_later_request(backend: Backend) -> None:
    instance = backend.load(plan(), config(**pipelined("own", fault_injection="on")))
    failed = backend.run(instance, backend.request(x=rows(2), parameters={"inject_cuda_error": True}))[0]
    assert "cudaErrorIllegalAddress (700)" in failed
    assert "unload the model and load it again" in backend.run(instance, backend.request(x=rows(2)))[0]
    assert not instance.is_ready()


def test_a_lost_engine_process_is_replaced(backend: Backend) -> None:
    instance = backend.load(plan(), config(**pipelined("shared", fault_injection="on")))
    failed = backend.run(instance, backend.request(x=rows(2), parameters={"inject_cuda_error": True}))[0]
    assert "the engine process ends" in failed
    for _ in range(4):
        np.testing.assert_array_equal(backend.run(instance, backend.request(x=rows(2)))[0]["y"], rows(2) * 2 + 1)


def test_without_response_senders_one_batch_at_a_time(backend: Backend) -> None:
    backend.utils.ResponseSender.available = False
    try:
        instance = backend.load(plan(), config(**pipelined("own")))
        for _ in range(2):
            (answer,) = instance.execute([backend.request(x=rows(2))])
            np.testing.assert_array_equal(answer.copied()["y"], rows(2) * 2 + 1)
    finally:
        backend.utils.ResponseSender.available = True
    assert sum("there are no response senders" in text for _, text in backend.utils.Logger.lines) == 1


def test_a_plan_without_profile_sharing_runs_one_batch_at_a_time(backend: Backend) -> None:
    instance = backend.load(plan(sharing=False), config(**pipelined("own")))
    assert any("one batch at a time, since" in text for _, text in backend.utils.Logger.lines)
    (answer,) = instance.execute([backend.request(x=rows(2))])
    np.testing.assert_array_equal(answer.copied()["y"], rows(2) * 2 + 1)


def test_unload_answers_what_is_in_flight_and_gives_everything_back(backend: Backend) -> None:
    instance = backend.load(plan(), config(**pipelined("own")))
    threads = threading.active_count()
    requests = [backend.request(x=rows(1, number)) for number in range(6)]
    returned = [instance.execute([request])[0] for request in requests]
    instance.finalize()
    backend.loaded.remove(instance)
    answers = backend.answers(requests, returned)
    assert len(answers) == 6
    assert all(isinstance(answer, dict) for answer in answers)
    assert threading.active_count() == threads - 2
    assert not backend.cuda.live
