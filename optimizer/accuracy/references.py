"""Expected outputs: where they come from, whether they can be trusted, and how they are kept.

The origins are the user's golden outputs, the model as found as it is served, and ONNX Runtime in FP32 on the CPU.
A reference that is not finite, does not repeat itself, or disagrees with the golden outputs stops the study before
anything is tuned: :class:`optimizer.errors.ReferenceFailure`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from optimizer.accuracy.onnxruntime_reference import onnxruntime_reference
from optimizer.accuracy.requests import discriminating, merged_set
from optimizer.accuracy.validator import Answer, FailedAnswer, validate
from optimizer.errors import InputError, ReferenceFailure
from optimizer.records.model import Model, ModelFormat
from optimizer.records.parity import Parity, Tolerance
from optimizer.records.samples import Arrays, SampleSet

GOLDEN, AS_FOUND, ONNXRUNTIME = "golden", "as-found", "onnxruntime-fp32"

UNSTABLE = 0.1
"""Relative L2 between two answers of the reference to one sample above which it is called unstable where the user gave
no tolerance. Softmax near a tie enlarges rounding: an honest FP32 classifier (magika, ONNX Runtime on a CPU) moves by
up to 0.018 between batches of 1 and 32 on 4,000 files, see benchmarks/results/magika_agreement.json."""

REPEATED = 128
"""Samples that the reference is asked again."""

AnswersOf = Callable[[SampleSet], Iterable[Answer | FailedAnswer]]
"""Sends every sample of a set; answers refer to that set's positions."""


@dataclass(frozen=True)
class Finding:
    """Something about the reference. A ``fatal`` one means that nothing may be tuned against it."""

    code: str
    message: str
    fatal: bool = True


@dataclass(frozen=True)
class ReferenceCheck:
    """``noise`` maps ``OUTPUT:METRIC`` to the largest loss between two answers of the reference to one sample."""

    findings: tuple[Finding, ...]
    noise: Mapping[str, float]
    repeats: tuple[Parity, ...] = ()

    @property
    def fatal(self) -> Finding | None:
        return next((finding for finding in self.findings if finding.fatal), None)


def with_references(
    sets: Sequence[SampleSet],
    model: Model,
    *,
    kind: str = "auto",
    answers: AnswersOf | None = None,
    onnx: Path | None = None,
    tolerances: Sequence[Tolerance] = (),
) -> tuple[SampleSet, ...]:
    """The sets with expected outputs for every sample, their origin in ``references`` and the check in ``details``
    (``noise``, ``notes``).

    ``kind`` is ``golden``, ``as-found``, ``onnxruntime-fp32`` or ``auto``: golden where a set has them, else as-found,
    else ONNX Runtime. ``answers`` asks the model as found (``None``: it is not served here); it is checked in any case.
    Raises :class:`ReferenceFailure`, and :class:`InputError` where the origin is not available.
    """
    return tuple(_with_reference(samples, model, kind, answers, onnx, tolerances) for samples in sets)


