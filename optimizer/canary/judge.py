"""What a step's evidence means: accepted, more is needed, or back to the baseline. Pure: values in, values out.

Two kinds of checks. *Exact* ones count: failures by reason, answers beyond tolerance, NaN, restarts, and memory that
grows; one that fails is critical and needs no statistics to excuse it. *Non-inferiority* asks of latency percentiles
and throughput that the candidate be shown to be no worse than a stated margin: the one-sided confidence bound must lie
within it. "No significant difference" would be no answer, since too little data shows none either.

Looking at growing data several times raises the odds of an error, so the level of each look is the stated one divided
by the number of looks (Bonferroni). To be accepted all checks must pass, so passing needs no further correction
(intersection-union test, Berger 1982); to be shown worse one of several is enough, so that is divided by their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from optimizer.canary.evidence import ArmWindow, StepEvidence, WindowPair
from optimizer.judge.statistics import bonferroni, bounds, summarize, t_quantile
from optimizer.judge.tails import compare_tails
from optimizer.records.parity import Tolerance

MEMORY_ALPHA = 1e-3
"""Level of "memory grows". Far below the others: it is critical, and looked at after every window."""
MEMORY_WINDOWS = 4
MEMORY_SETTLING = 1
"""Windows whose growth is not counted: buffers and arenas fill with the first requests."""
SERVER_FAILURE_ALPHA = 1e-3
PERCENTILES = (50.0, 90.0, 99.0)


class State(str, Enum):
    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    """Asked for, and not to be told yet: stands in the way."""
    UNSEEN = "unseen"
    """Not to be told, and not asked for at this step."""


class Outcome(str, Enum):
    ACCEPT = "accept"
    MORE = "more"
    ROLL_BACK = "roll_back"


@dataclass(frozen=True)
class Rules:
    """Margins are fractions: 0.05 is 5%. ``looks`` are the numbers of usable pairs at which speed is judged."""

    latency_margin: Mapping[str, float] = field(default_factory=lambda: {"p50": 0.05, "p90": 0.05, "p99": 0.05})
    throughput_margin: float = 0.03
    confidence: float = 0.95
    looks: tuple[int, ...] = (4, 8, 16)
    comparisons: int = 4603
    """Comparisons a step must make before it can be accepted."""
    detect_confidence: float = 0.99
    max_failures: int = 0
    """Failures for one reason that are let pass where the baseline had none for it."""
    memory_margin_bytes: float = 1024.0
    """Growth a request beyond the baseline's."""
    memory_floor_bytes: float = 8 * 2**20
    """Growth over the step below which nothing is called a leak."""
    check_memory: bool = True
    tolerances: tuple[Tolerance, ...] = ()
    p99_required: bool = True
    """Whether a p99 that cannot be told stands in the way; shown to be worse it always does."""


@dataclass(frozen=True)
class Check:
    name: str
    state: State
    text: str
    critical: bool = False
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class StepVerdict:
    outcome: Outcome
    reason: str
    checks: tuple[Check, ...]
    pairs: int
    comparisons: int
    distinct: int
    requests: tuple[int, int]
    """Answered by baseline and candidate."""
    detectable: float | None
    """Rate of wrong answers that would have shown at least once with ``detect_confidence``; ``None``: none compared."""
    power: str
    """The same in words."""
    critical: bool = False


def judge(evidence: StepEvidence, rules: Rules) -> StepVerdict:
    """The verdict on one step so far. ``MORE`` is not a verdict against the candidate: it asks for more windows."""
    checks = [*exact_checks(evidence, rules), *(speed_checks(evidence, rules) if evidence.timed else ())]
    failed = [check for check in checks if check.state is State.FAIL]
    unknown = [check for check in checks if check.state is State.UNKNOWN]
    if failed:
        # The critical reason first: a dead candidate is also slow.
        failed.sort(key=lambda check: not check.critical)
        outcome, reason = Outcome.ROLL_BACK, "; ".join(f"{check.name}: {check.text}" for check in failed)
    elif unknown:
        outcome, reason = Outcome.MORE, "; ".join(f"{check.name}: {check.text}" for check in unknown)
    else:
        outcome, reason = Outcome.ACCEPT, "every check passed"
    comparisons = evidence.comparisons
    return StepVerdict(
        outcome=outcome,
        reason=reason,
        checks=tuple(checks),
        pairs=len(evidence.pairs),
        comparisons=comparisons,
        distinct=max((pair.compared.distinct for pair in evidence.pairs), default=0),
        requests=evidence.requests(),
        detectable=detectable_rate(comparisons, rules.detect_confidence) if comparisons else None,
        power=power_text(evidence, rules),
        critical=any(check.critical for check in failed),
    )


