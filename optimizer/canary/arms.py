"""Both arms under the same load: what becomes a step's evidence.

In the shadow every request goes to both at once. From then on the arms get equal slices of the load in alternating time
windows (baseline first in even pairs, candidate first in odd ones), since arms that share a GPU or a machine would slow
each other; the baseline's slice is as large and as fresh as the candidate's.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.accuracy.inputs import load_samples
from optimizer.accuracy.synthetic import parse_int_range, parse_shape, synthetic_samples
from optimizer.accuracy.tolerances import check_tolerances, parse_tolerances
from optimizer.canary.answers import Comparer
from optimizer.canary.dual import DualSender, Exchange
from optimizer.canary.evidence import ArmWindow, Compared, WindowPair
from optimizer.canary.plan import CanaryPlan, Endpoint, inputs_digest
from optimizer.canary.watch import Snapshot, Watch, change
from optimizer.errors import EnvironmentFailure, InputError, ReferenceFailure
from optimizer.load.bodies import grpc_bodies
from optimizer.load.estimators import answered_latencies_us
from optimizer.load.generator import LoadGenerator, Window
from optimizer.load.pairs import pair_order
from optimizer.load.schedule import read_trace, sample_order
from optimizer.records.measurement import Arrival
from optimizer.records.model import Model, TensorSpec
from optimizer.records.samples import SampleSet
from optimizer.triton.client import TritonClient, TritonError
from optimizer.triton.protobuf import datatype_name

WARMUP_S = 0.1
DRAIN_S = 10.0
KEPT_BYTES = 64 * 2**20
"""Of one window's answers, what is kept to be compared."""
MOST_KEPT = 20_000
STABILITY_SAMPLES = 200
PATIENCE = 20
"""In the shadow an answer may take so many times the baseline's slowest before it counts as none."""
LEAST_PATIENCE_S = 5.0


def model_of(endpoint: Endpoint) -> Model:
    """The model as its server describes it. Raises :class:`EnvironmentFailure` where it does not serve it."""
    with TritonClient(endpoint.grpc_url, timeout_s=10.0) as client:
        if not client.wait_live(3.0):
            raise EnvironmentFailure(
                "no Triton server answers", where=endpoint.grpc_url, remedy="name its gRPC port, and start it"
            )
        try:
            config = client.model_config(endpoint.model)
        except TritonError as error:
            raise EnvironmentFailure(
                f"does not serve the model: {error.problem}", where=endpoint.grpc_url, field=endpoint.model,
                remedy="load it, or correct the name",
            ) from None  # fmt: skip
    if config.model_transaction_policy.decoupled:
        raise InputError(
            "is decoupled: its answers to one request may be many", where=endpoint.grpc_url, field=endpoint.model,
            remedy="a canary needs a model with one answer to a request",
        )  # fmt: skip
    return Model(
        name=endpoint.model, directory=Path(), config_path=None, config_text="", effective_config_text="",
        platform=config.platform, backend=config.backend, max_batch_size=config.max_batch_size,
        inputs=tuple(
            replace(_spec(tensor), optional=bool(tensor.optional), ragged=bool(tensor.allow_ragged_batch))
            for tensor in config.input
        ),
        outputs=tuple(_spec(tensor) for tensor in config.output), versions=(), version_policy="",
        default_model_filename="",
    )  # fmt: skip


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(
        tensor.name, datatype_name(tensor.data_type), tuple(tensor.dims), shape_tensor=bool(tensor.is_shape_tensor)
    )


def check_alike(baseline: Model, candidate: Model) -> None:
    """Raises :class:`InputError` where clients of the one could not use the other."""
    for kind in ("inputs", "outputs"):
        ours = {spec.name: (spec.datatype, spec.dims) for spec in getattr(baseline, kind)}
        theirs = {spec.name: (spec.datatype, spec.dims) for spec in getattr(candidate, kind)}
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise InputError(
                    f"{kind[:-1]} is {ours.get(name, 'absent')} at the baseline and {theirs.get(name, 'absent')} at "
                    "the candidate",
                    where=candidate.name,
                    field=name,
                    remedy="compare models with the same inputs and outputs",
                )
    if candidate.max_batch_size < baseline.max_batch_size:
        raise InputError(
            f"takes batches of up to {candidate.max_batch_size}, the baseline of up to {baseline.max_batch_size}",
            where=candidate.name,
            field="max_batch_size",
            remedy="give the candidate the baseline's max_batch_size",
        )


