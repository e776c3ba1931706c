"""A candidate's answers against the expected ones: defects first, then every metric with its tolerance.

Streaming: answers are looked at once and forgotten, so memory does not grow with their number. Pure; records and the
metrics only: who sends the requests is not this module's business.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from optimizer.accuracy.comparison import Comparison
from optimizer.accuracy.metrics import Aggregation, Metric, Score, find_metric, measure, upper_bound
from optimizer.accuracy.tolerances import check_tolerances, parse_tolerance, parse_tolerances, tolerances_for
from optimizer.errors import InputError
from optimizer.records.model import TRITON_TO_NUMPY, Array
from optimizer.records.parity import OutputParity, Parity, Tolerance
from optimizer.records.samples import Arrays, Sample, SampleSet

__all__ = [
    "Answer",
    "FailedAnswer",
    "check_tolerances",
    "parse_tolerance",
    "parse_tolerances",
    "validate",
]

CONFIDENCE = 0.95
"""Of the bounds that are reported where the tolerance names no confidence of its own."""

EXPLORED_METRICS = ("l0", "l1", "l2", "lInf", "cos", "rel_l2")
"""What is computed where the user gave no tolerance."""

LARGEST_LOSS = sys.float_info.max
"""An infinite loss in a record: JSON has no infinity."""

KINDS_OF_DEFECTS_KEPT = 50


@dataclass(frozen=True)
class Answer:
    """What the server said to one sample. ``datatypes`` as in the response; ``circumstance`` says how it was asked
    (``position 3 of a batch of 8``)."""

    index: int
    """Position in the sample set."""
    outputs: Arrays
    datatypes: Mapping[str, str]
    circumstance: str = ""


@dataclass(frozen=True)
class FailedAnswer:
    index: int
    reason: str
    circumstance: str = ""


def validate(
    candidate_id: str,
    samples: SampleSet,
    answers: Iterable[Answer | FailedAnswer],
    tolerances: Sequence[Tolerance],
    datatypes: Mapping[str, str],
    *,
    complete: bool = True,
) -> Parity:
    """``datatypes`` maps every output of the model to its Triton data type. Samples may be answered more than once;
    with ``complete``, one that is never answered is a defect. Without tolerances the losses are computed with threshold
    ``None``. An answer passes a tolerance when its loss is at most the threshold.

    Raises :class:`InputError` where a sample has no expected outputs, or an output no tolerance.
    """
    for sample in samples.samples:
        if sample.expected is None:
            raise InputError(
                f"sample {sample.id} has no expected outputs",
                where=samples.origin,
                field=samples.name,
                remedy="give golden outputs for every sample, or for none",
            )
    validation = _Validation(samples, tolerances, datatypes)
    answered = bytearray(len(samples))
    for answer in answers:
        answered[answer.index] = 1
        validation.add(answer)
    if complete:
        for index, seen in enumerate(answered):
            if not seen:
                validation.defects.add("no_answer", "", "no answer came", samples.samples[index], "")
    return validation.parity(candidate_id, sum(answered), bool(tolerances))


@dataclass
class _Tally:
    """A metric over the samples seen so far.

    A sample that is answered several times counts once among the rows, with its worst answer: answers to one input are
    no independent evidence, and the bound must not grow sharper by asking again.
    """

    loss: float = -math.inf
    worst: str | None = None
    misses: int = 0
    units: int = 0
    seen: int = 0
    counted: dict[int, int] = field(default_factory=dict)
    """Misses by sample, for counting metrics."""

    def add(self, score: Score, index: int, label: str) -> None:
        self.seen += 1
        if score.units:
            known = self.counted.get(index)
            if known is None:
                self.units += score.units
            self.counted[index] = max(known or 0, score.misses)
            self.misses += self.counted[index] - (known or 0)
        if score.loss > self.loss:
            self.loss, self.worst = score.loss, label

    def total(self, metric: Metric) -> float:
        if metric.aggregation is Aggregation.WORST:
            return 0.0 if self.seen == 0 else self.loss
        return self.misses / self.units if self.units else 0.0


@dataclass
class _Check:
    """One tolerance (or explored metric) of one output."""

    output: str
    metric: Metric
    options: Mapping[str, float | str]
    threshold: float | None
    overall: _Tally = field(default_factory=_Tally)
    per_tag: dict[str, _Tally] = field(default_factory=dict)

    @property
    def tag(self) -> str | None:
        return str(self.options["tag"]) if "tag" in self.options else None

    def add(self, comparison: Comparison, sample: Sample, index: int, label: str) -> None:
        if self.tag is not None and self.tag not in sample.tags:
            return
        score = measure(self.metric, comparison, self.options)
        self.overall.add(score, index, label)
        for tag in sample.tags:
            self.per_tag.setdefault(tag, _Tally()).add(score, index, label)

    def verdict(self) -> OutputParity:
        loss = self.overall.total(self.metric)
        confidence = float(self.options.get("confidence", CONFIDENCE))
        bound = None
        if self.metric.aggregation is Aggregation.ROWS:
            bound = upper_bound(self.overall.misses, self.overall.units, confidence)
        required = "confidence" in self.options
        passed = self.threshold is None or loss <= self.threshold
        if self.threshold is not None and required:
            passed = passed and bound is not None and bound <= self.threshold
        if self.threshold is not None and self.overall.seen == 0:
            # A floor on a tag that no sample carries must not pass unseen.
            passed = False
        return OutputParity(
            output=self.output,
            metric=self.label,
            loss=min(loss, LARGEST_LOSS),
            threshold=self.threshold,
            passed=passed,
            worst_sample=self.overall.worst if loss > 0 or self.metric.name == "psnr" else None,
            bound=bound,
            confidence=confidence if required else None,
            misses=self.overall.misses if self.overall.units else None,
            units=self.overall.units if self.overall.units else self.overall.seen,
        )

    @property
    def label(self) -> str:
        shown = {name: value for name, value in self.options.items() if name != "confidence"}
        if not shown:
            return self.metric.name
        inside = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in sorted(shown.items()))
        return f"{self.metric.name}({inside})"


class _Defects:
    """Defects by kind and output: the first of each with its details, and how many there were."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._count: dict[tuple[str, str], int] = {}
        self.dropped = 0

    def add(self, code: str, output: str, text: str, sample: Sample, circumstance: str) -> None:
        key = (code, output)
        if key not in self._first:
            if len(self._first) >= KINDS_OF_DEFECTS_KEPT:
                self.dropped += 1
                return
            where = f"output {output}: " if output else ""
            self._first[key] = f"{code}: {where}{text} ({_label(sample, circumstance)}"
        self._count[key] = self._count.get(key, 0) + 1

    def texts(self) -> tuple[str, ...]:
        texts = [
            text + (f"; {self._count[key]} answers in all)" if self._count[key] > 1 else ")")
            for key, text in self._first.items()
        ]
        if self.dropped:
            texts.append(f"more: {self.dropped} defects of further kinds")
        return tuple(texts)


