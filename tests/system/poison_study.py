"""Whole studies with a candidate that is faster than what is there and wrong in one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from optimizer.config import load_settings
from optimizer.preparation import prepare
from optimizer.progress import silent
from optimizer.records.samples import Sample, SampleSet
from optimizer.study import StudyResult, run_study
from optimizer.testing.poison import INPUT, SCORES, SUM, poison_model, poison_samples, right_answer
from optimizer.testing.variants import Variant, with_variants

HONEST_S, NOISY_S, WRONG_S = 0.006, 0.003, 0.002
TIGHT = ("rel_l2<=5e-3",)
FLOOR = (f"{SCORES}:top1>=0.999", f"{SUM}:lInf<=1e-4")


@dataclass(frozen=True)
class Poison:
    """One fault and the words of the reason for which it must be thrown out, at which stage."""

    fault: str
    stage: str
    code: str
    words: tuple[str, ...]
    tolerance: tuple[str, ...] = TIGHT
    classes: int = 10
    samples: int = 40
    rows: int = 1
    scores: Literal["FP32", "BF16"] = "FP32"


POISONS = {
    poison.fault: poison
    for poison in (
        Poison("swap", "validate", "accuracy", ("in batches: output SCORES: rel_l2 loss", "of a batch of")),
        Poison("inf", "validate", "defect", ("non_finite: output SCORES: inf where", "sample tune-39")),
        Poison("nan", "validate", "defect", ("nan where", "1 of 10000 values"), classes=10_000),
        Poison("held_out", "validate", "held_out", ("held-out samples: output SCORES: rel_l2 loss 0.2",)),
        Poison("stale", "validate", "accuracy", ("output SCORES: rel_l2 loss",)),
        # Found by nothing but the answers that are kept while the load runs.
        Poison("later", "validate", "under_load", ("under load: ",)),
        # BF16 itself is within 0.2%.
        Poison("off", "validate", "accuracy", ("output SCORES: rel_l2 loss 0.0",), scores="BF16"),
        Poison("batch8", "validate", "accuracy", ("in batches: output SCORES: rel_l2 loss 0.1", "of a batch of 8")),
        Poison("dtype", "validate", "defect", ("wrong_datatype: output SCORES: expected FP32, got FP64",)),
        Poison("missing", "validate", "defect", ("missing_output: output SUM",)),
        # 3,000 rows a set, 60 a request.
        Poison("flips", "validate", "accuracy", ("top1 loss", "exceeds 0.001"), FLOOR, samples=50, rows=60),
    )
}


def poison_study(
    directory: Path,
    poison: Poison,
    *,
    seed: int = 0,
    also: Mapping[str, Variant] | None = None,
    window_s: float = 0.15,
) -> StudyResult:
    """``also``: candidates besides the wrong one."""
    repository = directory / "repository"
    batch = 16 if poison.rows == 1 else 64
    make = partial(poison_model, classes=poison.classes, max_batch_size=batch, scores=poison.scores)
    make("honest", name="poison", service_s=HONEST_S).write(repository)
    wrong = make(poison.fault, service_s=WRONG_S)
    settings = load_settings(
        None,
        {
            "tolerance": list(poison.tolerance),
            "builder.family": "unchanged",
            "inputs.synthetic_count": 8,
            "inputs.reference": "golden",
            "inputs.seed": seed,
            "load.duration_s": window_s,
            "load.warmup_s": 0,
            "load.concurrency": [4],
            "judge.pairs": 3,
            "judge.noise_pairs": 3,
            "judge.p99_guard": 2,
        },
    )
    preparation = with_variants(
        prepare(repository, "poison", settings, directory / "study"),
        {poison.fault: Variant.of(wrong), **(also or {})},
        tune=sample_set(poison, seed, held_out=False),
        held_out=sample_set(poison, seed, held_out=True),
    )
    return run_study(preparation, silent)


def sample_set(poison: Poison, seed: int, *, held_out: bool) -> SampleSet:
    name = "held_out" if held_out else "tune"
    samples = poison_samples(poison.samples * poison.rows, seed, name=name, held_out=held_out, classes=poison.classes)
    if poison.rows == 1:
        return samples
    rows = np.concatenate([sample.inputs[INPUT] for sample in samples.samples])
    parts = np.split(rows, poison.samples)
    return SampleSet(
        name,
        tuple(
            Sample(f"{name}-{number}", {INPUT: part}, right_answer(part, poison.classes))
            for number, part in enumerate(parts)
        ),
        samples.origin,
        references="golden",
    )


def thrown_out(result: StudyResult, poison: Poison) -> str:
    """The reason why the wrong candidate is out; it must be the right one."""
    decision = result.decision
    (reason,) = [text for text in decision.excluded.values() if text.startswith(f"{poison.stage}/{poison.code}")]
    for word in poison.words:
        assert word in reason
    assert decision.winner_label != f"-variant={poison.fault}"
    return reason
