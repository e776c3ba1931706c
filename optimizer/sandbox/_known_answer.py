"""Checks a server's python backend by an answer that is known before anything else is believed.

With NumPy 2 in the interpreter of the embedded server's stubs every output comes back with 0 bytes and no error, so
the absence of errors proves nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from optimizer.errors import EnvironmentFailure
from optimizer.records.deployment import Deployment, LoadFailure, ServerInfo
from optimizer.sandbox._interpreter import Interpreter
from optimizer.triton.client import TritonClient, TritonError

NAME = "triton_optimizer_known_answer"

_CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "X" data_type: TYPE_FP32 dims: 3 }
output { name: "Y" data_type: TYPE_FP32 dims: 3 }
output { name: "WHO" data_type: TYPE_STRING dims: 2 }
instance_group { kind: KIND_CPU count: 1 }
"""

_MODEL = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            who = np.array([sys.base_prefix.encode(), np.__version__.encode()], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", 2 * x + 1), pb_utils.Tensor("WHO", who)]))
        return responses
"""


class _Server(Protocol):
    @property
    def info(self) -> ServerInfo: ...
    @property
    def directory(self) -> Path: ...
    def load(self, deployment: Deployment) -> LoadFailure | None: ...
    def unload(self, name: str) -> None: ...


# Interpreters that have passed in this process: the check costs about a second, the answer does not change.
_passed: set[tuple[str, str]] = set()


def check(sandbox: _Server, interpreter: Interpreter | None, *, where: str = "") -> None:
    """Raises :class:`EnvironmentFailure` naming the interpreter and the remedy.

    ``interpreter`` is the one that was chosen, ``None`` where the server at ``where`` has its own.
    """
    key = (where, "")
    if interpreter is not None:
        key = (str(interpreter.executable), interpreter.packages.get("numpy", ""))
    if key in _passed:
        return
    model = sandbox.directory / "known_answer.py"
    model.write_text(_MODEL, encoding="utf-8")
    failure = sandbox.load(Deployment(NAME, _CONFIG, {"1/model.py": model}))
    if failure is not None:
        raise EnvironmentFailure(
            f"the python backend does not work: {failure.message}",
            where=key[0],
            remedy=remedy(interpreter),
        )
    x = np.array([1.0, -2.0, 0.5], dtype=np.float32)
    try:
        with TritonClient(sandbox.info.grpc_url) as client:
            answer = client.infer(NAME, {"X": x}, {"X": "FP32"})
        problem = compare(x, answer["Y"])
        prefix, numpy = (item.decode() for item in answer["WHO"].flat)
    except (TritonError, ValueError, KeyError) as error:
        problem = f"no usable answer ({error})"
        prefix = numpy = ""
    if problem:
        raise EnvironmentFailure(
            f"the python backend answers a known question wrong: {problem}", where=key[0], remedy=remedy(interpreter)
        )
    if interpreter is not None and (
        Path(prefix).resolve() != interpreter.base_prefix.resolve() or numpy != interpreter.packages.get("numpy")
    ):
        raise EnvironmentFailure(
            f"the python backend runs the Python of {prefix} with NumPy {numpy}, not the chosen one of "
            f"{interpreter.base_prefix} with NumPy {interpreter.packages.get('numpy')}",
            where=key[0],
            remedy="name another interpreter",
        )
    sandbox.unload(NAME)
    _passed.add(key)


def compare(x: np.ndarray, y: np.ndarray) -> str:  # type: ignore[type-arg]
    """What is wrong with the answer; empty when nothing is."""
    if y.shape != x.shape:
        return f"shape {y.shape}, expected {x.shape}"
    if not np.array_equal(y, 2 * x + 1):
        return f"{y.tolist()}, expected {(2 * x + 1).tolist()}"
    return ""


def remedy(interpreter: Interpreter | None) -> str:
    if interpreter is None:
        return "check the Python of the server's python backend: with older stubs it needs 'numpy<2'"
    numpy = interpreter.packages.get("numpy", "none")
    if numpy.split(".")[0].isdigit() and int(numpy.split(".")[0]) >= 2:
        return (
            f"NumPy {numpy} does not work with this server's stubs (outputs come back empty, without an error): "
            f"{interpreter.executable} -m pip install 'numpy<2'"
        )
    return f"check the interpreter (NumPy {numpy}), for example with: {interpreter.executable} -c 'import numpy'"
