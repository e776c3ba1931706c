"""The real searcher and the real judge on simulated measurements: how often they are wrong, and what they cost.

    python -m benchmarks.search_simulation [--studies N] [--null-studies N] [--seed S] [--output FILE]

A study has 200 routes whose true ln ratios are known, A/A pairs that measure the noise, a race, and a confirmation of
its finalists on fresh pairs, as a real study has; only the measurement is drawn. Two others get the same truth:

- ``flat``: the race's pairs spread evenly over all routes, the same confirmation and judge;
- ``exhaustive``: every route is confirmed, with as many pairs as the judge asks for at this noise and 200 finalists,
  and the same bounds corrected for 200. Drawn as sample means and variances, which have the same distribution.

Regret is the best true gain (0 where nothing is better than what is there) less the true gain of what was decided.
"""

from __future__ import annotations

import argparse
import math
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optimizer.durable import write_json
from optimizer.judge.decide import Confirmation, JudgeSettings, decide, out_of_reach, pairs_needed
from optimizer.judge.statistics import bonferroni, noise_of, t_quantile
from optimizer.records.candidate import Pair, Rejection
from optimizer.records.decision import Verdict
from optimizer.records.parity import Parity
from optimizer.records.route import Candidate, Route
from optimizer.search.race import Race, RaceSettings
from optimizer.testing.laboratory import SimulatedLaboratory

ROUTES = 200
NOISE_PAIRS = 8
SPREADS = (0.01, 0.03, 0.10)
NOISES = (0.01, 0.015, 0.05)
CLOSE = 0.01
"""Regret up to which a study counts as having found the best."""
_UNLIMITED = JudgeSettings(max_pairs=10_000)


@dataclass(frozen=True)
class Outcome:
    promoted: bool
    gain: float
    """True ln ratio of what was decided; 0 where what is there stays."""
    pairs: int


def routes(count: int = ROUTES) -> list[Route]:
    return [Route.of({f"knob_{number:03d}": "on"}) for number in range(count)]


def race_study(truth: Sequence[float], noise: float, seed: int, names: Sequence[Route]) -> tuple[Outcome, int]:
    """A whole study, as the product runs one; also the number of racing pairs."""
    laboratory, noise_found = _laboratory(truth, noise, seed, names)
    standings = Race(names, RaceSettings()).search(laboratory)
    racing = laboratory.pairs_run
    return _confirmed(laboratory, [standing.candidate for standing in standings], noise_found), racing


def flat_study(truth: Sequence[float], noise: float, seed: int, names: Sequence[Route], racing: int) -> Outcome:
    """The same number of pairs without a race."""
    laboratory, noise_found = _laboratory(truth, noise, seed, names)
    each, rest = divmod(racing, len(names))
    scores = []
    for place, name in enumerate(names):
        candidate = laboratory.candidate(name)
        pairs = [_pair(laboratory, candidate, index, "race") for index in range(each + (place < rest))]
        scores.append((-sum(pair.log_ratio for pair in pairs) / max(1, len(pairs)), place, candidate))
    scores.sort(key=lambda score: score[:2])
    return _confirmed(laboratory, [candidate for _, _, candidate in scores], noise_found)


def exhaustive_study(truth: Sequence[float], noise: float, seed: int) -> Outcome:
    settings = _UNLIMITED
    count = len(truth)
    pairs = pairs_needed(noise, settings.min_gain, count, settings=settings)
    stream = np.random.default_rng([seed, 77])
    means = np.asarray(truth) + noise / math.sqrt(pairs) * stream.standard_normal(count)
    deviations = noise * np.sqrt(stream.chisquare(pairs - 1, count) / (pairs - 1))
    quantile = t_quantile(1 - bonferroni(1 - settings.confidence, count), pairs - 1)
    lower = means - quantile * deviations / math.sqrt(pairs)
    accepted = lower > math.log1p(settings.min_gain)
    promoted = bool(accepted.any())
    best = int(np.argmax(np.where(accepted, means, -np.inf)))
    return Outcome(promoted, truth[best] if promoted else 0.0, pairs * count)


def _laboratory(
    truth: Sequence[float], noise: float, seed: int, names: Sequence[Route]
) -> tuple[SimulatedLaboratory, float]:
    """With the noise as A/A pairs show it, not as it is."""
    found = SimulatedLaboratory({}, noise=noise, seed=seed)
    reference = found.default
    noise_found = noise_of([_pair(found, reference, index, "noise") for index in range(NOISE_PAIRS)]).sd_upper
    laboratory = SimulatedLaboratory(
        dict(zip(names, truth, strict=True)), noise=noise, p99_noise=2 * noise, seed=seed, known_noise=noise_found
    )
    laboratory.pairs_run = 0
    return laboratory, noise_found


def _confirmed(laboratory: SimulatedLaboratory, candidates: Sequence[Candidate], noise: float) -> Outcome:
    settings = _UNLIMITED
    finalists = candidates[: RaceSettings().finalists]
    pairs = pairs_needed(noise, settings.min_gain, len(finalists), settings=settings)
    confirmations = [
        Confirmation(
            candidate.id,
            candidate.label,
            _confirming(laboratory, candidate, pairs, len(finalists)),
            Parity(candidate.id, "held_out", 100, ()),
        )
        for candidate in finalists
    ]
    decision = decide(confirmations, settings)
    taken = laboratory.pairs_run + NOISE_PAIRS
    if decision.verdict is not Verdict.WINNER:
        return Outcome(False, 0.0, taken)
    winner = next(candidate for candidate in finalists if candidate.id == decision.winner)
    return Outcome(True, laboratory.truth.get(winner.route, 0.0), taken)


