"""Studies of models that sleep a known time: the truth of every candidate is known, server and load are real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optimizer.config import load_settings
from optimizer.preparation import prepare
from optimizer.progress import silent
from optimizer.records.decision import Decision
from optimizer.study import run_study
from optimizer.testing.models import sleep_model
from optimizer.testing.variants import Variant, with_variants

SERVICE_S = 0.008


def sleeping_study(
    directory: Path, gains: Sequence[float], *, seed: int = 0, pairs: int | None = None, noise_pairs: int = 4
) -> Decision:
    """The decision over one candidate a gain: it does 1 + gain times the requests that what is there does. ``pairs``
    in the confirmation; by default the measured noise sets them."""
    repository = directory / "repository"
    sleep_model("sleep", service_s=SERVICE_S).write(repository)
    settings = load_settings(
        None,
        {
            "tolerance": ["lInf<=1e-6"],
            "builder.family": "unchanged",
            "inputs.synthetic_count": 8,
            "inputs.seed": seed,
            "load.duration_s": 0.25,
            "load.warmup_s": 0,
            "load.concurrency": [2],
            "judge.noise_pairs": noise_pairs,
            "judge.max_pairs": 40,
            **({"judge.pairs": pairs} if pairs else {}),
            # A sleeping model on a busy machine has a tail of the machine's own.
            "judge.p99_guard": 3,
        },
    )
    variants = {
        f"v{number:02d}": Variant.of(sleep_model("sleep", service_s=SERVICE_S / (1 + gain)))
        for number, gain in enumerate(gains)
    }
    # The files differ, so that no two come out as the same engine.
    variants = {
        name: Variant({**one.files, "note.txt": name.encode()}, one.parameters) for name, one in variants.items()
    }
    preparation = with_variants(prepare(repository, "sleep", settings, directory / "study"), variants)
    return run_study(preparation, silent).decision
