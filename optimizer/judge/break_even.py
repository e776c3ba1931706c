"""Whether tuning pays: GPU hours spent against what the gain saves, and "saves nothing" where that is the truth."""

from __future__ import annotations

import math

HOURS_A_MONTH = 730


def break_even(
    hours: float,
    ratio_lower: float,
    *,
    load_per_s: float | None = None,
    capacity_per_s: float | None = None,
    gpu_price_per_h: float | None = None,
    machine: str = "GPU",
) -> dict[str, float | str]:
    """What a study of ``hours`` GPU hours has to be weighed against.

    ``ratio_lower`` is the lower bound of the throughput ratio: a promise is made on what was shown, not on the
    estimate. At that ratio the same load takes 1/ratio of the GPU time, so a GPU that is busy saves 24·(1 − 1/ratio)
    hours a day: ``gpu_days`` is how many GPU-days of full load give the hours back.

    With ``load_per_s`` and ``capacity_per_s`` (inferences/s that production needs, and that one GPU serves as found,
    in the same unit as measured) whole servers are counted: ``servers_before``, ``servers_after``, and only their
    difference saves money. With ``gpu_price_per_h`` also ``cost`` and ``saved_per_month`` (730 h). ``sentence`` says
    it for people (``machine`` names what is not a GPU); infinite numbers are left out. Raises ``ValueError`` for a load
    without a capacity, or one that is not positive.
    """
    if (load_per_s is None) != (capacity_per_s is None):
        raise ValueError("the load and the capacity of one server are needed together")
    for name, value in (("load_per_s", load_per_s), ("capacity_per_s", capacity_per_s)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is not positive: {value}")
    result: dict[str, float | str] = {"gpu_hours": hours}
    if gpu_price_per_h is not None:
        result["cost"] = hours * gpu_price_per_h
    if not ratio_lower > 1:
        result["sentence"] = "Saves nothing: no gain in throughput is shown."
        return result
    result["gpu_days"] = hours / (24 * (1 - 1 / ratio_lower))
    if load_per_s is None or capacity_per_s is None:
        result["sentence"] = (
            f"The {hours:.2g} {machine} hours spent are earned back by {result['gpu_days']:.2g} {machine}-days of full "
            "load (give the production load to know whether servers are saved)."
        )
        return result
    before = _servers(load_per_s, capacity_per_s)
    after = _servers(load_per_s, capacity_per_s * ratio_lower)
    result |= {"servers_before": float(before), "servers_after": float(after)}
    if after >= before:
        result["sentence"] = (
            f"Saves nothing: {load_per_s:g} inferences/s take {_count(before)} before and after; "
            f"the gain is headroom of {ratio_lower - 1:.1%}."
        )
        return result
    saved = before - after
    days = hours / (24 * saved)
    result["days"] = days
    sentence = f"Saves {_count(saved)} of {before}: the {hours:.2g} {machine} hours spent are earned back in "
    sentence += f"{days:.2g} days"
    if gpu_price_per_h is not None:
        saved_per_month = saved * HOURS_A_MONTH * gpu_price_per_h
        result["saved_per_month"] = saved_per_month
        sentence += f", then {saved_per_month:,.0f} a month are saved"
    result["sentence"] = sentence + "."
    return result


def _servers(load_per_s: float, capacity_per_s: float) -> int:
    # A load that is a whole number of capacities takes that many, whatever rounding says.
    return max(1, math.ceil(load_per_s / capacity_per_s - 1e-9))


def _count(servers: int) -> str:
    return f"{servers} server" + ("" if servers == 1 else "s")
