from __future__ import annotations

import pytest

from optimizer import gpu
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.gpu import Gpu, GpuState


def made(index: int, uuid: str) -> Gpu:
    return Gpu(index, uuid, "NVIDIA H200", "9.0", 1 << 37, 132, "580.65.06", "13.0")


GPUS = (made(0, "GPU-1a2b0000-0000-0000-0000-000000000001"), made(1, "GPU-1a2c0000-0000-0000-0000-000000000002"))


@pytest.mark.parametrize(
    ("choice", "index"),
    [(None, 0), ("0", 0), ("1", 1), ("GPU-1a2c", 1), ("1A2B", 0), (GPUS[1].uuid, 1)],
)
def test_a_gpu_is_picked_by_index_uuid_or_a_beginning_of_it(choice: str | None, index: int) -> None:
    assert gpu.pick(GPUS, choice).index == index


@pytest.mark.parametrize(
    ("choice", "problem"),
    [("2", "is no GPU"), ("GPU-1a2", "means several GPUs"), ("", "is no GPU"), ("x", "is no GPU")],
)
def test_another_choice_names_the_gpus_there_are(choice: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        gpu.pick(GPUS, choice)
    assert caught.value.field == "gpu"
    assert "1 (NVIDIA H200, GPU-1a2c" in caught.value.message


def test_throttle_bits_have_names_and_unknown_ones_are_kept() -> None:
    assert gpu.throttle_names(0) == ()
    assert gpu.throttle_names(0x1 | 0x4 | 0x40) == ("gpu_idle", "sw_power_cap", "hw_thermal_slowdown")
    assert gpu.throttle_names(0x2 | 0x8000) == ("applications_clocks_setting", "unknown_0x8000")


def test_unknown_is_neither_busy_nor_throttled() -> None:
    assert GpuState().throttled is None
    assert gpu.busy_reasons(GpuState()) == ()


def test_what_disturbs_a_measurement_is_said() -> None:
    state = GpuState(utilization=0.4, throttle_reasons=("gpu_idle", "sw_power_cap"), compute_processes=(11, 12))
    assert gpu.busy_reasons(state, own_processes=[11]) == (
        "1 other compute process(es): 12",
        "utilization is 40%",
        "clocks are held down: sw_power_cap",
    )
    idle = GpuState(utilization=0.02, throttle_reasons=("gpu_idle",), compute_processes=(11,))
    assert gpu.busy_reasons(idle, own_processes=[11]) == ()
    assert idle.throttled is False


def test_facts_hold_only_what_is_known() -> None:
    assert Gpu(0, None, "X", None, None, None, None, "13.0").facts() == {"gpu": "X", "cuda": "13.0"}


def test_uuid_and_cuda_version_as_the_driver_writes_them() -> None:
    assert gpu._uuid_text(bytes(range(16))) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert gpu._cuda_version(12080) == "12.8"
    assert gpu._cuda_version(None) is None


def test_without_a_gpu_the_reason_and_the_remedy_are_said() -> None:
    if gpu.list_gpus():
        assert gpu.select("0").index == 0
        assert gpu.read_state(gpu.select("0")).memory_used_bytes is not None
        return
    assert gpu.unavailable()
    assert gpu.read_state(GPUS[0]) == GpuState()
    with pytest.raises(EnvironmentFailure, match="no GPU: "):
        gpu.select("0")
