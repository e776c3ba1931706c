"""The part of the python backend's module that the TensorRT backend uses, for tests without a server."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    pass


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE = range(5)

    def __init__(self, message: str, code: int = 1) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class InferenceRequest:
    def __init__(self, inputs: list[Tensor], outputs: list[str], parameters: dict[str, Any] | None = None) -> None:
        self._inputs, self._outputs, self._parameters = inputs, outputs, parameters or {}
        self.sender = ResponseSender()

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def parameters(self) -> dict[str, Any]:
        return self._parameters

    def get_response_sender(self) -> ResponseSender:
        if not ResponseSender.available:
            raise RuntimeError("get_response_sender function must be called only in decoupled mode")
        return self.sender


class ResponseSender:
    """Copies at once, as the stub does; a second final answer is an error there too."""

    available = True

    def __init__(self) -> None:
        self._done = threading.Event()
        self._answer: dict[str, np.ndarray] | str = ""

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        if self._done.is_set():
            raise RuntimeError("response sender has been closed")
        error = response.error()
        self._answer = error.message() if error else response.copied()
        if flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            self._done.set()

    def answer(self) -> dict[str, np.ndarray] | str:
        assert self._done.wait(30), "no answer was sent"
        return self._answer


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self._error = error
        # The stub copies a response's memory when execute has returned, not before: keep views.
        self._tensors = output_tensors or []

    def error(self) -> TritonError | None:
        return self._error

    def copied(self) -> dict[str, np.ndarray]:
        return {tensor.name(): tensor.as_numpy().copy() for tensor in self._tensors}


class Logger:
    lines: list[tuple[str, str]] = []  # noqa: RUF012

    @classmethod
    def log_error(cls, message: str) -> None:
        cls.lines.append(("error", message))

    @classmethod
    def log_warn(cls, message: str) -> None:
        cls.lines.append(("warn", message))
