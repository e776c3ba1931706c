"""What the worker does with a timing cache that the builder refuses, and with a library that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optimizer.engines.tensorrt.failures import reason_from_log
from optimizer.engines.tensorrt.settings import allow_shared_profiles
from optimizer.engines.tensorrt.timing_cache import TimingCache
from optimizer.records.engine import BuildFailureReason


class Config:
    """As TensorRT 8.6: takes a cache of another device only where a mismatch is to be ignored."""

    def __init__(self, *, strict: bool, log: list[str]) -> None:
        self.strict, self.log = strict, log
        self.attached: bytes | None = None

    def create_timing_cache(self, data: bytes) -> Any:
        return bytearray(data)

    def set_timing_cache(self, cache: bytearray, ignore_mismatch: bool) -> bool:
        if cache.startswith(b"garbage"):
            self.log.append("[W] The timing cache is invalid and will not be used")
            return False
        if cache and self.strict and not ignore_mismatch:
            return False
        self.attached = bytes(cache)
        return True


@pytest.mark.parametrize(
    ("data", "strict", "attached", "status"),
    [
        (None, True, b"", "new"),
        (b"entries", False, b"entries", "loaded 7 bytes"),
        (b"entries", True, b"entries", "loaded 7 bytes, past TensorRT's own comparison"),
        (b"garbage", True, b"", "incompatible cache set aside as a.cache.incompatible-0 ([W] The timing cache is"),
    ],
)
def test_a_cache_is_taken_or_set_aside_and_said_why(
    tmp_path: Path, data: bytes | None, strict: bool, attached: bytes, status: str
) -> None:
    file = tmp_path / "a.cache"
    if data is not None:
        file.write_bytes(data)
    log: list[str] = []
    config = Config(strict=strict, log=log)
    cache = TimingCache(file, log)
    cache.attach(config)
    assert config.attached == attached
    assert cache.status.startswith(status)
    assert file.exists() == (data == b"entries")


def test_a_missing_lean_runtime_is_not_available() -> None:
    line = "[E] 6: Unable to load library: libnvinfer_lean.so.8.6.0: cannot open shared object file"
    assert reason_from_log(line, BuildFailureReason.RETURNED_NOTHING) is BuildFailureReason.NOT_AVAILABLE


class Feature:
    PROFILE_SHARING_0806 = "sharing"


class WithFeatures:
    PreviewFeature = Feature


class Previews:
    def __init__(self) -> None:
        self.taken: dict[str, bool] = {}

    def set_preview_feature(self, feature: str, on: bool) -> None:
        self.taken[feature] = on

    def get_preview_feature(self, feature: str) -> bool:
        return self.taken.get(feature, False)


def test_profiles_are_shared_where_the_builder_knows_how() -> None:
    config = Previews()
    assert allow_shared_profiles(WithFeatures, config)
    assert config.taken == {"sharing": True}
    assert not allow_shared_profiles(object, Previews())