# Exact checks


def exact_checks(evidence: StepEvidence, rules: Rules) -> list[Check]:
    return [
        answer_check(evidence, rules),
        finite_check(evidence),
        failure_check(evidence, rules),
        server_failure_check(evidence.pairs),
        restart_check(evidence.pairs),
        *([memory_check(evidence.pairs, rules)] if rules.check_memory else []),
    ]


def answer_check(evidence: StepEvidence, rules: Rules) -> Check:
    compared = [pair.compared for pair in evidence.pairs]
    total = evidence.comparisons
    mismatches = sum(each.mismatches for each in compared)
    if mismatches:
        first = next(each.first for each in compared if each.mismatches)
        return Check(
            "answers", State.FAIL, f"{mismatches} of {total} answers beyond tolerance, first: {first}", critical=True
        )
    counted: dict[str, tuple[int, int]] = {}
    for each in compared:
        for name, (misses, units) in each.counted.items():
            before = counted.get(name, (0, 0))
            counted[name] = (before[0] + misses, before[1] + units)
    for tolerance in rules.tolerances:
        for name, (misses, units) in counted.items():
            if name.partition(" ")[2] == tolerance.text and units and total >= rules.comparisons:
                loss = misses / units
                if loss > tolerance.threshold:
                    text = f"output {name.partition(' ')[0]}: {misses} of {units} differ, {tolerance.text} is asked for"
                    return Check("answers", State.FAIL, text, critical=True)
    if total < rules.comparisons:
        return Check("answers", State.UNKNOWN, f"{total} of {rules.comparisons} comparisons made")
    return Check("answers", State.PASS, f"{total} answers within tolerance")


def finite_check(evidence: StepEvidence) -> Check:
    bad = sum(pair.compared.non_finite for pair in evidence.pairs)
    if bad:
        first = next(pair.compared.first for pair in evidence.pairs if pair.compared.non_finite)
        text = f"{bad} answers hold NaN or infinities that are not expected, first: {first}"
        return Check("non_finite", State.FAIL, text, critical=True)
    return Check("non_finite", State.PASS, "no unexpected NaN or infinity")


def failure_check(evidence: StepEvidence, rules: Rules) -> Check:
    """By reason. One that the baseline does not show may come ``max_failures`` times; one that both show may not come
    significantly more often to the candidate (exact conditional binomial test)."""
    baseline = _sum_by_reason([pair.baseline.failures for pair in evidence.pairs])
    candidate = _sum_by_reason([pair.candidate.failures for pair in evidence.pairs])
    asked = [
        done + sum(failed.values()) for done, failed in zip(evidence.requests(), (baseline, candidate), strict=True)
    ]
    if not asked[1]:
        return Check("failures", State.UNKNOWN, "no request was sent to the candidate")
    for reason, count in sorted(candidate.items(), key=lambda item: -item[1]):
        others = baseline.get(reason, 0)
        if others == 0:
            if count > rules.max_failures:
                text = f"{count} of {asked[1]} requests failed with {reason}; none did at the baseline"
                return Check("failures", State.FAIL, text, critical=True)
        elif more_often(count, asked[1], others, asked[0]) < 1 - rules.detect_confidence:
            text = f"{count} of {asked[1]} requests failed with {reason}, {others} of {asked[0]} at the baseline"
            return Check("failures", State.FAIL, text, critical=True)
    total = sum(candidate.values())
    return Check("failures", State.PASS, f"{total} of {asked[1]} requests failed" if total else "no request failed")


