"""Tiny models for Triton's python backend whose behaviour is known: nothing, a sleep, a stall, a fault.

Statistical tests need a server whose service time is known; real models on shared cores vary too much. Every function
returns a :class:`ToyModel`: texts to put in a model directory. Imports the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

INPUT = "INPUT0"
OUTPUT = "OUTPUT0"
DATATYPES = {INPUT: "FP32"}


@dataclass(frozen=True)
class ToyModel:
    """``INPUT0`` FP32 [width] in, ``OUTPUT0`` FP32 [width] out, equal to the input."""

    name: str
    config_text: str
    source: str

    def write(self, repository: Path) -> Path:
        """Writes the model directory below ``repository`` and returns it."""
        directory = repository / self.name
        (directory / "1").mkdir(parents=True)
        (directory / "config.pbtxt").write_text(self.config_text, encoding="utf-8")
        (directory / "1" / "model.py").write_text(self.source, encoding="utf-8")
        return directory


def null_model(name: str = "null", *, width: int = 4, instances: int = 1, max_batch_size: int = 64) -> ToyModel:
    """Answers at once: what is left is the cost of client, server and transport."""
    return _model(name, width=width, instances=instances, max_batch_size=max_batch_size, parameters={})


def sleep_model(
    name: str = "sleep",
    *,
    service_s: float,
    per_row_s: float = 0.0,
    exponential: bool = False,
    width: int = 4,
    instances: int = 1,
    max_batch_size: int = 64,
    dynamic_batching: bool = False,
    queue_delay_us: int = 0,
) -> ToyModel:
    """Every execution takes ``service_s`` + ``per_row_s`` x rows, exponentially distributed with that mean if asked.

    Without dynamic batching an execution is one request, so one instance is the server of an M/D/1 (or M/M/1) queue.
    """
    parameters = {"service_s": repr(service_s), "per_row_s": repr(per_row_s), "exponential": str(int(exponential))}
    text = ""
    if dynamic_batching:
        text = f"dynamic_batching {{ max_queue_delay_microseconds: {queue_delay_us} }}\n"
    return _model(
        name, width=width, instances=instances, max_batch_size=max_batch_size, parameters=parameters, more=text
    )


def stall_model(
    name: str = "stall", *, service_s: float = 0.001, stall_s: float = 0.2, every_s: float = 1.0, width: int = 4
) -> ToyModel:
    """One instance that sleeps ``service_s`` a request, and ``stall_s`` once every ``every_s`` seconds."""
    parameters = {"service_s": repr(service_s), "stall_s": repr(stall_s), "stall_every_s": repr(every_s)}
    return _model(name, width=width, instances=1, max_batch_size=64, parameters=parameters)


def failing_model(name: str = "failing", *, every: int = 3, width: int = 4) -> ToyModel:
    """Every ``every``-th request gets an error answer."""
    return _model(name, width=width, instances=1, max_batch_size=64, parameters={"fail_every": str(every)})


def faulty_model(
    name: str = "faulty",
    *,
    service_s: float = 0.0,
    instances: int = 1,
    wrong_every: int = 0,
    nan_every: int = 0,
    leak_bytes: int = 0,
    dies_after: int = 0,
    takes_server: bool = False,
    slow_part: float = 0.0,
    slow_s: float = 0.0,
    queue_delay_us: int = 0,
    width: int = 4,
) -> ToyModel:
    """A model for canaries, honest where nothing is asked for. Counts are of each instance's own requests.

    * ``wrong_every``: every so-manieth answer, from a random one on, is off by 1; ``nan_every`` likewise holds a NaN.
    * ``leak_bytes`` a request are kept for ever.
    * ``dies_after`` so many requests the process ends, with ``takes_server`` the whole server.
    * ``slow_part`` of the executions, at random, take ``slow_s`` in place of ``service_s``: the p99 alone moves.

    ``queue_delay_us`` > 0 turns dynamic batching on: one execution then answers many requests.
    """
    parameters = {
        "service_s": repr(service_s),
        "wrong_every": str(wrong_every),
        "nan_every": str(nan_every),
        "leak_bytes": str(leak_bytes),
        "dies_after": str(dies_after),
        "takes_server": str(int(takes_server)),
        "slow_part": repr(slow_part),
        "slow_s": repr(slow_s),
    }
    text = f"dynamic_batching {{ max_queue_delay_microseconds: {queue_delay_us} }}\n" if queue_delay_us else ""
    return _model(name, width=width, instances=instances, max_batch_size=64, parameters=parameters, more=text)


def _model(
    name: str, *, width: int, instances: int, max_batch_size: int, parameters: dict[str, str], more: str = ""
) -> ToyModel:
    lines = [
        f'name: "{name}"',
        'backend: "python"',
        f"max_batch_size: {max_batch_size}",
        f'input [ {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ {width} ] }} ]',
        f'output [ {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {width} ] }} ]',
        f"instance_group [ {{ count: {instances} kind: KIND_CPU }} ]",
    ]
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in parameters.items()]
    return ToyModel(name, "\n".join(lines) + "\n" + more, _SOURCE)


_SOURCE = '''\
"""Echoes its input after a known time (parameters of config.pbtxt)."""

import json
import os
import random
import signal
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        given = json.loads(args["model_config"]).get("parameters", {})

        def parameter(name):
            return float(given.get(name, {}).get("string_value", 0))

        self.service_s = parameter("service_s")
        self.per_row_s = parameter("per_row_s")
        self.exponential = bool(parameter("exponential"))
        self.stall_s = parameter("stall_s")
        self.stall_every_s = parameter("stall_every_s")
        self.fail_every = int(parameter("fail_every"))
        self.wrong_every = int(parameter("wrong_every"))
        self.nan_every = int(parameter("nan_every"))
        self.leak_bytes = int(parameter("leak_bytes"))
        self.dies_after = int(parameter("dies_after"))
        self.takes_server = bool(parameter("takes_server"))
        self.slow_part = parameter("slow_part")
        self.slow_s = parameter("slow_s")
        self.kept = []
        self.seen = 0
        self.next_stall = None
        self.random = random.Random(1)
        # Faults fall elsewhere in every run.
        self.faults = random.Random()
        self.phase = self.faults.randrange(1 << 16)

    def execute(self, requests):
        started = time.monotonic()
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        rows = sum(len(tensor) for tensor in tensors)
        duration = self.service_s + self.per_row_s * rows
        if self.exponential:
            duration = self.random.expovariate(1 / duration)
        if self.slow_part and self.faults.random() < self.slow_part:
            duration = self.slow_s
        if self.stall_s:
            if self.next_stall is None:
                self.next_stall = started + self.stall_every_s / 2
            if started >= self.next_stall:
                duration += self.stall_s
                self.next_stall = started + self.stall_every_s
        if duration:
            remaining = started + duration - time.monotonic()
            if remaining > 0:
                time.sleep(remaining)
        answers = []
        for tensor in tensors:
            self.seen += 1
            if self.dies_after and self.seen > self.dies_after:
                os.kill(os.getppid() if self.takes_server else os.getpid(), signal.SIGKILL)
            if self.leak_bytes:
                self.kept.append(os.urandom(16) * (self.leak_bytes // 16))
            if self.wrong_every and (self.seen + self.phase) % self.wrong_every == 0:
                tensor = tensor + np.float32(1)
            if self.nan_every and (self.seen + self.phase) % self.nan_every == 0:
                tensor = tensor + np.float32("nan")
            if self.fail_every and self.seen % self.fail_every == 0:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("fails on purpose")))
            else:
                answers.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", tensor)]))
        return answers
'''
