"""A Deployment: what a sandbox must serve, under a private name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Deployment:
    """``files`` maps paths relative to the model directory (``1/model.onnx``, ``labels.txt``) to files or directories
    on disk; the sandbox links or copies them and never changes them. ``config_text`` is a complete ``config.pbtxt``;
    a ``name`` in it is replaced by the private one.
    """

    name: str
    config_text: str
    files: Mapping[str, Path]
    candidate_id: str = ""
    version: int = 1


@dataclass(frozen=True)
class LoadFailure:
    """Why a server did not load a deployment: ``code`` classifies, ``message`` is the server's root error line."""

    name: str
    code: str
    message: str
    log_excerpt: str = ""


@dataclass(frozen=True)
class ServerInfo:
    """A running sandbox. URLs are ``127.0.0.1:port``."""

    launcher: str
    grpc_url: str
    http_url: str
    metrics_url: str | None
    version: str
    pid: int | None = None
    python_backends: tuple[str, ...] = ()
    """Backends served by this project's python-based runners instead of the native ones."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What goes into the fingerprint: ``triton``, ``backend`` versions, image digest …"""