def server_failure_check(pairs: Sequence[WindowPair]) -> Check:
    """What the server itself counted, the users' requests included. A bad request of a user's fails at both arms alike,
    so rates are compared, not counts."""
    sums = []
    for arms in ([pair.baseline for pair in pairs], [pair.candidate for pair in pairs]):
        told = [arm for arm in arms if arm.server_requests is not None]
        by_reason = _sum_by_reason([arm.server_failures for arm in told])
        sums.append((sum(arm.server_requests or 0 for arm in told), by_reason, len(told)))
    (base_requests, base_failures, base_known), (requests, failures, known) = sums
    if not known or not base_known:
        return Check("server_failures", State.UNSEEN, "the servers' statistics could not be read")
    failed, base_failed = sum(failures.values()), sum(base_failures.values())
    if failed and more_often(failed, requests, base_failed, base_requests) < SERVER_FAILURE_ALPHA:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(failures.items()))
        text = (
            f"the server counted {failed} failures of {requests} ({reasons}), {base_failed} of {base_requests} before"
        )
        return Check("server_failures", State.FAIL, text, critical=True)
    return Check("server_failures", State.PASS, f"the server counted {failed} failures of {requests} requests")


def restart_check(pairs: Sequence[WindowPair]) -> Check:
    for pair in pairs:
        if pair.candidate.restarted:
            return Check("restarts", State.FAIL, pair.candidate.restarted, critical=True)
    if not pairs:
        return Check("restarts", State.UNKNOWN, "no window yet")
    return Check("restarts", State.PASS, "the candidate's server kept running")


def memory_check(pairs: Sequence[WindowPair], rules: Rules) -> Check:
    """Growth a request of the candidate, less the baseline's where that is known, over the windows after the first."""
    rates: list[float] = []
    weights: list[int] = []
    for pair in pairs:
        own = _growth(pair.candidate)
        if own is None:
            continue
        other = _growth(pair.baseline)
        rates.append(own - (other or 0.0))
        weights.append(pair.candidate.requests)
    rates, weights = rates[MEMORY_SETTLING:], weights[MEMORY_SETTLING:]
    known = [pair.candidate for pair in pairs if pair.candidate.memory_before is not None]
    if not known and len(pairs) >= MEMORY_WINDOWS:
        return Check("memory", State.UNKNOWN, "the memory of the candidate's server cannot be read from here")
    if len(rates) < MEMORY_WINDOWS:
        return Check("memory", State.UNKNOWN, f"{len(rates)} of {MEMORY_WINDOWS} windows to tell a trend")
    summary = summarize(rates)
    total = sum(rate * weight for rate, weight in zip(rates, weights, strict=True))
    lower, _ = bounds(summary, MEMORY_ALPHA)
    _, upper = bounds(summary, 1 - rules.confidence)
    said = f"{summary.mean:,.0f} bytes a request beyond the baseline"
    if lower > rules.memory_margin_bytes and total > rules.memory_floor_bytes:
        text = f"grows by {said} (at least {lower:,.0f}), {total / 2**20:,.1f} MiB in this step"
        return Check("memory", State.FAIL, text, critical=True, lower=lower)
    if upper <= rules.memory_margin_bytes or total <= rules.memory_floor_bytes:
        return Check("memory", State.PASS, f"{said}, {total / 2**20:,.1f} MiB in this step", upper=_finite(upper))
    return Check("memory", State.UNKNOWN, f"{said}, at most {upper:,.0f}; {rules.memory_margin_bytes:,.0f} is allowed")


def _growth(window: ArmWindow) -> float | None:
    """Bytes a request."""
    if window.memory_before is None or window.memory_after is None or not window.requests:
        return None
    return (window.memory_after - window.memory_before) / window.requests


# Speed


def speed_checks(evidence: StepEvidence, rules: Rules) -> list[Check]:
    usable = [pair for pair in evidence.pairs if pair.usable]
    reached = [look for look in rules.looks if look <= len(usable)]
    names = [f"p{percentile:g}" for percentile in PERCENTILES]
    if not reached:
        text = f"{len(usable)} of {rules.looks[0]} usable window pairs"
        return [Check(name, State.UNKNOWN, text) for name in (*names, "throughput")]
    # Judged on what the last look saw: pairs after it wait for the next one.
    seen = usable[: reached[-1]]
    alpha = bonferroni(1 - rules.confidence, len(rules.looks))
    return [
        *(_percentile_check(seen, percentile, alpha, rules) for percentile in PERCENTILES),
        _throughput_check(seen, alpha, rules),
    ]


