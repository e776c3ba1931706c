"""What a candidate's answers must pass besides one request at a time: batches of every size and position, and load.

Counting metrics (top-1 and its kin) need care here. A tolerance such as ``top1>=0.99`` is about all samples, and a few
batched requests, or the few answers kept from a window, are too few to judge a fraction by: one honest miss among them
would look like 12%. So misses are held against the whole set: a part may not miss more often than the tolerance allows
in all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from optimizer.accuracy.requests import Infer, ask, discriminating, plan_requests
from optimizer.accuracy.under_load import answers_of, check_under_load
from optimizer.accuracy.validator import validate
from optimizer.records.model import Model
from optimizer.records.parity import Parity, Tolerance
from optimizer.records.samples import SampleSet

MOST_KEPT = 64
"""Answers of one window that are kept and checked …"""
MOST_KEPT_BYTES = 16_000_000
"""… as long as they are no more than this together."""

MOST_ROWS = 4096
"""Rows of one request that checks batches …"""
MOST_REQUEST_BYTES = 256_000_000
"""… and its bytes: gRPC messages end at 2 GiB, and every size is asked for twice."""


@dataclass(frozen=True)
class Gate:
    """One sample set with its expected outputs, and what the user tolerates."""

    samples: SampleSet
    tolerances: tuple[Tolerance, ...]
    datatypes: Mapping[str, str]
    """Of the outputs."""

    @cached_property
    def apart(self) -> tuple[int, ...]:
        """Samples whose expected outputs are far apart."""
        return discriminating(self.samples)

    @cached_property
    def kept_responses(self) -> int:
        """How many answers of a window are kept: bounded in number and in bytes."""
        first = self.samples.samples[0].expected or {}
        size = sum(array.nbytes for array in first.values())
        return max(4, min(MOST_KEPT, MOST_KEPT_BYTES // max(1, size)))

    # Batches

    def batch_plan(self, model: Model, max_batch_size: int, preferred: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Requests of several rows, of every size and position that dynamic batching may form, and single requests that
        alternate between answers far apart. Empty where no two samples with one row each have different answers.

        A request has at most :data:`MOST_ROWS` rows and :data:`MOST_REQUEST_BYTES` bytes, in either direction."""
        if len(self.apart) < 2:
            return ()
        row_bytes = max(
            sum(array.nbytes for array in arrays.values())
            for index in self.apart
            for sample in (self.samples.samples[index],)
            for arrays in (sample.inputs, sample.expected or {})
        )
        most = min(max_batch_size, MOST_ROWS, max(1, MOST_REQUEST_BYTES // max(1, row_bytes)))
        possible = replace(model, max_batch_size=most if max_batch_size else 0)
        whole = plan_requests(self.samples, possible, preferred=preferred)
        apart = set(self.apart)
        return tuple(request for request in whole if apart.issuperset(request))

    def check_batches(self, candidate_id: str, plan: Sequence[Sequence[int]], infer: Infer) -> Parity:
        """Every answer of a batched request against its own row's expected outputs. ``infer`` sends one request."""
        answers = ask(self.samples, plan, infer)
        parity = validate(candidate_id, self.samples, answers, self._for_a_part(), self.datatypes, complete=False)
        return self._recounted(parity, "batches")

    # Load

    def check_load(self, candidate_id: str, responses: Sequence[tuple[int, bytes]]) -> Parity:
        """Kept responses of one window."""
        parity = check_under_load(
            candidate_id, self.samples, answers_of(responses), self._for_a_part(), self.datatypes, others=self.apart
        )
        return self._recounted(parity, "under_load")

    def _for_a_part(self) -> tuple[Tolerance, ...]:
        """A part of the samples supports no bound at a confidence, and need not hold a tag."""
        return tuple(
            replace(tolerance, options={k: v for k, v in tolerance.options.items() if k != "confidence"})
            for tolerance in self.tolerances
            if "tag" not in tolerance.options
        )

    def _recounted(self, parity: Parity, name: str) -> Parity:
        outputs = tuple(
            replace(
                output, passed=output.misses <= output.threshold * output.units / parity.samples * len(self.samples)
            )
            if output.misses is not None and output.threshold is not None and output.units and parity.samples
            else output
            for output in parity.outputs
        )
        return replace(parity, sample_set=name, outputs=outputs)