def samples_of(plan: CanaryPlan, model: Model) -> SampleSet:
    """The plan's samples. Raises :class:`InputError` where their file or the trace is not the one that was planned
    with, and where the trace names a sample that is not there."""
    if plan.inputs is not None:
        samples = load_samples(Path(plan.inputs), model, name="canary")
    else:
        samples = synthetic_samples(
            model, plan.synthetic_count, plan.workload.seed,
            shapes=dict(parse_shape(text) for text in plan.shapes),
            int_ranges=dict(parse_int_range(text) for text in plan.int_ranges),
        )  # fmt: skip
    if plan.workload.trace is not None:
        read_trace(Path(plan.workload.trace), tuple(sample.id for sample in samples.samples))
    for file, digest in ((plan.inputs, plan.inputs_sha256), (plan.workload.trace, plan.trace_sha256)):
        if file is not None and digest is not None and inputs_digest(Path(file)) != digest:
            raise InputError(
                "is not the file that was planned with", where=file, remedy="restore it, or make a new plan"
            )
    return samples


class Arms:
    """A context manager: connections, load processes and observers of both arms, for as long as a canary runs."""

    def __init__(self, plan: CanaryPlan, candidate: Endpoint, directory: Path) -> None:
        self.plan = plan
        self.endpoints = (plan.baseline, candidate)
        self._directory = directory
        model = model_of(plan.baseline)
        check_alike(model, model_of(candidate))
        tolerances = parse_tolerances(plan.tolerances)
        check_tolerances(tolerances, model.outputs)
        self.samples = samples_of(plan, model)
        self._datatypes = {spec.name: spec.datatype for spec in model.inputs}
        self._batched = model.batched
        self._comparer = Comparer(
            self.samples.samples, {spec.name: spec.datatype for spec in model.outputs}, tolerances
        )
        self._bodies = grpc_bodies(self.samples.samples, self._datatypes).payloads
        self._references: dict[int, bytes] = {}
        self._turns = itertools.cycle(self._shadow_order())
        self._answer_bytes = 1
        self._patience_s = LEAST_PATIENCE_S
        self._stack = contextlib.ExitStack()
        self._generators: tuple[LoadGenerator, LoadGenerator] | None = None
        self.watches = tuple(Watch(endpoint, shared=plan.shared) for endpoint in self.endpoints)
        for watch in self.watches:
            self._stack.callback(watch.close)

    def __enter__(self) -> Arms:
        try:
            self._learn()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def memory_readable(self) -> bool:
        return all(watch.memory_source for watch in self.watches)

    @property
    def own_memory(self) -> bool:
        """The candidate's memory can be told from the baseline's while both are at work."""
        return all(watch.own_memory for watch in self.watches)

    def _shadow_order(self) -> Sequence[int]:
        if self.plan.workload.trace is not None:
            ids = tuple(sample.id for sample in self.samples.samples)
            return [int(index) for index in read_trace(Path(self.plan.workload.trace), ids)[1]]
        return [int(index) for index in sample_order(len(self.samples), self.plan.workload.seed)]

    def _learn(self) -> None:
        """The baseline's answer to every sample, and whether it gives the same one again: a baseline that differs
        from itself beyond the tolerance can be compared with nothing."""
        url, model = self.plan.baseline.grpc_url, self.plan.baseline.model
        with DualSender((url, url), (model, model), self._bodies) as sender:
            exchanges = sender.run(range(len(self.samples)), in_flight=self.plan.workload.concurrency)
        for exchange in exchanges:
            first, second = exchange.answers
            if first is None or second is None:
                raise ReferenceFailure(
                    f"the baseline fails on sample {self.samples.samples[exchange.sample].id}: "
                    f"{exchange.failures[0] or exchange.failures[1]}",
                    where=url, field=model, remedy="use samples that it answers, or repair it",
                )  # fmt: skip
            self._references[exchange.sample] = first
            self._patience_s = max(self._patience_s, PATIENCE * max(exchange.latency_us) / 1e6)
            self._answer_bytes = max(self._answer_bytes, len(first))
            if exchange.sample < STABILITY_SAMPLES:
                self._comparer.add(exchange.sample, second, first)
        compared = self._comparer.take()
        if compared.mismatches or compared.non_finite:
            raise ReferenceFailure(
                f"the baseline is not within the tolerance of {self._itself}: {compared.first}",
                where=url, field=model, remedy="widen --tolerance to what the baseline keeps, or repair it",
            )  # fmt: skip

    @property
    def _itself(self) -> str:
        return "the golden outputs" if self.samples.samples[0].expected is not None else "itself"

    # Shadow

    @contextlib.contextmanager
    def shadow(self) -> Iterator[DualSender]:
        urls = (self.endpoints[0].grpc_url, self.endpoints[1].grpc_url)
        models = (self.endpoints[0].model, self.endpoints[1].model)
        with DualSender(urls, models, self._bodies) as sender:
            yield sender

    def shadow_chunk(self, sender: DualSender, count: int) -> WindowPair:
        """``count`` requests to both arms at once."""
        before = self._look()
        exchanges = sender.run(
            list(itertools.islice(self._turns, count)),
            in_flight=self.plan.workload.concurrency,
            timeout_s=self._patience_s,
        )
        after = self._look()
        for exchange in exchanges:
            reference, answer = exchange.answers
            if answer is not None:
                self._comparer.add(exchange.sample, answer, reference or self._references[exchange.sample])
        windows = [_shadowed(exchanges, side, before[side], after[side], self.own_memory) for side in (0, 1)]
        return WindowPair(windows[0], windows[1], self._comparer.take())

    # Windows

    def pair(self, step: str, index: int) -> WindowPair:
        """One window of each arm, back to back, with the step's slice of the load."""
        windows: dict[int, ArmWindow] = {}
        compared = Compared()
        workload = replace(self.plan.workload_at(step), seed=self.plan.workload.seed + index)
        for side in (0, 1) if pair_order(index) == "AB" else (1, 0):
            generator = self._ready()[side]
            before = self.watches[side].look()
            window = generator.run(
                self.endpoints[side].model, workload, candidate_id=("baseline", "candidate")[side],
                keep_responses=min(MOST_KEPT, KEPT_BYTES // self._answer_bytes + 1), warmup_s=WARMUP_S,
                drain_s=DRAIN_S,
            )  # fmt: skip
            after = self.watches[side].look()
            windows[side] = _measured(window, before, after, open_loop=workload.arrival is not Arrival.CLOSED_LOOP)
            window.records_path.unlink(missing_ok=True)
            if side == 1:
                for sample, answer in window.responses:
                    self._comparer.add(sample, answer, self._references[sample])
                compared = self._comparer.take()
        return WindowPair(windows[0], windows[1], compared)

    def _ready(self) -> tuple[LoadGenerator, LoadGenerator]:
        """Load processes for each server, started when they are first needed."""
        if self._generators is None:
            made: dict[str, LoadGenerator] = {}
            for endpoint in self.endpoints:
                if endpoint.grpc_url not in made:
                    generator = LoadGenerator(
                        endpoint.grpc_url, processes=self.plan.client_processes, directory=self._directory / "load",
                        metrics_url=endpoint.metrics_url,
                    )  # fmt: skip
                    made[endpoint.grpc_url] = self._stack.enter_context(generator)
                    generator.prepare(self.samples.samples, self._datatypes, batched=self._batched)
            self._generators = (made[self.endpoints[0].grpc_url], made[self.endpoints[1].grpc_url])
        return self._generators

    def _look(self) -> tuple[Snapshot, Snapshot]:
        return self.watches[0].look(), self.watches[1].look()


def _shadowed(
    exchanges: Sequence[Exchange], side: int, before: Snapshot, after: Snapshot, own_memory: bool
) -> ArmWindow:
    failures: dict[str, int] = {}
    for exchange in exchanges:
        reason = exchange.failures[side]
        if reason is not None:
            failures[reason] = failures.get(reason, 0) + 1
    latencies = np.array([each.latency_us[side] for each in exchanges if each.failures[side] is None])
    seen = change(before, after)
    return ArmWindow(
        requests=len(latencies),
        failures=failures,
        latencies_us=latencies,
        memory_before=before.memory_bytes if own_memory else None,
        memory_after=after.memory_bytes if own_memory else None,
        restarted=seen.restarted,
        server_requests=seen.requests,
        server_failures=seen.failures,
    )


def _measured(window: Window, before: Snapshot, after: Snapshot, *, open_loop: bool) -> ArmWindow:
    measurement = window.measurement
    seen = change(before, after)
    fatal: Mapping[str, int] = measurement.failures
    return ArmWindow(
        requests=measurement.requests,
        failures=fatal,
        throughput=measurement.throughput,
        latencies_us=answered_latencies_us(window.records(), open_loop=open_loop),
        memory_before=before.memory_bytes,
        memory_after=after.memory_bytes,
        restarted=seen.restarted,
        server_requests=seen.requests,
        server_failures=seen.failures,
        usable=measurement.usable,
        note="; ".join(measurement.warnings),
    )
