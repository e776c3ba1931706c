"""Answers of the candidate held against the expected ones, one by one, within the tolerances.

Equal answers to equal requests are compared once: most of a good candidate's are, and a canary compares thousands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optimizer.accuracy.comparison import Comparison
from optimizer.accuracy.metrics import Aggregation, find_metric, measure
from optimizer.accuracy.tolerances import tolerances_for
from optimizer.accuracy.validator import Answer, find_defect
from optimizer.canary.evidence import Compared
from optimizer.records.parity import Tolerance
from optimizer.records.samples import Arrays, Sample
from optimizer.triton.client import parse_response

REMEMBERED = 20_000


class Verdict:
    """Of one answer. ``counted``: misses and units by ``output tolerance``, for metrics that count."""

    __slots__ = ("counted", "mismatch", "non_finite")

    def __init__(self) -> None:
        self.mismatch = ""
        self.non_finite = ""
        self.counted: dict[str, tuple[int, int]] = {}


class Comparer:
    """``datatypes`` of the outputs. Counts until :meth:`take` hands the counts over."""

    def __init__(
        self, samples: Sequence[Sample], datatypes: Mapping[str, str], tolerances: Sequence[Tolerance]
    ) -> None:
        self._samples = samples
        self._datatypes = dict(datatypes)
        self._tolerances = tolerances
        self._known: dict[tuple[int, bytes, bytes], Verdict] = {}
        self._distinct: set[int] = set()
        self._reset()

    def _reset(self) -> None:
        self._comparisons = self._mismatches = self._non_finite = 0
        self._first = ""
        self._counted: dict[str, tuple[int, int]] = {}

    def add(self, index: int, answer: bytes, reference: bytes) -> None:
        """``reference`` is the baseline's answer to the same request; a sample's golden outputs come before it."""
        # A model's name and version in the answer differ between the arms: what is compared is behind them.
        key = (index, contents(answer), contents(reference) if self._samples[index].expected is None else b"")
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self.verdict(index, answer, reference)
            if len(self._known) < REMEMBERED:
                self._known[key] = verdict
        self._comparisons += 1
        self._distinct.add(index)
        self._mismatches += bool(verdict.mismatch)
        self._non_finite += bool(verdict.non_finite)
        self._first = self._first or verdict.non_finite or verdict.mismatch
        for name, (misses, units) in verdict.counted.items():
            before = self._counted.get(name, (0, 0))
            self._counted[name] = (before[0] + misses, before[1] + units)

    def take(self) -> Compared:
        compared = Compared(
            self._comparisons, self._mismatches, self._non_finite, len(self._distinct), self._first, self._counted
        )
        self._reset()
        return compared

    def verdict(self, index: int, answer: bytes, reference: bytes) -> Verdict:
        sample = self._samples[index]
        found = Verdict()
        try:
            outputs, datatypes = parse_response(answer)
        except ValueError as error:
            found.mismatch = f"sample {sample.id}: an answer does not fill its shape: {error}"
            return found
        expected: Arrays = sample.expected if sample.expected is not None else parse_response(reference)[0]
        asked = Sample(sample.id, sample.inputs, expected, sample.tags)
        for output, datatype in self._datatypes.items():
            defect = find_defect(output, Answer(index, outputs, datatypes), asked, datatype)
            if defect is not None:
                text = f"sample {sample.id}, output {output}: {defect[0]}: {defect[1]}"
                if defect[0] == "non_finite":
                    found.non_finite = found.non_finite or text
                else:
                    found.mismatch = found.mismatch or text
                continue
            self._measure(found, output, datatype, Comparison(outputs[output], expected[output]), asked)
        return found

    def _measure(self, found: Verdict, output: str, datatype: str, comparison: Comparison, sample: Sample) -> None:
        for tolerance in tolerances_for(self._tolerances, output):
            tag = tolerance.options.get("tag")
            if tag is not None and tag not in sample.tags:
                continue
            metric, threshold, options = find_metric(tolerance.metric), tolerance.threshold, dict(tolerance.options)
            if datatype == "BYTES" and not metric.text:
                # A numeric tolerance for every output reaches a text: there, only equal is near.
                metric, threshold, options = find_metric("exact"), 0.0, {}
            score = measure(metric, comparison, options)
            if metric.aggregation is Aggregation.WORST or threshold == 0.0:
                if score.loss > threshold:
                    found.mismatch = found.mismatch or (
                        f"sample {sample.id}, output {output}: {metric.name} {score.loss:.6g} exceeds {threshold:.6g}"
                    )
            else:
                units = score.units or 1
                misses = score.misses if score.units else int(score.loss > 0)
                found.counted[f"{output} {tolerance.text}"] = (misses, units)


def contents(answer: bytes) -> bytes:
    """What an answer says, without who said it."""
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferResponse.FromString(answer)
    for field in ("model_name", "model_version", "id", "parameters"):
        message.ClearField(field)
    return bytes(message.SerializeToString(deterministic=True))