def _percentile_check(pairs: Sequence[WindowPair], percentile: float, alpha: float, rules: Rules) -> Check:
    name = f"p{percentile:g}"
    margin = rules.latency_margin[name]
    windows = [(pair.baseline.latencies_us, pair.candidate.latencies_us) for pair in pairs]
    missing = State.UNKNOWN if percentile < 99 or rules.p99_required else State.UNSEEN
    accept = compare_tails(windows, alpha, rules.confidence, percentiles=(percentile,))
    if accept is None:
        have = min((sum(len(window[side]) for window in windows) for side in (0, 1)), default=0)
        needed = math.ceil(round(10 / (1 - percentile / 100), 6))
        return Check(name, missing, f"{have} answers of each arm, {needed} are needed")
    ratio, upper = accept.ratio.ratio, accept.ratio.upper
    # The same standard error at the level at which one of several may condemn.
    error = math.log(upper / ratio) / t_quantile(1 - alpha, accept.ratio.pairs - 1)
    lower = ratio / math.exp(error * t_quantile(1 - bonferroni(alpha, len(PERCENTILES) + 1), accept.ratio.pairs - 1))
    said = (
        f"{ratio - 1:+.1%} ({accept.reference_us / 1e3:.2f} to {accept.candidate_us / 1e3:.2f} ms), "
        f"between {lower - 1:+.1%} and {upper - 1:+.1%}; {margin:.0%} is allowed"
    )
    state = State.FAIL if lower > 1 + margin else State.PASS if upper <= 1 + margin else missing
    return Check(name, state, said, ratio=ratio, lower=_finite(lower), upper=_finite(upper))


def _throughput_check(pairs: Sequence[WindowPair], alpha: float, rules: Rules) -> Check:
    ratios = [
        math.log(pair.candidate.throughput / pair.baseline.throughput)
        for pair in pairs
        if pair.candidate.throughput > 0 and pair.baseline.throughput > 0
    ]
    summary = summarize(ratios)
    if summary.n < 2:
        return Check("throughput", State.UNKNOWN, f"{summary.n} window pairs with answers from both arms")
    lower, _ = bounds(summary, alpha)
    _, upper = bounds(summary, bonferroni(alpha, len(PERCENTILES) + 1))
    ratio, lower, upper = math.exp(summary.mean), math.exp(lower), math.exp(upper)
    margin = rules.throughput_margin
    said = f"{ratio - 1:+.1%}, between {lower - 1:+.1%} and {upper - 1:+.1%}; a loss of {margin:.0%} is allowed"
    state = State.FAIL if upper < 1 - margin else State.PASS if lower >= 1 - margin else State.UNKNOWN
    return Check("throughput", state, said, ratio=ratio, lower=_finite(lower), upper=_finite(upper))


# Counting


def comparisons_needed(rate: float, confidence: float = 0.99) -> int:
    """Comparisons that show a fault of that rate at least once: (1 − rate)^n ≤ 1 − confidence. 4,603 for 1 in 1,000."""
    if not 0 < rate < 1 or not 0 < confidence < 1:
        raise ValueError(f"rate {rate} and confidence {confidence} are probabilities")
    # Rounded so that a quotient that is whole up to rounding is not raised by one.
    return math.ceil(round(math.log1p(-confidence) / math.log1p(-rate), 9))


def detectable_rate(comparisons: int, confidence: float = 0.99) -> float:
    """Smallest rate of faults that so many comparisons show at least once with that confidence."""
    return -math.expm1(math.log1p(-confidence) / comparisons)


def more_often(count: int, of: int, others: int, of_others: int) -> float:
    """One-sided p value of "the candidate fails no more often": given all failures, each falls to the candidate with
    the odds of its share of the requests (exact conditional test of two Poisson rates, Przyborowski and Wilenski 1940).
    """
    if count == 0 or of == 0:
        return 1.0
    if of_others == 0:
        return 1.0
    from scipy.special import bdtrc

    return float(bdtrc(count - 1, count + others, of / (of + of_others)))


def power_text(evidence: StepEvidence, rules: Rules) -> str:
    total, confidence = evidence.comparisons, rules.detect_confidence
    parts = []
    if total:
        rate = detectable_rate(total, confidence)
        parts.append(
            f"{total:,} comparisons: a wrong answer in 1 of {1 / rate:,.0f} would have shown with {confidence:.0%} odds"
        )
    else:
        parts.append("no comparison: no wrong answer could have shown")
    sent = evidence.requests()[1]
    if sent:
        rate = detectable_rate(sent, confidence)
        parts.append(f"{sent:,} requests: a failure in 1 of {1 / rate:,.0f} would have")
    return "; ".join(parts)


def _sum_by_reason(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for reason, count in each.items():
            total[reason] = total.get(reason, 0) + count
    return total


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
