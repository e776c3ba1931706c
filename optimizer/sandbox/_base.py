"""The sandbox's contract: a Triton server that belongs to one study and is always torn down."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from optimizer.records.deployment import Deployment, LoadFailure, ServerInfo


@dataclass(frozen=True)
class SandboxOptions:
    """What every launcher understands; ``extra`` is for one launcher alone (image, url, python …)."""

    workdir: Path
    """An existing directory of the study's; the sandbox makes a private one below it and removes that at the end."""
    ready_timeout_s: float = 60.0
    load_timeout_s: float = 300.0
    gpu: str | None = None
    """UUID or index; ``None``: no GPU."""
    memory_limit_bytes: int | None = None
    study_id: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)


class Sandbox(AbstractContextManager["Sandbox"], Protocol):
    """A running server. Leaving the ``with`` block ends it; so does the end of the optimizer, by any signal."""

    @property
    def info(self) -> ServerInfo: ...

    def load(self, deployment: Deployment) -> LoadFailure | None:
        """Makes the model directory under its private name and loads it; ``None`` when every version is ready.

        A model of that name that is loaded already is replaced. The failure's ``code`` is one of ``invalid_config``,
        ``missing_backend``, ``version_mismatch``, ``out_of_memory``, ``timeout``, ``server_died``, ``name_taken``
        (``remote`` alone) and ``model_error``; its message is the server's own root error line.

        Raises :class:`optimizer.errors.EnvironmentFailure` only when the server itself is gone.
        """

    def unload(self, name: str) -> None:
        """Unloads and removes the private model directory; no error if it was not loaded."""

    def alive(self) -> bool: ...

    def memory_bytes(self) -> int | None:
        """Resident memory of the server and its stubs together; ``None`` where it cannot be read."""

    def log_tail(self, lines: int = 40) -> str: ...

    def close(self) -> None:
        """Idempotent."""


class Launcher(Protocol):
    """Starts sandboxes. ``name`` is what ``--sandbox`` says."""

    name: str

    def available(self) -> str | None:
        """``None`` when it can start here, else one line: what is missing and how to get it."""

    def facts(self) -> Mapping[str, str]:
        """For the fingerprint, without starting a server: Triton's version, backend versions, image digest."""

    def start(self, options: SandboxOptions) -> Sandbox:
        """Raises :class:`optimizer.errors.EnvironmentFailure` with the server's root error line."""
