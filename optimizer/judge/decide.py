"""From finalists' confirmation pairs to a decision. Pure: nothing is measured here, and racing data never get in.

Accepted is a finalist whose lower bound of exp(mean log ratio) over what is there, one-sided and Bonferroni-corrected
over all finalists, lies above 1 + the minimum gain, whose p99 is shown not to be worse than the guard, that answered
every request, and whose answers on the held-out samples are within the tolerance. Everything else keeps what is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optimizer.judge.statistics import (
    Summary,
    bonferroni,
    bounds,
    order_effect,
    required_pairs,
    summarize,
    usable_pairs,
)
from optimizer.judge.tails import Latencies, Tail, compare_tails
from optimizer.records.candidate import Pair, Rejection
from optimizer.records.decision import Decision, Finalist, Interval, KeepReason, Verdict
from optimizer.records.parity import Parity
from optimizer.records.route import AS_FOUND


@dataclass(frozen=True)
class JudgeSettings:
    """What it takes to replace what is there."""

    min_gain: float = 0.01
    """Smallest gain that is worth a change, as a fraction: the lower bound must lie above it."""
    confidence: float = 0.95
    """One-sided, for all finalists together."""
    p99_guard: float | None = 1.05
    """Largest tolerated p99 ratio, to be kept by its upper bound; ``None`` turns the guard off."""
    slo_p99_us: float | None = None
    """Instead of the guard: the candidate's p99 itself stays below this."""
    detect: float = 0.015
    """The confirmation is sized to find a gain that exceeds ``min_gain`` by this much …"""
    power: float = 0.8
    """… with this probability."""
    min_pairs: int = 6
    max_pairs: int = 48
    max_dropped: float = 1 / 3
    """Larger part of disturbed pairs at which a confirmation counts as too noisy."""


@dataclass(frozen=True)
class Confirmation:
    """Everything fresh about one finalist. ``pairs`` may be against as-found, against the default, or both."""

    candidate_id: str
    label: str
    pairs: tuple[Pair, ...]
    held_out: Parity | None = None
    rejection: Rejection | None = None
    """It failed while it was being confirmed."""
    latencies: Sequence[tuple[Latencies, Latencies]] = ()
    """Latencies (µs) of every request, reference and candidate, one pair of arrays a pair with the reference that must
    be beaten. Where given, the tail is judged over all of them together; else by the p99 of single windows."""


