"""What the server and the machine used while a window ran, read by one light thread.

What cannot be read is ``None``, never zero. NVML is read where ``pynvml`` can be imported, else Triton's own GPU
metrics (which it refreshes every 2 s) where there is a metrics endpoint.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from optimizer.records.measurement import Resources
from optimizer.triton.metrics import metrics_text

INTERVAL_S = 0.5
UNLIMITING_REASONS = 0x1 | 0x2 | 0x10 | 0x100
"""NVML clock event reasons that are no throttling: idle, application clocks, sync boost, display clocks."""
METRIC_LINE = re.compile(r"^(?P<name>nv_\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class Readings:
    """Raw readings of one window."""

    server_rss: list[int] = field(default_factory=list)
    pending: list[float] = field(default_factory=list)
    host_memory: list[int] = field(default_factory=list)
    gpu: list[Mapping[str, float]] = field(default_factory=list)
    host_cpu: float | None = None


class ResourceSampler:
    """``start`` before a window, ``stop`` after; one at a time, used again for every window.

    ``memory`` tells the server's memory in bytes (or ``None``); ``metrics_url`` is ``host:port`` or a URL; ``gpu`` is
    an index or UUID, ``None`` reads no GPU.
    """

    def __init__(
        self, *, memory: Callable[[], int | None] | None = None, metrics_url: str | None = None, gpu: str | None = None
    ) -> None:
        self._memory = memory
        self._metrics_url = metrics_url
        self._gpu_wanted = gpu
        self._gpu = Gpu.open(gpu) if gpu is not None else None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._readings = Readings()

    def start(self, model: str) -> None:
        self._stop.clear()
        self._readings = Readings()
        self._cpu_before = psutil.cpu_times()
        self._thread = threading.Thread(target=self._read_on, args=(model,), name="load-resources", daemon=True)
        self._thread.start()

    def stop(self) -> Resources:
        """What was read since ``start``: peaks for memory, means for rates, the difference for energy."""
        self._readings.host_cpu = busy_fraction(self._cpu_before, psutil.cpu_times())
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return resources_of(self._readings)

    def close(self) -> None:
        self._stop.set()
        if self._gpu is not None:
            self._gpu.close()
            self._gpu = None

    def _read_on(self, model: str) -> None:
        while True:
            self._read(model)
            if self._stop.wait(INTERVAL_S):
                if self._gpu is not None:
                    # The energy counter is a difference: its last reading belongs at the window's end.
                    self._readings.gpu.append(self._gpu.read())
                return

    def _read(self, model: str) -> None:
        readings = self._readings
        memory = psutil.virtual_memory()
        readings.host_memory.append(memory.total - memory.available)
        if self._memory is not None and (used := self._memory()) is not None:
            readings.server_rss.append(used)
        metrics = self._metrics()
        if metrics is not None:
            pending = metric(metrics, "nv_inference_pending_request_count", model=model)
            if pending is not None:
                readings.pending.append(pending)
        if self._gpu is not None:
            readings.gpu.append(self._gpu.read())
        elif metrics is not None and self._gpu_wanted is not None:
            readings.gpu.append(triton_gpu_metrics(metrics, self._gpu_wanted))

    def _metrics(self) -> str | None:
        return metrics_text(self._metrics_url) if self._metrics_url else None


class Gpu:
    """One GPU through NVML. A value that the device does not tell is left out of ``read``."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, gpu: str) -> Gpu | None:
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        try:
            if gpu.isdigit():
                return cls(pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(gpu)))
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(gpu))
        except pynvml.NVMLError:
            pynvml.nvmlShutdown()
            return None

    def read(self) -> Mapping[str, float]:
        nvml, handle = self._nvml, self._handle
        readers: dict[str, Callable[[], float]] = {
            "memory_bytes": lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            "temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "limiting_reasons": lambda: float(
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & ~UNLIMITING_REASONS
            ),
        }
        values: dict[str, float] = {"at_s": time.monotonic()}
        for name, reader in readers.items():
            with contextlib.suppress(nvml.NVMLError):
                values[name] = reader()
        return values

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def resources_of(readings: Readings) -> Resources:
    gpu = readings.gpu

    def values(name: str) -> list[float]:
        return [reading[name] for reading in gpu if name in reading]

    energy, reasons = values("energy_j"), values("limiting_reasons")
    memory = peak(values("memory_bytes"))
    return Resources(
        server_rss_bytes=max(readings.server_rss, default=None),
        gpu_memory_bytes=None if memory is None else int(memory),
        gpu_utilization=mean(values("utilization")),
        gpu_power_w=mean(values("power_w")),
        gpu_energy_j=energy[-1] - energy[0] if len(energy) > 1 else None,
        gpu_temperature_c=peak(values("temperature_c")),
        gpu_clock_mhz=mean(values("clock_mhz")),
        gpu_throttled=any(reasons) if reasons else None,
        host_cpu=readings.host_cpu,
        host_memory_bytes=max(readings.host_memory, default=None),
        pending_mean=mean(readings.pending),
        pending_max=peak(readings.pending),
    )


def triton_gpu_metrics(metrics: str, gpu: str) -> dict[str, float]:
    """From Triton's metrics text. It names GPUs by UUID; an index is served only where there is one GPU."""
    labels = {} if gpu.isdigit() else {"gpu_uuid": gpu}
    found = {
        "memory_bytes": metric(metrics, "nv_gpu_memory_used_bytes", **labels),
        "utilization": metric(metrics, "nv_gpu_utilization", **labels),
        "power_w": metric(metrics, "nv_gpu_power_usage", **labels),
        "energy_j": metric(metrics, "nv_energy_consumption", **labels),
    }
    return {name: value for name, value in found.items() if value is not None}


def metric(text: str, name: str, **labels: str) -> float | None:
    """The sum over versions of a metric in Prometheus text; ``None``: not there, or of several GPUs."""
    values: list[float] = []
    for match in METRIC_LINE.finditer(text):
        if match["name"] != name:
            continue
        given = dict(LABEL.findall(match["labels"] or ""))
        if any(given.get(key) != value for key, value in labels.items()):
            continue
        with contextlib.suppress(ValueError):
            value = float(match["value"])
            if math.isfinite(value):
                values.append(value)
    if not values or (len(values) > 1 and "model" not in labels):
        return None
    return sum(values)


def busy_fraction(before: Any, after: Any) -> float | None:
    total = sum(after) - sum(before)
    # guest times are in user and nice already: counting them twice moves the total by little, the idle part by nothing.
    idle = (after.idle + getattr(after, "iowait", 0.0)) - (before.idle + getattr(before, "iowait", 0.0))
    return max(0.0, min(1.0, 1 - idle / total)) if total > 0 else None


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def peak(values: list[float]) -> float | None:
    return max(values, default=None)
