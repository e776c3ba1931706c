"""Responses that were kept while a load ran, each against its own expected output.

A tolerance on an average would let a swapped row pass now and then; so a response is also compared with the expected
outputs of other samples: one that is nearer to another sample's than to its own is a defect, whatever the tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from optimizer.accuracy.requests import discriminating, distance
from optimizer.accuracy.validator import Answer, FailedAnswer, validate
from optimizer.records.parity import Parity, Tolerance
from optimizer.records.samples import SampleSet
from optimizer.triton.client import parse_response

MISPLACED = 0.1
"""A response is someone else's when its distance to that sample's expected output is at most this part of the distance
to its own. A wrong answer is as far from both; a swapped one is at rounding distance from the other."""

FAR_APART = 0.1
"""Samples whose expected outputs are nearer than this are not told apart: between two nearly equal ones an honest
rounding error may point to either."""


def answers_of(responses: Iterable[tuple[int, bytes]]) -> Iterator[Answer | FailedAnswer]:
    """Kept responses, (sample index, serialized ``ModelInferResponse``), as answers."""
    for index, data in responses:
        try:
            outputs, datatypes = parse_response(data)
        except ValueError as error:
            yield FailedAnswer(index, f"a response does not fill its shape: {error}", "under load")
            continue
        yield Answer(index, outputs, datatypes, "under load")


def check_under_load(
    candidate_id: str,
    samples: SampleSet,
    answers: Iterable[Answer | FailedAnswer],
    tolerances: Sequence[Tolerance],
    datatypes: Mapping[str, str],
    *,
    others: Sequence[int] | None = None,
) -> Parity:
    """As :func:`optimizer.accuracy.validator.validate`, for samples that need not all have been answered, with
    ``misplaced`` defects besides. No answers at all are a defect: nothing was checked. ``others`` are the samples whose
    answers are told apart (default: :func:`discriminating`, which takes time on a large set)."""
    others = discriminating(samples) if others is None else others
    misplaced: list[str] = []
    count = 0

    def watched() -> Iterator[Answer | FailedAnswer]:
        nonlocal count
        for answer in answers:
            count += 1
            if isinstance(answer, Answer):
                owner = owner_of(answer, samples, others)
                if owner is not None:
                    misplaced.append(
                        f"misplaced: the answer to sample {samples.samples[answer.index].id} is that of sample "
                        f"{samples.samples[owner].id}"
                    )
            yield answer

    parity = validate(candidate_id, samples, watched(), tolerances, datatypes, complete=False)
    defects = list(parity.defects)
    if misplaced:
        defects.insert(0, misplaced[0] + (f" ({len(misplaced)} answers in all)" if len(misplaced) > 1 else ""))
    if count == 0:
        defects.append("no_answer: no response was kept under load")
    return replace(parity, defects=tuple(defects))


def owner_of(answer: Answer, samples: SampleSet, others: Sequence[int]) -> int | None:
    """Index of the sample, among ``others``, to which one of the answer's outputs belongs rather than to its own;
    ``None`` if none. Output by output: a backend may mix up the rows of one and not of another."""
    expected = samples.samples[answer.index].expected or {}
    for name in expected.keys() & answer.outputs.keys():
        got, own = {name: answer.outputs[name]}, {name: expected[name]}
        away = distance(got, own)
        if away == 0.0:
            continue
        for index in others:
            their_expected = samples.samples[index].expected or {}
            if index == answer.index or name not in their_expected:
                continue
            theirs = {name: their_expected[name]}
            if distance(got, theirs) <= MISPLACED * away and distance(own, theirs) >= FAR_APART:
                return index
    return None
