"""Puts load on a Triton server from several processes and measures what comes back.

The processes are started once and used for many windows and models: they hold the samples as serialized requests
without a model name, and the name's bytes are put in front (protobuf fields concatenate).
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from optimizer.errors import InputError
from optimizer.load.bodies import Bodies, Part, grpc_bodies, http_bodies, mixed_bodies, shared_memory_bodies
from optimizer.load.estimators import summarize
from optimizer.load.honesty import Observation, check
from optimizer.load.loop import Plan, Report
from optimizer.load.request_log import Column, RequestLog, load_request_log, merge_reports
from optimizer.load.resources import ResourceSampler
from optimizer.load.schedule import arrival_times, read_trace, sample_order
from optimizer.load.shared_memory import NAME, SHARED_MEMORY, CudaRegion, OutputSlots, SystemRegion, lay_out
from optimizer.load.worker import Prepare, Run
from optimizer.load.worker_process import WorkerProcess
from optimizer.records.measurement import Arrival, Measurement, Workload
from optimizer.records.samples import Sample
from optimizer.triton.client import Statistics, TritonClient, TritonError

LEAD_S = 0.05
"""From the command to the first request: every process has read its plan by then."""
PREPARE_TIMEOUT_S = 30.0
REPORT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Window:
    """One window's Measurement, and what goes beyond it."""

    measurement: Measurement
    responses: tuple[tuple[int, bytes], ...]
    """(sample index, serialized ModelInferResponse) of randomly chosen requests under load."""
    records_path: Path
    spread: float | None = None
    """How far thirds of the window are from their mean, in throughput or latency; ``None``: too few answers to tell."""
    aborted: str = ""
    """``code: text`` when the window ended early: ``server_gone``, ``nothing_succeeds``."""

    def records(self) -> RequestLog:
        return load_request_log(self.records_path)


