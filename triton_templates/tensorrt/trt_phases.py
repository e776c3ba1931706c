"""Where the time of an instance goes, phase by phase. Costs nothing unless it is asked for.

Ask with the model parameter ``profile_phases`` or the environment variable ``TENSORRT_BACKEND_PROFILE`` (``1``, or a
folder that gets one JSON file per instance at unload). Between phases the stream is then synchronized, so copies and
kernels no longer overlap: use it to find what costs, not to measure throughput.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

PHASES = ("outside", "read", "gather", "copy_in", "compute", "copy_out", "respond")
"""``outside`` is from the end of one ``execute`` to the begin of the next: the server, shared memory, and waiting."""


class Phases:
    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.executions = 0
        self.requests = 0
        self.rows = 0
        self._last = 0.0

    def begin(self) -> None:
        """The begin of ``execute``."""
        now = time.perf_counter()
        if self._last:
            self.seconds["outside"] += now - self._last
        self._last = now

    def end_of(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    def count(self, requests: int, rows: int) -> None:
        self.executions += 1
        self.requests += requests
        self.rows += rows

    def summary(self) -> dict[str, float]:
        """Microseconds per execution by phase, with the mean number of requests and rows."""
        runs = max(1, self.executions)
        table = {f"{phase}_us": round(1e6 * self.seconds[phase] / runs, 1) for phase in PHASES}
        return {
            "executions": self.executions,
            "requests_per_execution": round(self.requests / runs, 2),
            "rows_per_execution": round(self.rows / runs, 2),
            **table,
        }

    def write(self, instance: str, where: str) -> str:
        """One line of text; a folder ``where`` also gets ``<instance>.<pid>.json``."""
        summary = {"instance": instance, **self.summary()}
        folder = Path(where)
        if folder.is_dir():
            (folder / f"{instance}.{os.getpid()}.json").write_text(json.dumps(summary) + "\n", encoding="ascii")
        return " ".join(f"{key}={value}" for key, value in summary.items())
