"""A server's Prometheus endpoint, as text. Standard library only."""

from __future__ import annotations

import http.client

TIMEOUT_S = 1.0
"""The server answers from memory: one that takes longer is in trouble, and the reading is unknown."""


def metrics_text(url: str) -> str | None:
    """``url`` as :func:`address_of` takes it. ``None``: no answer."""
    host, port = address_of(url)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.read().decode(errors="replace") if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def address_of(url: str) -> tuple[str, int]:
    """``host:port``, with or without ``http://`` before and a path behind."""
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    return host.strip("[]"), int(port)
