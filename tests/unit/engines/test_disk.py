from __future__ import annotations

import shutil
from pathlib import Path

from optimizer.engines.disk import KERNELS_BYTES, estimate_disk


def test_every_engine_is_held_until_the_decision_and_the_winner_afterwards(tmp_path: Path) -> None:
    estimate = estimate_disk(1000, 7, tmp_path, plans=False, save_all=False)
    assert (estimate.per_engine_bytes, estimate.peak_bytes, estimate.kept_bytes) == (1000, 7000, 1000)
    assert estimate.enough


def test_all_are_kept_on_request(tmp_path: Path) -> None:
    assert estimate_disk(1000, 7, tmp_path, plans=False, save_all=True).kept_bytes == 7000


def test_a_plan_holds_kernels_besides_the_weights(tmp_path: Path) -> None:
    assert estimate_disk(1000, 1, tmp_path, plans=True, save_all=False).peak_bytes == 1500 + KERNELS_BYTES


def test_too_little_space_is_said_for_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    estimate = estimate_disk(shutil.disk_usage(tmp_path).total, 3, tmp_path / "a" / "b", plans=False, save_all=False)
    assert not estimate.enough
