"""Tolerances as users write them.

::

    [OUTPUT:]METRIC[(OPTION=VALUE, …)]<=LOSS
    [OUTPUT:]METRIC[(OPTION=VALUE, …)]>=FLOOR[@CONFIDENCE]

``lInf<=1e-3`` holds for every output that has no tolerance of its own; ``probabilities:cos<=1e-4`` for one. A floor is
the other way to state a loss: ``top1>=0.995`` is ``top1<=0.005``, ``psnr>=40`` is ``psnr<=-40``. With ``@0.95`` the
floor must hold for the exact binomial bound at that confidence, not only for what was observed. The option ``tag``
restricts a tolerance to the samples that carry the tag: ``top1(tag=hard)>=0.98``. Other options belong to the metric.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from optimizer.accuracy.metrics import Aggregation, Metric, find_metric
from optimizer.errors import InputError
from optimizer.records.model import TensorSpec
from optimizer.records.parity import Tolerance

EVERY_OUTPUT = "*"
COMMON_OPTIONS = frozenset({"tag", "confidence"})

_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_REST = (
    r"\s*(?:\((?P<options>[^()]*)\))?\s*"
    rf"(?P<sign><=|>=)\s*(?P<value>{_NUMBER})(?:@(?P<confidence>{_NUMBER}))?"
)
_FORMS = tuple(
    # Greedy: an output's name may hold colons, a metric other than a python: one does not.
    re.compile(rf"(?:(?P<output>.+):)?(?P<metric>{metric}){_REST}")
    for metric in (r"python:[^:]+:\w+", r"\w+")
)

_EXAMPLE = "for instance 'lInf<=1e-3', 'probabilities:top1>=0.995' or 'top1(tag=hard)>=0.98'"


def parse_tolerance(text: str) -> Tolerance:
    """Raises :class:`InputError` for anything outside the grammar, an unknown metric and an unknown option."""
    match = next(filter(None, (form.fullmatch(text.strip()) for form in _FORMS)), None)
    if match is None:
        raise InputError(
            f"cannot read {text!r}: expected [OUTPUT:]METRIC<=LOSS or [OUTPUT:]METRIC>=FLOOR",
            field="tolerance",
            remedy=_EXAMPLE,
        )
    metric = find_metric(match["metric"])
    options = _parse_options(match["options"] or "", metric, text)
    value = float(match["value"])
    if match["sign"] == ">=":
        if metric.floor is None:
            raise InputError(
                f"{metric.name} in {text!r} is a loss: it has no floor", field="tolerance", remedy=_EXAMPLE
            )
        value = metric.floor(value)
    if match["confidence"]:
        options["confidence"] = float(match["confidence"])
    check_tolerance(tolerance := Tolerance(metric.name, value, match["output"] or EVERY_OUTPUT, options))
    return tolerance


def parse_tolerances(texts: Iterable[str]) -> tuple[Tolerance, ...]:
    """Raises for a repetition too: two thresholds for one thing are a mistake."""
    seen: dict[tuple[str, str, str], str] = {}
    tolerances = []
    for text in texts:
        tolerance = parse_tolerance(text)
        key = (tolerance.output, tolerance.metric, str(sorted(tolerance.options.items())))
        if key in seen:
            raise InputError(f"{text!r} repeats {seen[key]!r}", field="tolerance", remedy="keep one of them")
        seen[key] = text
        tolerances.append(tolerance)
    return tuple(tolerances)


def check_tolerance(tolerance: Tolerance) -> None:
    """Raises :class:`InputError` where no answer could ever fail it, or none could pass."""
    metric = find_metric(tolerance.metric)
    if not math.isfinite(tolerance.threshold):
        raise InputError(
            f"threshold {tolerance.threshold} of {metric.name} is not a finite number",
            field="tolerance",
            remedy=_EXAMPLE,
        )
    counting = metric.aggregation is not Aggregation.WORST
    if counting and not 0.0 <= tolerance.threshold < 1.0:
        raise InputError(
            f"{metric.name} counts a fraction: a loss from 0 up to, not including, 1 is needed, got "
            f"{tolerance.threshold:g}",
            field="tolerance",
            remedy="write top1>=0.995 (a floor) or top1<=0.005 (a loss), not a percentage",
        )
    if not counting and tolerance.threshold < 0.0 and metric.name != "psnr" and not metric.name.startswith("python:"):
        raise InputError(
            f"{metric.name} is never negative, got {tolerance.threshold:g}", field="tolerance", remedy=_EXAMPLE
        )
    if "confidence" in tolerance.options:
        if metric.aggregation is not Aggregation.ROWS:
            raise InputError(
                f"{metric.name} does not count independent rows: it has no confidence bound",
                field="tolerance",
                remedy="leave out @CONFIDENCE, or use topK, exact or sequence",
            )
        if not 0.5 <= float(tolerance.options["confidence"]) < 1.0:
            raise InputError(
                f"expected a confidence from 0.5 to below 1, got {tolerance.options['confidence']}",
                field="tolerance",
                remedy=_EXAMPLE,
            )
        if tolerance.threshold == 0.0:
            raise InputError(
                "no number of samples supports a floor of 1 at any confidence", field="tolerance", remedy=_EXAMPLE
            )


def check_tolerances(tolerances: Sequence[Tolerance], outputs: Sequence[TensorSpec]) -> None:
    """Raises :class:`InputError` where the tolerances do not fit the outputs: a name that is not there, a metric that
    the data type does not have, or an output that no tolerance covers and that would go unchecked. No tolerances at all
    are an exploration and pass."""
    names = {spec.name: spec for spec in outputs}
    for tolerance in tolerances:
        check_tolerance(tolerance)
        if tolerance.output != EVERY_OUTPUT and tolerance.output not in names:
            raise InputError(
                f"the model has no output {tolerance.output!r}",
                field=f"tolerance {tolerance.text}",
                remedy=f"outputs: {', '.join(names)}",
            )
        text = tolerance.output != EVERY_OUTPUT and names[tolerance.output].datatype == "BYTES"
        if text and not find_metric(tolerance.metric).text:
            raise InputError(
                f"output {tolerance.output!r} is BYTES, {tolerance.metric} needs numbers",
                field=f"tolerance {tolerance.text}",
                remedy="use exact, sequence, edit or a python: function",
            )
    if tolerances:
        for name in names:
            if not any("tag" not in tolerance.options for tolerance in tolerances_for(tolerances, name)):
                raise InputError(
                    f"output {name!r} has no tolerance that holds for all samples",
                    field="tolerance",
                    remedy=f"add one for it, '{name}:lInf<=…', or one for every other output, 'lInf<=…'",
                )


def tolerances_for(tolerances: Sequence[Tolerance], output: str) -> tuple[Tolerance, ...]:
    """Those that name the output; where none of them holds for all samples, those for every output as well."""
    own = tuple(tolerance for tolerance in tolerances if tolerance.output == output)
    if any("tag" not in tolerance.options for tolerance in own):
        return own
    return (*own, *(tolerance for tolerance in tolerances if tolerance.output == EVERY_OUTPUT))


def _parse_options(text: str, metric: Metric, whole: str) -> dict[str, float | str]:
    options: dict[str, float | str] = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = (item.strip() for item in part.partition("="))
        known = metric.options | COMMON_OPTIONS
        if not equals or name not in known or not value:
            raise InputError(
                f"{part!r} in {whole!r} is not an option of {metric.name}",
                field="tolerance",
                remedy=f"options: {', '.join(sorted(known))}, written NAME=VALUE",
            )
        if name == "tag":
            options[name] = value
        elif re.fullmatch(_NUMBER, value):
            options[name] = float(value)
        else:
            raise InputError(
                f"option {name} in {whole!r}: {value!r} is not a number", field="tolerance", remedy=_EXAMPLE
            )
    for name in ("axis", "blank"):
        if name in options and float(options[name]) != int(options[name]):
            raise InputError(f"option {name} in {whole!r} must be a whole number", field="tolerance", remedy=_EXAMPLE)
    return options