class LoadGenerator:
    """A context manager. ``grpc_url`` is ``host:port``; ``directory`` receives the request logs.

    * ``processes``: number of load processes; by default a quarter of the cores, at least 1 and at most 4.
    * ``transport``: ``grpc``, or ``http`` with ``http_url``.
    * ``shared_memory``: ``system`` or ``cuda`` (inputs only) instead of tensors over the wire; gRPC only.
    * ``metrics_url``, ``memory``, ``gpu``: where to read queue length, server memory and GPU from while a window runs.

    Raises :class:`EnvironmentFailure` when a load process cannot start or dies. A failing server is never an
    exception: it is a Window with ``usable=False`` and typed failures.
    """

    def __init__(
        self,
        grpc_url: str,
        *,
        processes: int | None = None,
        directory: Path,
        transport: Literal["grpc", "http"] = "grpc",
        http_url: str | None = None,
        shared_memory: Literal["system", "cuda"] | None = None,
        metrics_url: str | None = None,
        memory: Callable[[], int | None] | None = None,
        gpu: str | None = None,
    ) -> None:
        if transport == "http" and http_url is None:
            raise InputError("the HTTP transport needs an address", field="http_url", remedy="give host:port")
        if transport == "http" and shared_memory:
            raise InputError(
                "shared memory goes with gRPC only", field="shared_memory", remedy="leave it out, or use transport grpc"
            )
        self.grpc_url = grpc_url
        self.directory = directory
        self.processes = processes or max(1, min(4, (os.cpu_count() or 1) // 4))
        self._transport = transport
        self._url = http_url if transport == "http" and http_url is not None else grpc_url
        self._shared_memory = shared_memory
        self._token = f"{NAME}_{os.getpid()}_{secrets.token_hex(4)}"
        self._region: SystemRegion | CudaRegion | None = None
        self._regions = itertools.count(1)
        self._sampler = ResourceSampler(memory=memory, metrics_url=metrics_url, gpu=gpu)
        self._workers: list[WorkerProcess] = []
        self._rows: Column = np.empty(0, np.int64)
        self._sample_ids: tuple[str, ...] = ()
        self._stand_ins: Mapping[str, str] = {}
        self._in_turn = False
        """Samples are sent in the order in which they were prepared, and not in one that the seed chooses."""
        self._numbers = itertools.count(1)

    def __enter__(self) -> LoadGenerator:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            for number in range(self.processes):
                self._workers.append(
                    WorkerProcess(
                        self.directory / f"load-process-{number}.log", remove=[f"{SHARED_MEMORY}/{self._token}*"]
                    )
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        for worker in self._workers:
            worker.ask_to_end()
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._close_region()
        self._sampler.close()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(pid for worker in self._workers if (pid := worker.pid) is not None)

    def prepare(
        self,
        samples: Sequence[Sample],
        datatypes: Mapping[str, str],
        *,
        batched: bool = True,
        output_bytes: Mapping[str, int] | None = None,
        stand_ins: Mapping[str, str] | None = None,
    ) -> None:
        """Sends the samples to the processes, in place of those of an earlier call. ``datatypes`` maps input name to
        Triton data type. Where the model is not ``batched`` (max_batch_size 0) a request is one inference, whatever its
        first dimension is, as Triton's statistics count it. With system shared memory, outputs named in
        ``output_bytes`` (the bytes of the largest answer) come back through it as well. ``stand_ins``: for a trace, see
        :attr:`SampleSet.stand_ins`.
        """
        if not self._workers:
            raise RuntimeError("enter the LoadGenerator's with block first")
        if not samples:
            raise InputError("no samples to send", field="samples", remedy="give at least one sample")
        outputs = None
        if self._shared_memory:
            bodies = self._stage(samples, datatypes)
            if output_bytes and self._shared_memory == "system":
                outputs = OutputSlots(dict(output_bytes), self._token)
        else:
            bodies = (http_bodies if self._transport == "http" else grpc_bodies)(samples, datatypes)
        self._hand_out(bodies, [sample.batch if batched else 1 for sample in samples], samples, outputs)
        self._stand_ins = stand_ins or {}
        self._in_turn = False

    def prepare_mixed(self, parts: Sequence[Part]) -> tuple[str, ...]:
        """Like :meth:`prepare`, for a load that asks several models in turn; returns the model's name by sample index.

        :meth:`run` then needs one of the names for the server's statistics only. gRPC without shared memory.
        """
        if self._transport != "grpc" or self._shared_memory:
            raise InputError(
                "a mixed load goes over gRPC without shared memory", field="transport", remedy="make another generator"
            )
        bodies, requests = mixed_bodies(parts)
        batched = {part.model: part.batched for part in parts}
        rows = [sample.batch if batched[model] else 1 for model, sample in requests]
        self._hand_out(bodies, rows, [sample for _, sample in requests], None)
        self._stand_ins = {}
        self._in_turn = True
        return tuple(model for model, _ in requests)

    def _hand_out(
        self, bodies: Bodies, rows: Sequence[int], samples: Sequence[Sample], outputs: OutputSlots | None
    ) -> None:
        region = (self._region.name,) if self._region is not None else ()
        cuda = self._shared_memory == "cuda"
        commands = [
            # The first process takes back the inputs' registration, the others have only their own.
            Prepare(self._transport, self._url, self.grpc_url, bodies, outputs, () if number else region, cuda)
            for number in range(len(self._workers))
        ]
        for worker, command in zip(self._workers, commands, strict=True):
            worker.write(command)
        deadline = time.monotonic() + PREPARE_TIMEOUT_S
        for worker in self._workers:
            worker.read(deadline, str)
        self._rows = np.array(rows, dtype=np.int64)
        self._sample_ids = tuple(sample.id for sample in samples)

    def run(
        self,
        model: str,
        workload: Workload,
        *,
        candidate_id: str,
        keep_responses: int = 0,
        sample_weights: Sequence[float] | None = None,
        warmup_s: float = 0.2,
        drain_s: float = 10.0,
    ) -> Window:
        """One window. The load runs for ``warmup_s`` before it; answers still out at its end are awaited for at most
        ``drain_s``, so that the next window meets an empty server. How its numbers are estimated is said in
        :mod:`optimizer.load.estimators`, when they may be believed in :mod:`optimizer.load.honesty`.
        """
        if not len(self._rows):
            raise InputError("nothing prepared", field="samples", remedy="call prepare() before run()")
        start_ns = time.monotonic_ns() + round((LEAD_S + warmup_s) * 1e9)
        plans, duration_ns, cut = self._plans(workload, start_ns, warmup_s, drain_s, keep_responses, sample_weights)
        start_ns = plans[0].window_start_ns
        started_at = time.time() + (start_ns - time.monotonic_ns()) / 1e9
        for worker, plan in zip(self._workers, plans, strict=True):
            worker.write(Run(model, plan))
        with TritonClient(self.grpc_url, timeout_s=2.0) as client:
            _sleep_until(start_ns)
            before = _statistics(client, model)
            self._sampler.start(model)
            try:
                self._wait_for_reports(plans, start_ns + duration_ns)
            finally:
                resources = self._sampler.stop()
            after = _statistics(client, model)
        deadline = time.monotonic() + max(0.0, (plans[0].drain_end_ns - time.monotonic_ns()) / 1e9) + REPORT_TIMEOUT_S
        reports = [worker.read(deadline, Report) for worker in self._workers]
        log = merge_reports(reports, window_start_ns=start_ns, duration_ns=duration_ns)
        path = self.directory / f"{candidate_id}-{next(self._numbers):05d}.npz"
        log.save(path)
        open_loop = workload.arrival is not Arrival.CLOSED_LOOP
        summary = summarize(log, self._rows, open_loop=open_loop, unsent=sum(report.unsent for report in reports))
        aborted = next((report.aborted for report in reports if report.aborted), "")
        if summary.requests and not aborted:
            cpu_s = [report.cpu_ns / 1e9 for report in reports]
            resources = replace(
                resources,
                client_cpu=max(cpu_s) / (duration_ns / 1e9),
                client_cpu_us_per_request=sum(cpu_s) * 1e6 / summary.requests,
            )
        server = after.since(before) if before is not None and after is not None else None
        warnings, usable = check(
            Observation(
                summary, resources, server, duration_ns / 1e9, None if open_loop else workload.concurrency, aborted, cut
            )
        )
        measurement = Measurement(
            candidate_id=candidate_id,
            workload=workload,
            started_at=started_at,
            duration_s=duration_ns / 1e9,
            requests=summary.requests,
            inferences=summary.inferences,
            failures=summary.failures,
            throughput=summary.throughput,
            latency_mean_us=summary.latency_mean_us,
            percentiles_us=summary.percentiles_us,
            server=server,
            resources=resources,
            warnings=warnings,
            usable=usable,
            raw_file=path.name,
        )
        responses = [answer for report in reports for answer in report.responses]
        if len(responses) > keep_responses:
            # Every process kept its share, rounded up.
            random.Random(workload.seed).shuffle(responses)
        return Window(measurement, tuple(responses[:keep_responses]), path, summary.spread, aborted)

    def _stage(self, samples: Sequence[Sample], datatypes: Mapping[str, str]) -> Bodies:
        data, places = lay_out(samples, datatypes)
        self._close_region()
        name = f"{self._token}_in_{next(self._regions)}"
        if self._shared_memory == "cuda":
            self._region = CudaRegion(name, data)
        else:
            self._region = SystemRegion(name, max(1, len(data)))
            self._region.memory[: len(data)] = data
        with TritonClient(self.grpc_url, timeout_s=5.0) as client:
            self._region.register(client)
        return shared_memory_bodies(samples, datatypes, places, name)

    def _close_region(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None

    def _plans(
        self,
        workload: Workload,
        start_ns: int,
        warmup_s: float,
        drain_s: float,
        keep_responses: int,
        weights: Sequence[float] | None,
    ) -> tuple[list[Plan], int, int]:
        """What each process does, the window's length in ns, and how many requests of a trace come after it."""
        count = len(self._workers)
        duration_ns = round(workload.duration_s * 1e9)
        due: Column = np.empty(0, np.int64)
        cut = 0
        if workload.arrival is Arrival.CLOSED_LOOP:
            if workload.concurrency < 1:
                raise InputError(
                    f"a closed loop needs a concurrency of at least 1, not {workload.concurrency}",
                    field="concurrency",
                    remedy="give the number of requests to keep in flight",
                )
            order = self._order(workload, None, weights)
        elif workload.arrival is Arrival.TRACE:
            if workload.trace is None:
                raise InputError("a trace needs a file", field="trace", remedy="name the trace file")
            due, order = read_trace(Path(workload.trace), self._sample_ids, self._stand_ins)
            inside = due < duration_ns
            cut = len(due) - int(inside.sum())
            due, order = due[inside], order[inside]
            start_ns -= round(warmup_s * 1e9)
            warmup_s = 0.0
        else:
            due = arrival_times(workload, lead_s=warmup_s)
            order = self._order(workload, len(due), weights)
        plans = []
        for number in range(count):
            closed = workload.arrival is Arrival.CLOSED_LOOP
            slots = workload.concurrency // count + (number < workload.concurrency % count) if closed else 0
            plans.append(
                Plan(
                    begin_ns=start_ns - round(warmup_s * 1e9),
                    window_start_ns=start_ns,
                    window_end_ns=start_ns + duration_ns,
                    drain_end_ns=start_ns + duration_ns + round(drain_s * 1e9),
                    slots=slots,
                    # Every process starts elsewhere in the round, so that equal inputs meet as late as possible.
                    order=np.roll(order, -(number * len(order) // count)).tolist() if closed else (),
                    intended_ns=(due[number::count] + start_ns).tolist(),
                    samples=() if closed else order[number::count].tolist(),
                    keep_responses=-(-keep_responses // count),
                    seed=workload.seed * 1000 + number,
                )
            )
        return plans, duration_ns, cut

    def _order(self, workload: Workload, length: int | None, weights: Sequence[float] | None) -> Column:
        if not self._in_turn:
            return sample_order(len(self._rows), workload.seed, length=length, weights=weights)
        return np.resize(np.arange(len(self._rows), dtype=np.int32), length if length is not None else len(self._rows))

    def _wait_for_reports(self, plans: Sequence[Plan], end_ns: int) -> None:
        """Until the window's end, or until a process reports early (its server has gone)."""
        with selectors.DefaultSelector() as selector:
            for worker, plan in zip(self._workers, plans, strict=True):
                if plan.slots or plan.intended_ns:
                    selector.register(worker.descriptor, selectors.EVENT_READ)
            selector.select(max(0.0, (end_ns - time.monotonic_ns()) / 1e9))


def _sleep_until(moment_ns: int) -> None:
    delay_s = (moment_ns - time.monotonic_ns()) / 1e9
    if delay_s > 0:
        time.sleep(delay_s)


def _statistics(client: TritonClient, model: str) -> Statistics | None:
    try:
        return client.statistics(model)
    except TritonError:
        return None