@dataclass(frozen=True)
class _Judged:
    finalist: Finalist
    keep_reason: KeepReason | None
    summary: Summary
    """Of the pairs with the reference that it must beat."""
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What the decision carries along from the study."""

    as_found_served: bool = True
    default_id: str = AS_FOUND
    """Candidate id of the default route; equal to as-found where the two are one."""
    noise: float | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    tolerance_given: bool = False
    held_out_samples: int = 0
    budget_spent: bool = False
    objective: str = "throughput"
    """For people; log ratios are oriented so that positive is better, whatever it is."""


def pairs_needed(
    noise: float, min_gain: float = 0.01, finalists: int = 3, *, settings: JudgeSettings | None = None
) -> int:
    """Confirmation pairs a finalist needs at this A/A noise (standard deviation of one pair's ln ratio).

    Sized to accept a true gain of ``min_gain`` + ``settings.detect`` with probability ``settings.power``: 12 pairs at
    1.5% noise and 3 finalists. Even, so that both orders occur equally often; between ``min_pairs`` and ``max_pairs``.
    """
    settings = settings or JudgeSettings()
    alpha = bonferroni(1 - settings.confidence, finalists)
    distance = math.log1p(min_gain + settings.detect) - math.log1p(min_gain)
    wanted = required_pairs(noise, distance, alpha, settings.power) if math.isfinite(noise) else settings.max_pairs
    return max(settings.min_pairs, min(settings.max_pairs, wanted + wanted % 2))


def out_of_reach(pairs: Sequence[Pair], finalists: int, settings: JudgeSettings | None = None) -> bool:
    """Whether a confirmation of several ``finalists`` may end before its time: ``pairs`` (with the reference that must
    be beaten, so far) put even the upper bound of the gain below the minimum.

    Looking again and again is free here: it can only keep what is there (stopping for futility; Jennison and Turnbull,
    Group Sequential Methods, 2000, chapter 4), so promotions do not become more frequent by it. Never before
    ``min_pairs``, only after equally many pairs of each order, and not while so many were disturbed that the decision
    would call it too noisy.
    """
    settings = settings or JudgeSettings()
    if len(pairs) % 2 or len(pairs) < settings.min_pairs:
        return False
    usable = usable_pairs(pairs)
    if len(usable.pairs) < settings.min_pairs or _mostly_disturbed(len(usable.dropped), len(pairs), settings):
        return False
    summary = summarize([pair.log_ratio for pair in usable.pairs])
    _, upper = bounds(summary, bonferroni(1 - settings.confidence, finalists))
    return upper < math.log1p(settings.min_gain)


def _mostly_disturbed(dropped: int, pairs: int, settings: JudgeSettings) -> bool:
    return dropped > settings.max_dropped * pairs


def interval(summary: Summary, alpha: float, confidence: float) -> Interval:
    """As ratios. ``confidence`` is what the bounds of all finalists hold with together."""
    lower, upper = bounds(summary, alpha)
    return Interval(_exp(summary.mean), _exp(lower), _exp(upper), confidence, summary.n)


def decide(
    confirmations: Sequence[Confirmation],
    settings: JudgeSettings | None = None,
    context: Context | None = None,
) -> Decision:
    """The winner, or what is there with the reason. ``confirmations`` are all finalists, failed ones included: each
    counts in the correction for several comparisons, whatever became of it.

    Where as-found could not be served, ``default_id`` is what must be beaten, and the decision says so. Of several
    accepted finalists the one with the highest estimate (less its standard error) wins, but one that is not shown to
    beat an accepted default route by the minimum gain gives way to it: the simpler route, at no demonstrated cost.
    """
    settings, context = settings or JudgeSettings(), context or Context()
    reference = AS_FOUND if context.as_found_served else context.default_id
    alpha = bonferroni(1 - settings.confidence, len(confirmations))
    judged = [_judge(each, reference, alpha, settings, context) for each in confirmations]
    caveats = list(context.caveats)
    if not context.as_found_served:
        caveats.append("as-found could not be served here as production does: the gain is over the default route alone")
    caveats += [caveat for each in judged for caveat in each.caveats]
    accepted = [each for each in judged if each.keep_reason is None]
    winner = _winner(accepted, context.default_id, alpha, settings, confirmations)
    best = winner or max(judged, key=lambda each: (each.summary.n > 1, _finite(each.summary.mean)), default=None)
    keep_reason = None
    if winner is None:
        keep_reason = best.keep_reason if best else KeepReason.NOTHING_ELIGIBLE
        if best is None and context.budget_spent:
            keep_reason = KeepReason.BUDGET
    return Decision(
        verdict=Verdict.WINNER if winner else Verdict.KEEP,
        winner=winner.finalist.candidate_id if winner else None,
        winner_label=winner.finalist.label if winner else reference,
        sentence=_sentence(winner, best, keep_reason, reference, context, settings, alpha, len(judged)),
        keep_reason=keep_reason,
        reference_id=reference,
        finalists=tuple(each.finalist for each in judged),
        excluded=dict(context.excluded),
        caveats=tuple(dict.fromkeys(caveats)),
        tolerance_given=context.tolerance_given,
        held_out_samples=context.held_out_samples,
        noise=context.noise,
        pairs_to_settle=_pairs_to_settle(best, alpha, settings) if keep_reason is KeepReason.TOO_NOISY else None,
    )


def _judge(
    confirmation: Confirmation, reference: str, alpha: float, settings: JudgeSettings, context: Context
) -> _Judged:
    groups = {name: [pair for pair in confirmation.pairs if pair.reference_id == name] for name in _references(context)}
    usable = {name: usable_pairs(pairs) for name, pairs in groups.items()}
    summaries = {name: summarize([pair.log_ratio for pair in kept.pairs]) for name, kept in usable.items()}
    summary = summaries[reference]
    gain = interval(summary, alpha, settings.confidence) if summary.n else None
    default = summaries.get(context.default_id)
    p99 = summarize([pair.p99_log_ratio for pair in usable[reference].pairs if pair.p99_log_ratio is not None])
    tail = compare_tails(confirmation.latencies, alpha, settings.confidence)
    p99_ratio = interval(p99, alpha, settings.confidence) if p99.n else None
    caveats = []
    if tail is not None:
        p99_ratio = tail.ratio
    dropped = usable[reference].dropped
    if dropped:
        caveats.append(
            f"{confirmation.label}: {len(dropped)} of {len(groups[reference])} pairs were disturbed and are left out: "
            f"{dropped[0][1]}"
        )
    effect = order_effect(usable[reference].pairs)
    if effect is not None and effect.p_value < 0.01:
        caveats.append(
            f"{confirmation.label}: which arm runs first changes the ratio by "
            f"{math.expm1(abs(effect.difference)):.1%}; it cancels over the pairs, a longer warm-up would remove it"
        )
    keep_reason, reason = _objection(confirmation, groups[reference], summary, p99, tail, len(dropped), alpha, settings)
    if tail is not None and tail.percentile < 99 and keep_reason in (None, KeepReason.LATENCY_GUARD):
        caveats.append(
            f"{confirmation.label}: {tail.requests} requests do not support a p99; {tail.name} is judged instead"
        )
    finalist = Finalist(
        candidate_id=confirmation.candidate_id,
        label=confirmation.label,
        gain_over_as_found=gain if context.as_found_served else None,
        gain_over_default=interval(default, alpha, settings.confidence) if default is not None and default.n else None,
        p99_ratio=p99_ratio,
        accepted=keep_reason is None,
        reason=reason,
    )
    return _Judged(finalist, keep_reason, summary, tuple(caveats))


def _references(context: Context) -> tuple[str, ...]:
    return tuple(dict.fromkeys((AS_FOUND, context.default_id)))


def _objection(
    confirmation: Confirmation,
    pairs: Sequence[Pair],
    summary: Summary,
    p99: Summary,
    tail: Tail | None,
    dropped: int,
    alpha: float,
    settings: JudgeSettings,
) -> tuple[KeepReason | None, str]:
    """Why it is not accepted, the gravest first; ``None`` with the reason for accepting it."""
    if confirmation.rejection is not None:
        code = KeepReason.ACCURACY if confirmation.rejection.stage.value == "validate" else KeepReason.ERRORS
        return code, f"failed while it was being confirmed: {confirmation.rejection.message}"
    if confirmation.held_out is None:
        return KeepReason.ACCURACY, "its answers on the held-out samples were not checked"
    if not confirmation.held_out.passed:
        return KeepReason.ACCURACY, f"held-out samples: {confirmation.held_out.reason}"
    failures = sum(pair.failures for pair in confirmation.pairs)
    if failures:
        return KeepReason.ERRORS, f"{failures} requests failed under load"
    if summary.n < 2:
        return KeepReason.TOO_NOISY, f"{summary.n} usable pairs of {len(pairs)}: nothing can be said"
    if _mostly_disturbed(dropped, len(pairs), settings):
        return KeepReason.TOO_NOISY, f"{dropped} of {len(pairs)} pairs were disturbed"
    bar = math.log1p(settings.min_gain)
    lower, upper = bounds(summary, alpha)
    shown = f"{_percent(summary.mean)} ({_percent(lower)} to {_percent(upper)}, {summary.n} pairs)"
    if lower <= bar:
        if summary.mean <= bar:
            return KeepReason.GAIN_BELOW_MINIMUM, f"gain {shown} is below the minimum of {settings.min_gain:.1%}"
        return KeepReason.TOO_NOISY, f"gain {shown} is not shown to exceed the minimum of {settings.min_gain:.1%}"
    objection = _latency_objection(pairs, p99, tail, alpha, settings)
    if objection:
        return KeepReason.LATENCY_GUARD, objection
    return None, f"gain {shown}"


def _latency_objection(
    pairs: Sequence[Pair], p99: Summary, tail: Tail | None, alpha: float, settings: JudgeSettings
) -> str | None:
    if settings.slo_p99_us is not None:
        levels = summarize([math.log(pair.candidate_p99_us) for pair in pairs if pair.usable and pair.candidate_p99_us])
        _, upper = bounds(levels, alpha)
        if upper <= math.log(settings.slo_p99_us):
            return None
        return f"p99 {_ms(levels.mean)} (at most {_ms(upper)}) is not shown to keep {settings.slo_p99_us / 1e3:g} ms"
    if settings.p99_guard is None:
        return None
    if tail is not None:
        if tail.ratio.upper <= settings.p99_guard:
            return None
        return (
            f"{tail.name} changes by {_gain(tail.ratio.ratio)} (at most {_gain(tail.ratio.upper)}), "
            f"allowed are {settings.p99_guard - 1:.0%}"
        )
    if p99.n < 2:
        return (
            "p99 is unknown: the windows hold too few requests; measure longer (--duration-s), or turn the guard off "
            "(--p99-guard off)"
        )
    _, upper = bounds(p99, alpha)
    if upper <= math.log(settings.p99_guard):
        return None
    return f"p99 changes by {_percent(p99.mean)} (at most {_percent(upper)}), allowed are {settings.p99_guard - 1:.0%}"


def _winner(
    accepted: Sequence[_Judged],
    default_id: str,
    alpha: float,
    settings: JudgeSettings,
    confirmations: Sequence[Confirmation],
) -> _Judged | None:
    if not accepted:
        return None
    # One spread for all: from a few pairs each, the bounds differ more by luck in the spread than by gain.
    spread = math.sqrt(math.fsum(each.summary.sd**2 for each in accepted) / len(accepted))
    best = max(accepted, key=lambda each: each.summary.mean - spread / math.sqrt(each.summary.n))
    default = next((each for each in accepted if each.finalist.candidate_id == default_id), None)
    if default is None or default is best:
        return best
    pairs = next(each.pairs for each in confirmations if each.candidate_id == best.finalist.candidate_id)
    direct = summarize(
        [pair.log_ratio for pair in usable_pairs([p for p in pairs if p.reference_id == default_id]).pairs]
    )
    over_default = direct if direct.n > 1 else _difference(best.summary, default.summary)
    return best if bounds(over_default, alpha)[0] > math.log1p(settings.min_gain) else default


def _difference(one: Summary, other: Summary) -> Summary:
    """Of two means against a common reference: variances add; the fewer pairs count, which is on the safe side."""
    n = min(one.n, other.n)
    return Summary(n, one.mean - other.mean, math.hypot(one.standard_error, other.standard_error) * math.sqrt(n))


def _pairs_to_settle(best: _Judged | None, alpha: float, settings: JudgeSettings) -> int | None:
    """Pairs after which the observed gain, were it true, would be accepted with probability ``power``; ``None`` where
    it would not be after any number."""
    if best is None or best.summary.n < 2:
        return None
    distance = best.summary.mean - math.log1p(settings.min_gain)
    if distance <= 0:
        return None
    return required_pairs(best.summary.sd, distance, alpha, settings.power)


def _sentence(
    winner: _Judged | None,
    best: _Judged | None,
    keep_reason: KeepReason | None,
    reference: str,
    context: Context,
    settings: JudgeSettings,
    alpha: float,
    finalists: int,
) -> str:
    verdict = "replaces what is there" if reference == AS_FOUND else "beats the default route"
    if winner is not None:
        lower, _ = bounds(winner.summary, alpha)
        text = (
            f"{winner.finalist.label} {verdict}: {context.objective} better by "
            f"{math.expm1(winner.summary.mean):.1%}, by at least {math.expm1(lower):.1%} with "
            f"{settings.confidence:.0%} confidence "
            f"over {_count(finalists, 'finalist')} ({winner.summary.n} fresh pairs)"
        )
        over_default = winner.finalist.gain_over_default
        if over_default is not None and context.default_id not in (reference, winner.finalist.candidate_id):
            text += f"; over the default route {_gain(over_default.ratio)} (at least {_gain(over_default.lower)})"
        return text + "."
    if best is None:
        if keep_reason is KeepReason.BUDGET:
            return "What is there stays: the budget was spent before any candidate could be confirmed."
        return "What is there stays: no candidate was eligible, see what was excluded and why."
    of = f"the best of {_count(finalists, 'finalist')}, " if finalists > 1 else ""
    return f"What is there stays: {of}{best.finalist.label}: {best.finalist.reason}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _gain(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"


def _percent(log_ratio: float) -> str:
    return f"{math.expm1(log_ratio):+.1%}" if math.isfinite(log_ratio) else "unbounded"


def _ms(log_us: float) -> str:
    return f"{math.exp(log_us) / 1e3:.3g} ms" if math.isfinite(log_us) else "unknown"


def _exp(value: float) -> float:
    return math.exp(value) if not value > 700 else math.inf


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -math.inf
