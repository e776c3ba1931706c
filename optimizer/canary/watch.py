"""What can be seen of an arm's server from outside: counters, memory, whether it is still the same process.

Triton's statistics and its Prometheus endpoint tell counts and reasons; memory of a process is read where the server
runs on this machine. What cannot be read is ``None``, never zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from optimizer.canary.plan import Endpoint
from optimizer.load.resources import LABEL, METRIC_LINE, metric
from optimizer.sandbox import _tree
from optimizer.triton.client import TritonClient, TritonError
from optimizer.triton.metrics import metrics_text

FAILURES = "nv_inference_request_failure"


@dataclass(frozen=True)
class Snapshot:
    """One look at an arm. ``counts`` are (succeeded, failed) requests since the server loaded the model."""

    reachable: bool
    counts: tuple[int, int] | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None
    process: tuple[int, float] | None = None
    """Pid and start time of the server, where it runs here."""
    problem: str = ""


@dataclass(frozen=True)
class Change:
    """What happened between two snapshots."""

    requests: int | None
    failures: Mapping[str, int]
    restarted: str


class Watch:
    """Looks at one arm. ``shared``: the other arm is a model of the same server."""

    def __init__(self, endpoint: Endpoint, *, shared: bool) -> None:
        self.endpoint = endpoint
        self._shared = shared
        self._client = TritonClient(endpoint.grpc_url, timeout_s=5.0)
        self._pid = server_pid(endpoint.grpc_url)
        # One process serves both arms: only a model's own stub processes tell its memory from the other's.
        if shared:
            self.own_memory = self._pid is not None and bool(_tree.stubs(self._pid, endpoint.model))
        else:
            self.own_memory = bool(self.memory_source)

    def close(self) -> None:
        self._client.close()

    @property
    def memory_source(self) -> str:
        """Where memory is read from, for people; empty: nowhere."""
        if self._pid is not None:
            if self._shared and self.own_memory:
                return f"the processes of model {self.endpoint.model}"
            return f"server process {self._pid}" + (", which serves both arms" if self._shared else "")
        if self.endpoint.metrics_url is None:
            return ""
        return f"the metrics of {self.endpoint.metrics_url} (GPU memory in use, else the host's)"

    def look(self) -> Snapshot:
        try:
            rows = self._client.statistics(self.endpoint.model).rows
        except TritonError as error:
            return Snapshot(False, process=self._process(), problem=f"{error.status}: {error.problem}")
        url = self.endpoint.metrics_url
        text = metrics_text(url) if url else None
        counts = (
            sum(int(row.inference_stats.success.count) for row in rows),
            sum(int(row.inference_stats.fail.count) for row in rows),
        )
        return Snapshot(
            reachable=True,
            counts=counts,
            failures=failures_by_reason(text, self.endpoint.model) if text else {},
            memory_bytes=self._memory(text),
            process=self._process(),
        )

    def _memory(self, text: str | None) -> int | None:
        if self._pid is not None:
            if self._shared and self.own_memory:
                pids = _tree.stubs(self._pid, self.endpoint.model)
                return sum(_tree.process_bytes(pid) or 0 for pid in pids) if pids else None
            return _tree.tree_bytes(self._pid)
        if text is None:
            return None
        for name in ("nv_gpu_memory_used_bytes", "nv_cpu_memory_used_bytes"):
            used = metric(text, name)
            if used is not None:
                return int(used)
        return None

    def _process(self) -> tuple[int, float] | None:
        if self._pid is None:
            return None
        import psutil

        # Another process may listen there by now: that is how a restart shows.
        pid = self._pid
        with contextlib.suppress(psutil.Error):
            return pid, psutil.Process(pid).create_time()
        found = server_pid(self.endpoint.grpc_url)
        with contextlib.suppress(psutil.Error):
            if found is not None:
                return found, psutil.Process(found).create_time()
        return None


def change(before: Snapshot, after: Snapshot) -> Change:
    """Pure. A server that was reachable and is not any more, that is another process, or whose counters went backwards
    was restarted or has died, whatever its answers say."""
    if not after.reachable:
        return Change(None, {}, f"the server does not answer any more ({after.problem})")
    if before.process is not None and after.process is not None and before.process != after.process:
        return Change(None, {}, f"the server is another process: {before.process[0]}, now {after.process[0]}")
    if before.process is not None and after.process is None:
        return Change(None, {}, f"the server process {before.process[0]} is gone")
    if before.counts is None or after.counts is None:
        return Change(None, {}, "")
    done, failed = (now - then for then, now in zip(before.counts, after.counts, strict=True))
    if done < 0 or failed < 0:
        was, now = sum(before.counts), sum(after.counts)
        return Change(None, {}, f"the model was loaded again: its request count went from {was} to {now}")
    reasons = {
        reason: count - before.failures.get(reason, 0)
        for reason, count in after.failures.items()
        if count > before.failures.get(reason, 0)
    }
    # Metrics lag behind the statistics: where they say less, the rest has no reason to its name.
    unnamed = failed - sum(reasons.values())
    if unnamed > 0:
        reasons["unnamed"] = unnamed
    return Change(done + failed, reasons if failed else {}, "")


def failures_by_reason(text: str, model: str) -> dict[str, int]:
    """``nv_inference_request_failure`` of a model by its label ``reason``, summed over versions."""
    found: dict[str, int] = {}
    for match in METRIC_LINE.finditer(text):
        if match["name"] != FAILURES:
            continue
        labels = dict(LABEL.findall(match["labels"] or ""))
        if labels.get("model") == model:
            reason = labels.get("reason", "unnamed")
            found[reason] = found.get(reason, 0) + int(float(match["value"]))
    return {reason: count for reason, count in found.items() if count}


def server_pid(url: str) -> int | None:
    """The tritonserver that listens on a loopback port; ``None``: elsewhere, not to be seen by this user, or a tunnel
    or proxy that listens in its place."""
    import psutil

    host, _, port = url.rpartition(":")
    if host.strip("[]") not in ("127.0.0.1", "localhost", "::1"):
        return None
    try:
        for each in psutil.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN and each.pid and each.laddr and each.laddr[1] == int(port):
                return int(each.pid) if "tritonserver" in psutil.Process(each.pid).name() else None
    except psutil.Error:
        return None
    return None
