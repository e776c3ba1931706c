"""The way to this machine's Docker engine."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from optimizer import container
from optimizer.errors import EnvironmentFailure

INSTALL = "pip install 'triton-optimizer[docker]'"
START = "start it (systemctl start docker), or name its socket in DOCKER_HOST"


def connect() -> Any:
    """A client of the engine that DOCKER_HOST names, or of this machine's. Raises :class:`EnvironmentFailure`."""
    try:
        import docker
    except ImportError:
        raise EnvironmentFailure("the Docker SDK for Python is not installed", remedy=INSTALL) from None
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    # Loopback ports and bind mounts belong to the engine's machine: it has to be this one.
    if not re.match(r"unix://|tcp://(127\.|localhost\b|\[::1\])", address):
        raise EnvironmentFailure(
            "the Docker engine is on another machine",
            where=address,
            field="DOCKER_HOST",
            remedy="run the optimizer there, or use the remote sandbox",
        )
    problem = _unreachable(address)
    if problem:
        reason, remedy = problem
        raise EnvironmentFailure(f"no Docker engine answers: {reason}", where=address, remedy=remedy)
    try:
        client = docker.from_env(timeout=container.REQUEST_TIMEOUT_S)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise EnvironmentFailure(
            f"no Docker engine answers: {container.problem(error)}", where=address, remedy=START
        ) from None
    return client


def _unreachable(address: str) -> tuple[str, str] | None:
    """Why nothing can be reached at a socket, and what to do; asked before the SDK, which tells it in many words."""
    if not address.startswith("unix://"):
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5.0)
        try:
            probe.connect(address.removeprefix("unix://"))
        except PermissionError:
            return "permission denied", "join the group docker (usermod -aG docker $USER), or run as root"
        except FileNotFoundError:
            return "there is no such socket", START
        except OSError as error:
            return f"{error.strerror or error}".lower(), START
    return None


def describe() -> tuple[str, tuple[str, ...], str]:
    """Version, names of runtimes, and, where there is no engine, why in one line."""
    try:
        client = connect()
    except EnvironmentFailure as failure:
        return "", (), failure.message.replace("\n ", ";")
    try:
        info = client.info()
    except Exception as error:  # noqa: BLE001 - an engine that stops between two requests, told by any of the SDK's layers
        return "", (), f"the Docker engine does not answer: {container.problem(error)}"
    finally:
        client.close()
    return str(info.get("ServerVersion", "unknown")), tuple(info.get("Runtimes") or ()), ""