def _with_reference(
    samples: SampleSet, model: Model, kind: str, answers: AnswersOf | None, onnx: Path | None,
    tolerances: Sequence[Tolerance],
) -> SampleSet:  # fmt: skip
    has_golden = all(sample.expected is not None for sample in samples.samples)
    source = onnx or onnx_of(model)
    if kind == "auto":
        kind = GOLDEN if has_golden else AS_FOUND if answers is not None else ONNXRUNTIME
    if kind == GOLDEN and not has_golden:
        raise InputError(
            "has no expected outputs", where=samples.origin, field=samples.name,
            remedy="add expected/NAME arrays, or choose --reference as-found",
        )  # fmt: skip
    if kind == AS_FOUND and answers is None:
        raise InputError(
            "the model as found is not served here, so it cannot be the reference",
            where=model.directory,
            remedy="give golden outputs, or choose --reference onnxruntime-fp32 with --onnx FILE",
        )
    if kind == ONNXRUNTIME and source is None:
        raise InputError(
            "ONNX Runtime needs the model as ONNX, which this repository entry does not have",
            where=model.directory,
            remedy="name it with --onnx FILE, or give golden outputs",
        )
    datatypes = {spec.name: spec.datatype for spec in model.outputs}
    served = served_outputs(samples, answers(samples), datatypes, model) if answers is not None else None
    if kind == AS_FOUND:
        referenced = with_expected(samples, served or [], AS_FOUND)
    elif kind == ONNXRUNTIME and source is not None:
        referenced = with_expected(samples, onnxruntime_reference(source, model, samples), ONNXRUNTIME)
    else:
        referenced = replace(samples, references=GOLDEN)
    findings = list(check_finite(referenced))
    noise: Mapping[str, float] = {}
    if answers is not None and served is not None:
        as_served = with_expected(samples, served, AS_FOUND)
        check = check_stability(as_served, model, answers, tolerances)
        findings += check.findings
        noise = check.noise
        if kind != AS_FOUND:
            findings += check_agreement(referenced, served, tolerances, datatypes)
    for finding in findings:
        if finding.fatal:
            raise ReferenceFailure(
                finding.message,
                where=model.directory,
                field=f"{finding.code}, {referenced.references} on set {samples.name!r}",
                remedy="tune nothing against a reference that is wrong or unstable: repair the model or its samples",
            )
    notes = [finding.message for finding in findings]
    return replace(referenced, details={**samples.details, "noise": dict(noise), "notes": notes})


def with_expected(samples: SampleSet, outputs: Sequence[Arrays], origin: str) -> SampleSet:
    """``outputs`` in the order of the samples."""
    return replace(
        samples,
        samples=tuple(
            replace(sample, expected=dict(expected)) for sample, expected in zip(samples.samples, outputs, strict=True)
        ),
        references=origin,
    )


def onnx_of(model: Model) -> Path | None:
    """The live version's ONNX file, ``None`` if it has another format."""
    version = model.live_version
    if version is None or version.format is not ModelFormat.ONNX or version.file is None:
        return None
    if version.file.is_dir():
        # With external data, Triton opens a directory model.onnx that holds a file of the same name.
        return version.file / version.file.name
    return version.file


def served_outputs(
    samples: SampleSet, answers: Iterable[Answer | FailedAnswer], datatypes: Mapping[str, str], model: Model
) -> list[Arrays]:
    """One complete answer for every sample, in order. Raises :class:`ReferenceFailure` for the first that is not."""
    outputs: list[Arrays | None] = [None] * len(samples)
    for answer in answers:
        sample = samples.samples[answer.index]
        if isinstance(answer, FailedAnswer):
            raise ReferenceFailure(
                f"the model as found cannot answer sample {sample.id}: {answer.reason}",
                where=samples.origin,
                remedy="correct or remove the sample (--int-range bounds random integers)"
                if samples.synthetic
                else "correct or remove the sample, or repair the model",
            )
        for name, datatype in datatypes.items():
            if name not in answer.outputs:
                problem = f"does not return output {name!r}"
            elif answer.datatypes.get(name, datatype) != datatype:
                problem = f"returns output {name!r} as {answer.datatypes[name]}, its config says {datatype}"
            else:
                continue
            raise ReferenceFailure(
                f"the model as found {problem}", where=model.directory, remedy="correct config.pbtxt or the model"
            )
        outputs[answer.index] = {name: answer.outputs[name] for name in datatypes}
    complete = [output for output in outputs if output is not None]
    if len(complete) < len(outputs):
        raise ReferenceFailure(
            f"the model as found answered {len(complete)} of {len(outputs)} samples",
            remedy="make it answer every sample first; `bench` shows what it does",
        )
    return complete


def check_finite(samples: SampleSet) -> Iterator[Finding]:
    """NaN in the expected outputs is fatal: against it nothing can be shown. An infinity is a note: some models mask
    with it, and a candidate must have the same one at the same place."""
    infinite: dict[str, int] = {}
    for sample in samples.samples:
        for name, array in (sample.expected or {}).items():
            if array.dtype.kind != "f":
                continue
            if bool(np.isnan(array).any()):
                yield Finding(
                    "not_finite",
                    f"expected output {name!r} of sample {sample.id} has NaN in {int(np.isnan(array).sum())} of "
                    f"{array.size} values",
                )
                return
            if bool(np.isinf(array).any()):
                infinite[name] = infinite.get(name, 0) + 1
    for name, count in infinite.items():
        yield Finding(
            "infinite",
            f"output {name!r} of the {samples.references} reference has infinities in {count} of {len(samples)} "
            "samples: candidates must have them at the same places",
            fatal=False,
        )