def _confirming(laboratory: SimulatedLaboratory, candidate: Candidate, pairs: int, finalists: int) -> tuple[Pair, ...]:
    done: list[Pair] = []
    while len(done) < pairs and not out_of_reach(done, finalists, _UNLIMITED):
        done.append(_pair(laboratory, candidate, len(done), "confirm"))
    return tuple(done)


def _pair(laboratory: SimulatedLaboratory, candidate: Candidate, index: int, purpose: str) -> Pair:
    pair = laboratory.pair(candidate, index, purpose)
    if isinstance(pair, Rejection):
        raise TypeError(f"nothing is rejected here: {pair.message}")
    return pair


def null_studies(studies: int, noise: float, seed: int, gain: float = 0.0, count: int = ROUTES) -> dict[str, float]:
    """Every route is worth ``gain``; at 0 nothing is better than the reference, at ``min_gain`` nothing is enough."""
    names = routes(count)
    truth = [gain] * count
    outcomes = [race_study(truth, noise, seed + number, names)[0] for number in range(studies)]
    promoted = sum(outcome.promoted for outcome in outcomes)
    return {
        "true_gain": gain,
        "noise": noise,
        "studies": studies,
        "promoted": promoted,
        "promoted_fraction": promoted / studies,
        "promoted_upper_95": _upper_bound(promoted, studies),
        "pairs": float(np.mean([outcome.pairs for outcome in outcomes])),
    }


def cell(spread: float, noise: float, studies: int, seed: int, count: int = ROUTES) -> dict[str, object]:
    """One spread of true gains (standard deviation of ln ratio, mean 0) at one noise."""
    names = routes(count)
    found: dict[str, list[Outcome]] = {"race": [], "flat": [], "exhaustive": []}
    bests = []
    for number in range(studies):
        truth = [float(gain) for gain in np.random.default_rng([seed + number, 5]).normal(0.0, spread, count)]
        bests.append(max(0.0, *truth))
        outcome, racing = race_study(truth, noise, seed + number, names)
        found["race"].append(outcome)
        found["flat"].append(flat_study(truth, noise, seed + number, names, racing))
        found["exhaustive"].append(exhaustive_study(truth, noise, seed + number))
    row: dict[str, object] = {"spread": spread, "noise": noise, "studies": studies, "best_gain": float(np.mean(bests))}
    for name, outcomes in found.items():
        regrets = [best - outcome.gain for best, outcome in zip(bests, outcomes, strict=True)]
        row[name] = {
            "within_1_percent": float(np.mean([regret <= CLOSE for regret in regrets])),
            "mean_regret": float(np.mean(regrets)),
            "promoted": float(np.mean([outcome.promoted for outcome in outcomes])),
            "worse_than_reference": float(np.mean([outcome.gain < 0 for outcome in outcomes])),
            "pairs": float(np.mean([outcome.pairs for outcome in outcomes])),
        }
    row["pairs_of_exhaustive"] = _pairs(row, "race") / _pairs(row, "exhaustive")
    return row


def _pairs(row: dict[str, object], name: str) -> float:
    part = row[name]
    return float(part["pairs"]) if isinstance(part, dict) else math.nan


def _upper_bound(events: int, trials: int) -> float:
    """Clopper-Pearson, one-sided 95%."""
    from scipy.special import betaincinv

    return 1.0 if events == trials else float(betaincinv(events + 1, trials - events, 0.95))


def simulate(studies: int, nulls: int, seed: int, say: Callable[[str], None] = lambda _: None) -> dict[str, object]:
    started = time.process_time()
    null = [null_studies(nulls, 0.015, seed)]
    say(f"nothing better, {nulls} studies: {null[0]['promoted']:.0f} promoted")
    for noise in NOISES:
        null.append(null_studies(max(20, nulls // 4), noise, seed + 10**6, gain=math.log1p(0.01)))
        say(f"all at the minimum gain, noise {noise:.1%}: {null[-1]['promoted_fraction']:.1%} promoted")
    table = []
    say("spread noise | race: within 1%, regret, pairs | flat | exhaustive | pairs of exhaustive")
    for spread in SPREADS:
        for noise in NOISES:
            row = cell(spread, noise, studies, seed)
            table.append(row)
            parts = [row[name] for name in ("race", "flat", "exhaustive")]
            shown = " | ".join(
                f"{part['within_1_percent']:5.1%} {part['mean_regret']:6.2%} {part['pairs']:7.0f}"
                for part in parts
                if isinstance(part, dict)
            )
            say(f"{spread:5.0%} {noise:5.1%} | {shown} | {row['pairs_of_exhaustive']:.1%}")
    return {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.search_simulation", *sys.argv[1:]]),
        "seed": seed,
        "routes": ROUTES,
        "noise_pairs": NOISE_PAIRS,
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "cpu_seconds": round(time.process_time() - started, 1),
        "null": null,
        "table": table,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=300, help="studies a cell of the table")
    parser.add_argument("--null-studies", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "search_simulation.json")
    options = parser.parse_args()
    results = simulate(options.studies, options.null_studies, options.seed, lambda line: print(line, flush=True))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.output, results)
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
