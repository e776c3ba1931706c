"""How the time of a whole repository is split over its models. Pure.

Time goes where tuning can gain most. How much faster a model gets is not known before it is tuned, so it is taken to
be alike for all; what differs is how much of the machine each one takes: seconds an inference (as found, measured)
times inferences per second (``budget.load_per_s`` where it is known of every model, else taken to be equal). Half of
the time is split by that share, half equally, so that a light model still gets a decision. Models are tuned in the
order of their shares, and each one's share is of what is left: time that one does not need goes to those after it.
"""

from __future__ import annotations

from collections.abc import Mapping

EQUAL_PART = 0.5
CHECK_PART = 0.15
"""Of the time, what is kept for trying the winners together."""
SMALLEST_S = 5.0
"""A study with less time than this is not begun."""


def weights(seconds: Mapping[str, float | None], load_per_s: Mapping[str, float | None]) -> dict[str, float]:
    """By model, adding up to 1, largest first. ``seconds`` an inference (``None``: unknown, taken as the others' mean);
    ``load_per_s`` counts only where all are known."""
    names = list(seconds)
    known = [value for value in seconds.values() if value is not None]
    usual = sum(known) / len(known) if known else 1.0
    loads = {name: load_per_s.get(name) for name in names}
    all_known = all(value is not None for value in loads.values())
    taken = {}
    for name in names:
        cost = seconds[name]
        taken[name] = (usual if cost is None else cost) * ((loads[name] or 0.0) if all_known else 1.0)
    total = sum(taken.values())
    shares = {
        name: EQUAL_PART / len(names) + (1 - EQUAL_PART) * (taken[name] / total if total > 0 else 1 / len(names))
        for name in names
    }
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def share_s(
    name: str, weight: Mapping[str, float], waiting: list[str], limit_s: float | None, spent_s: float
) -> float | None:
    """Seconds for ``name``, which is one of ``waiting`` (those that have not ended yet); ``None`` without a limit."""
    if limit_s is None:
        return None
    left_s = max(0.0, limit_s * (1 - CHECK_PART) - spent_s)
    return left_s * weight[name] / sum(weight[one] for one in waiting)