class _Validation:
    def __init__(self, samples: SampleSet, tolerances: Sequence[Tolerance], datatypes: Mapping[str, str]) -> None:
        self.samples = samples
        self.datatypes = datatypes
        self.defects = _Defects()
        self.checks = {output: _checks(output, datatypes[output], tolerances) for output in datatypes}

    def add(self, answer: Answer | FailedAnswer) -> None:
        sample = self.samples.samples[answer.index]
        if isinstance(answer, FailedAnswer):
            self.defects.add("failed_request", "", answer.reason, sample, answer.circumstance)
            return
        for output in answer.outputs:
            if output not in self.datatypes:
                self.defects.add(
                    "unexpected_output", output, "the model's config does not have it", sample, answer.circumstance
                )
        for output in self.datatypes:
            defect = find_defect(output, answer, sample, self.datatypes[output])
            if defect is not None:
                self.defects.add(defect[0], output, defect[1], sample, answer.circumstance)
            if defect is None:
                expected = (sample.expected or {})[output]
                comparison = Comparison(answer.outputs[output], expected)
                label = _label(sample, answer.circumstance)
                for check in self.checks[output]:
                    check.add(comparison, sample, answer.index, label)

    def parity(self, candidate_id: str, answered: int, tolerance_given: bool) -> Parity:
        checks = [check for output in self.checks.values() for check in output]
        tags = sorted({tag for check in checks for tag in check.per_tag})
        return Parity(
            candidate_id=candidate_id,
            sample_set=self.samples.name,
            samples=answered,
            outputs=tuple(check.verdict() for check in checks),
            defects=self.defects.texts(),
            tolerance_given=tolerance_given,
            per_tag={
                tag: {
                    f"{check.output}:{check.label}": min(check.per_tag[tag].total(check.metric), LARGEST_LOSS)
                    for check in checks
                    if tag in check.per_tag
                }
                for tag in tags
            },
        )


def find_defect(output: str, answer: Answer, sample: Sample, datatype: str) -> tuple[str, str] | None:
    """(code, text) of what is wrong with one output before any metric, or ``None``."""
    expected = (sample.expected or {}).get(output)
    if expected is None:
        return "no_reference", "the sample has no expected values for it"
    if output not in answer.outputs:
        return "missing_output", "the response does not have it"
    array = answer.outputs[output]
    said = answer.datatypes.get(output, datatype)
    if said != datatype or array.dtype != TRITON_TO_NUMPY[datatype]:
        return "wrong_datatype", f"expected {datatype}, got {said if said != datatype else array.dtype}"
    if array.shape != expected.shape:
        return "wrong_shape", f"expected {list(expected.shape)}, got {list(array.shape)}"
    comparison = Comparison(array, expected)
    foreign = comparison.foreign_non_finite
    if bool(foreign.any()):
        return "non_finite", _describe_non_finite(array, expected, foreign)
    return None


def _describe_non_finite(array: Array, expected: Array, foreign: Array) -> str:
    position = tuple(int(i) for i in np.argwhere(foreign)[0])
    return (
        f"{array[position]} where {expected[position]} is expected, at {list(position)}, "
        f"{int(foreign.sum())} of {array.size} values"
    )


def _checks(output: str, datatype: str, tolerances: Sequence[Tolerance]) -> list[_Check]:
    if not tolerances:
        names = ("exact",) if datatype == "BYTES" else EXPLORED_METRICS
        return [_Check(output, find_metric(name), {}, None) for name in names]
    mine = tolerances_for(tolerances, output)
    if not any("tag" not in tolerance.options for tolerance in mine):
        raise InputError(
            f"output {output!r} has no tolerance that holds for all samples",
            field="tolerance",
            remedy="add one without a tag",
        )
    checks = []
    for tolerance in mine:
        metric = find_metric(tolerance.metric)
        options, threshold = dict(tolerance.options), tolerance.threshold
        if datatype == "BYTES" and not metric.text:
            # A numeric tolerance for every output reaches a text: there, only equal is near.
            metric, threshold = find_metric("exact"), 0.0
            options = {name: value for name, value in options.items() if name == "tag"}
        checks.append(_Check(output, metric, options, threshold))
    return checks


def _label(sample: Sample, circumstance: str) -> str:
    return f"sample {sample.id}, {circumstance}" if circumstance else f"sample {sample.id}"
