"""What GPUs there are, which one is meant, and what state it is in. Reads only; changes no setting.

Identity comes from cuda-python (the driver's API, which makes no context and takes no GPU memory) and, without it, from
NVML; the changing state comes from NVML alone. Whatever cannot be read is ``None``, never zero. Both are optional
packages: without them there are no GPUs, and :func:`unavailable` says why.

Imports the standard library and :mod:`optimizer.errors`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

from optimizer.errors import EnvironmentFailure, InputError

T = TypeVar("T")

INSTALL = "pip install 'triton-optimizer[tensorrt]'"

BUSY_UTILIZATION = 0.05
"""An idle H200 reads 0; a percent or two comes from whoever reads it."""

THROTTLE_REASONS: dict[int, str] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""NVML's ``nvmlClocksEventReason*`` bits (nvml.h)."""

HARMLESS_REASONS = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting"})
"""Clocks below the maximum for reasons that are the same for every candidate."""


@dataclass(frozen=True)
class Gpu:
    """One visible GPU. ``index`` is CUDA's, so it counts only what ``CUDA_VISIBLE_DEVICES`` shows."""

    index: int
    uuid: str | None
    name: str | None
    compute_capability: str | None
    """Such as ``9.0``."""
    memory_bytes: int | None
    multiprocessors: int | None
    driver: str | None
    """Such as ``580.65.06``."""
    cuda: str | None
    """The newest CUDA that the driver supports, such as ``13.0``."""

    def facts(self) -> dict[str, str]:
        """For the fingerprint; only what is known."""
        known = {
            "gpu": self.name,
            "gpu_uuid": self.uuid,
            "compute_capability": self.compute_capability,
            "driver": self.driver,
            "cuda": self.cuda,
        }
        return {name: value for name, value in known.items() if value}


@dataclass(frozen=True)
class GpuState:
    """A GPU at one moment."""

    memory_used_bytes: int | None = None
    """By everybody on the whole GPU."""
    memory_free_bytes: int | None = None
    utilization: float | None = None
    """Fraction of the last sample period (up to a second) in which a kernel ran."""
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded: take differences."""
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    compute_processes: tuple[int, ...] | None = None
    """Process ids as the driver sees them: in a container they may be another namespace's."""

    @property
    def throttled(self) -> bool | None:
        """Whether something holds the clocks down that another moment may not have."""
        if self.throttle_reasons is None:
            return None
        return any(reason not in HARMLESS_REASONS for reason in self.throttle_reasons)


def unavailable() -> str | None:
    """``None`` when a GPU can be seen, else one line: what is missing and what to do."""
    if list_gpus():
        return None
    reasons = [reason for reason in (_cuda_problem(), _nvml_problem()) if reason]
    return "; ".join(reasons) or "no GPU is visible: look at CUDA_VISIBLE_DEVICES and at nvidia-smi"


@cache
def list_gpus() -> tuple[Gpu, ...]:
    """Every visible GPU, in CUDA's order; empty where there is none or none can be seen. Read once per process."""
    return _by_cuda() or _by_nvml()


def select(choice: str | None = None) -> Gpu:
    """The GPU that ``choice`` means: an index, a UUID or a beginning of one; the first one without a choice.

    Raises :class:`InputError` naming the GPUs there are, :class:`EnvironmentFailure` where there is none.
    """
    gpus = list_gpus()
    if not gpus:
        raise EnvironmentFailure(f"no GPU: {unavailable()}", field="gpu", remedy=INSTALL)
    return pick(gpus, choice)


def pick(gpus: Sequence[Gpu], choice: str | None) -> Gpu:
    """As :func:`select`, from a list that is not empty."""
    if choice is None:
        return gpus[0]
    found = [gpu for gpu in gpus if choice == str(gpu.index)]
    if not found:
        wanted = choice.lower().removeprefix("gpu-")
        found = [gpu for gpu in gpus if wanted and (gpu.uuid or "").lower().removeprefix("gpu-").startswith(wanted)]
    if len(found) != 1:
        known = ", ".join(f"{gpu.index} ({gpu.name or 'unknown'}, {gpu.uuid or 'no UUID'})" for gpu in gpus)
        problem = "means several GPUs" if found else "is no GPU of this machine"
        raise InputError(f"{choice!r} {problem}", field="gpu", remedy=f"name one of: {known}")
    return found[0]


