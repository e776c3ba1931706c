"""A Measurement: raw samples and server-side differences for one candidate under one workload. It ranks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Arrival(str, Enum):
    CLOSED_LOOP = "closed"
    POISSON = "poisson"
    CONSTANT = "constant"
    TRACE = "trace"


@dataclass(frozen=True)
class Workload:
    """Load of one window. ``concurrency`` belongs to a closed loop, ``rate_per_s`` to Poisson and constant arrivals."""

    arrival: Arrival = Arrival.CLOSED_LOOP
    concurrency: int = 8
    rate_per_s: float | None = None
    duration_s: float = 2.0
    seed: int = 0
    trace: str | None = None

    @property
    def label(self) -> str:
        if self.arrival is Arrival.CLOSED_LOOP:
            return f"closed loop, concurrency {self.concurrency}"
        if self.arrival is Arrival.TRACE:
            return f"trace {self.trace}"
        return f"{self.arrival.value}, {self.rate_per_s:g} requests/s"


@dataclass(frozen=True)
class ServerDelta:
    """Difference of Triton's cumulative statistics over a window. Durations are totals over the window, in µs."""

    inference_count: int
    execution_count: int
    failure_count: int
    queue_us: float
    compute_input_us: float
    compute_infer_us: float
    compute_output_us: float
    batch_executions: Mapping[int, int] = field(default_factory=dict)
    """Executed batch size to number of executions."""

    @property
    def mean_batch(self) -> float | None:
        return self.inference_count / self.execution_count if self.execution_count else None


@dataclass(frozen=True)
class Resources:
    """What could be read while the window ran. ``None`` is unknown, never zero, and never satisfies a constraint."""

    server_rss_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_utilization: float | None = None
    gpu_power_w: float | None = None
    gpu_energy_j: float | None = None
    gpu_temperature_c: float | None = None
    gpu_clock_mhz: float | None = None
    gpu_throttled: bool | None = None
    client_cpu: float | None = None
    """Busy fraction of the busiest client process."""
    host_cpu: float | None = None
    """Busy fraction of the host's cores, all together."""
    host_memory_bytes: int | None = None
    """Peak of the host's memory in use (total less available), whoever uses it."""
    client_cpu_us_per_request: float | None = None
    pending_mean: float | None = None
    """Requests waiting in the server's queue for this model, mean and peak of the readings."""
    pending_max: float | None = None


@dataclass(frozen=True)
class Measurement:
    """One window. Latency counts from the intended send, in µs; ``percentiles_us`` holds only those that the number
    of samples supports (keys such as ``"p50"``). ``requests`` completed in the window, ``inferences`` counts
    batch rows.
    """

    candidate_id: str
    workload: Workload
    started_at: float
    duration_s: float
    requests: int
    inferences: int
    failures: Mapping[str, int]
    throughput: float
    """Inferences (batch rows) per second with a valid response. In a closed loop requests count with the part of their
    time that lies inside the window, so it is not exactly ``inferences / duration_s``."""
    latency_mean_us: float | None
    percentiles_us: Mapping[str, float]
    server: ServerDelta | None = None
    resources: Resources = field(default_factory=Resources)
    warnings: tuple[str, ...] = ()
    """Why the numbers need care (saturated client, throttled GPU …), as ``code: text``."""
    usable: bool = True
    raw_file: str | None = None
    """Columnar file of one record a request, relative to the study directory."""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())