def check_stability(
    samples: SampleSet, model: Model, answers: AnswersOf, tolerances: Sequence[Tolerance], *, seed: int = 0
) -> ReferenceCheck:
    """The reference, whose own answers are the samples' ``expected``, asked again: in another order, and in batches.

    It must stay within the tolerances, or, without any, within a relative L2 of 10%. Outputs that are integers or texts
    must then be equal.
    """
    datatypes = {spec.name: spec.datatype for spec in model.outputs}
    chosen = list(range(len(samples)))
    random.Random(seed).shuffle(chosen)
    order = [(index,) for index in chosen[:REPEATED]]
    rounds = [("asked again in another order", "unstable", merged_set(samples, order, name="repeated"))]
    apart = discriminating(samples, 8)
    if model.batched and model.max_batch_size > 1 and apart and not any(spec.shape_tensor for spec in model.inputs):
        sizes = sorted({size for size in (2, 3, min(8, model.max_batch_size), model.max_batch_size) if size <= 32})
        plan = [
            tuple(apart[position % len(apart)] for position in range(size))
            for size in sizes
            if size <= model.max_batch_size
        ]
        rounds.append(("asked in batches", "batch_dependent", merged_set(samples, plan, name="batched")))
    findings: list[Finding] = []
    noise: dict[str, float] = {}
    repeats = []
    for text, code, again in rounds:
        responses = list(answers(again))
        plain = validate(AS_FOUND, again, responses, (), datatypes)
        repeats.append(plain)
        for output in plain.outputs:
            key = f"{output.output}:{output.metric}"
            noise[key] = max(noise.get(key, 0.0), output.loss)
        reason = plain.defects[0] if plain.defects else ""
        if not reason and tolerances:
            reason = validate(AS_FOUND, again, responses, _without_confidence(tolerances), datatypes).reason
        elif not reason:
            reason = next((_too_far(output.output, output.metric, output.loss) for output in plain.outputs
                           if _too_far(output.output, output.metric, output.loss)), "")  # fmt: skip
        if reason:
            findings.append(Finding(code, f"the model as found, {text}, does not repeat its answers: {reason}"))
    return ReferenceCheck(tuple(findings), noise, tuple(repeats))


def _too_far(output: str, metric: str, loss: float) -> str:
    limits = {"rel_l2": UNSTABLE, "exact": 0.0}
    if metric in limits and loss > limits[metric]:
        return f"output {output}: {metric} loss {loss:.3g} between two answers to one sample"
    return ""


def _without_confidence(tolerances: Sequence[Tolerance]) -> tuple[Tolerance, ...]:
    """A few repeats support no high floor; what they show must still be within it. Tags do not survive merging."""
    return tuple(
        replace(tolerance, options={k: v for k, v in tolerance.options.items() if k != "confidence"})
        for tolerance in tolerances
        if "tag" not in tolerance.options
    )


def check_agreement(
    samples: SampleSet, served: Sequence[Arrays], tolerances: Sequence[Tolerance], datatypes: Mapping[str, str]
) -> Iterator[Finding]:
    """The model as found against a reference that is not its own. Without tolerances the distance is only noted."""
    responses = [Answer(index, outputs, {}) for index, outputs in enumerate(served)]
    parity = validate(AS_FOUND, samples, responses, _without_confidence(tolerances), datatypes)
    if not parity.passed:
        yield Finding(
            "disagrees", f"the model as found disagrees with the {samples.references} outputs: {parity.reason}"
        )
    elif not tolerances:
        losses = ", ".join(
            f"{o.output}:{o.metric} {o.loss:.3g}" for o in parity.outputs if o.metric in ("lInf", "exact")
        )
        yield Finding(
            "distance", f"the model as found differs from the {samples.references} outputs by {losses}", fatal=False
        )