def read_state(gpu: Gpu) -> GpuState:
    """The state now; every field that NVML does not tell is ``None``. Takes about a millisecond."""
    nvml = _nvml()
    handle = _handle(nvml, gpu) if nvml is not None else None
    if nvml is None or handle is None:
        return GpuState()

    def read(make: Callable[[], T]) -> T | None:
        return _or_none(nvml, make)

    memory = read(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    rates = read(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    power = read(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = read(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    energy = read(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    # The name changed with driver 535; the number did not.
    reasons = read(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    processes = read(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return GpuState(
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_free_bytes=None if memory is None else int(memory.free),
        utilization=None if rates is None else rates.gpu / 100,
        power_w=None if power is None else power / 1e3,
        power_limit_w=None if limit is None else limit / 1e3,
        energy_j=None if energy is None else energy / 1e3,
        temperature_c=_number(read(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        sm_clock_mhz=_number(read(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        max_sm_clock_mhz=_number(read(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        memory_clock_mhz=_number(read(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
        throttle_reasons=None if reasons is None else throttle_names(int(reasons)),
        compute_processes=None if processes is None else tuple(int(process.pid) for process in processes),
    )


def throttle_names(bits: int) -> tuple[str, ...]:
    """Names of NVML's bits; a bit that this table does not know is named by its value."""
    names = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    rest = bits & ~sum(THROTTLE_REASONS)
    return (*names, f"unknown_{rest:#x}") if rest else tuple(names)


def busy_reasons(state: GpuState, *, own_processes: Sequence[int] = ()) -> tuple[str, ...]:
    """Why measuring on this GPU now would measure somebody else too; empty when nothing speaks against it.

    Unknown facts are no reason. ``own_processes`` are not counted as others.
    """
    reasons = []
    others = [pid for pid in state.compute_processes or () if pid not in own_processes]
    if others:
        reasons.append(f"{len(others)} other compute process(es): {', '.join(map(str, others))}")
    if state.utilization is not None and state.utilization > BUSY_UTILIZATION:
        reasons.append(f"utilization is {state.utilization:.0%}")
    if state.throttled:
        held = [reason for reason in state.throttle_reasons or () if reason not in HARMLESS_REASONS]
        reasons.append(f"clocks are held down: {', '.join(held)}")
    return tuple(reasons)


# cuda-python


@cache
def _cuda() -> tuple[Any, str | None]:
    """The driver module after ``cuInit``, or why not."""
    try:
        try:
            from cuda.bindings import driver
        except ImportError:
            from cuda import cuda as driver
    except ImportError:
        return None, f"cuda-python is not installed: {INSTALL}"
    try:
        error = driver.cuInit(0)[0]
    except RuntimeError as failure:  # cuda-python's answer to a machine without libcuda
        return None, f"no NVIDIA driver: {failure}"
    if int(error) != 0:
        return None, f"the NVIDIA driver does not start: {getattr(error, 'name', error)}"
    return driver, None


def _cuda_problem() -> str | None:
    return _cuda()[1]


def _by_cuda() -> tuple[Gpu, ...]:
    driver, _ = _cuda()
    if driver is None:
        return ()

    def call(function: str, *arguments: Any) -> Any:
        error, *values = getattr(driver, function)(*arguments)
        return values[0] if int(error) == 0 and values else None

    version = call("cuDriverGetVersion")
    attributes = driver.CUdevice_attribute
    gpus = []
    for index in range(call("cuDeviceGetCount") or 0):
        device = call("cuDeviceGet", index)
        if device is None:
            continue
        name = call("cuDeviceGetName", 128, device)
        unique = call("cuDeviceGetUuid", device)
        major = call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        minor = call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
        gpus.append(
            Gpu(
                index=index,
                uuid=_uuid_text(unique.bytes) if unique is not None else None,
                name=_text(name),
                compute_capability=None if major is None or minor is None else f"{major}.{minor}",
                memory_bytes=call("cuDeviceTotalMem", device),
                multiprocessors=call(
                    "cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device
                ),
                driver=_driver_version(),
                cuda=_cuda_version(version),
            )
        )
    return tuple(gpus)


def _uuid_text(data: bytes) -> str:
    return f"GPU-{uuid.UUID(bytes=bytes(data[:16]))}"


def _cuda_version(number: int | None) -> str | None:
    """13000 is 13.0."""
    return None if not number else f"{number // 1000}.{number % 1000 // 10}"


# NVML


@cache
def _nvml_or_problem() -> tuple[Any, str | None]:
    try:
        import pynvml
    except ImportError:
        return None, f"nvidia-ml-py is not installed: {INSTALL}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    return pynvml, None


def _nvml() -> Any:
    return _nvml_or_problem()[0]


def _nvml_problem() -> str | None:
    return _nvml_or_problem()[1]


def _or_none(nvml: Any, make: Callable[[], T]) -> T | None:
    # AttributeError: a function that this nvidia-ml-py does not have.
    try:
        return make()
    except (nvml.NVMLError, AttributeError):
        return None


def _handle(nvml: Any, gpu: Gpu) -> Any:
    """NVML counts all GPUs of the machine, CUDA only the visible ones: the UUID joins them."""
    if gpu.uuid:
        return _or_none(nvml, lambda: nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
    return _or_none(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(gpu.index))


def _driver_version() -> str | None:
    nvml = _nvml()
    return None if nvml is None else _text(_or_none(nvml, nvml.nvmlSystemGetDriverVersion))


def _by_nvml() -> tuple[Gpu, ...]:
    nvml = _nvml()
    if nvml is None:
        return ()
    cuda = _or_none(nvml, nvml.nvmlSystemGetCudaDriverVersion)
    gpus = []
    for index in range(_or_none(nvml, nvml.nvmlDeviceGetCount) or 0):
        handle = _or_none(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, index))
        if handle is None:
            continue
        capability = _or_none(nvml, partial(nvml.nvmlDeviceGetCudaComputeCapability, handle))
        memory = _or_none(nvml, partial(nvml.nvmlDeviceGetMemoryInfo, handle))
        gpus.append(
            Gpu(
                index=index,
                uuid=_text(_or_none(nvml, partial(nvml.nvmlDeviceGetUUID, handle))),
                name=_text(_or_none(nvml, partial(nvml.nvmlDeviceGetName, handle))),
                compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
                memory_bytes=None if memory is None else int(memory.total),
                multiprocessors=None,
                driver=_driver_version(),
                cuda=_cuda_version(cuda),
            )
        )
    return tuple(gpus)


def _text(value: str | bytes | None) -> str | None:
    if isinstance(value, bytes):
        value = value.split(b"\0", 1)[0].decode(errors="replace")
    return value or None


def _number(value: int | float | None) -> float | None:
    return None if value is None else float(value)
