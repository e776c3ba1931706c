"""A test stand: a sandbox with a load generator, and the models that are loaded side by side on it.

It knows how to keep a server alive for a study: a candidate that kills the server loses, the server is started again,
and the study goes on.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal

from optimizer.accuracy.requests import Infer
from optimizer.accuracy.validator import Answer, FailedAnswer
from optimizer.errors import EnvironmentFailure
from optimizer.load.generator import LoadGenerator, Window
from optimizer.load.warmup import Warmup, find_warmup
from optimizer.records.deployment import Deployment, LoadFailure, ServerInfo
from optimizer.records.measurement import Workload
from optimizer.records.samples import SampleSet
from optimizer.sandbox._base import Launcher, Sandbox, SandboxOptions
from optimizer.triton.client import TritonClient, TritonError, build_request, parse_response

DEFAULT_RAMP_S = 0.2
"""Load before a window where no warm-up was measured."""

RESTARTS = 8
"""A server that dies more often than this with no good window between is the environment's fault, not a candidate's."""


class Stand:
    """Use as a context manager. ``capacity`` is how many candidates stay loaded beside the pinned references; ``logs``
    is where the request logs of all windows go (default: below the sandbox's work directory)."""

    def __init__(
        self,
        launcher: Launcher,
        options: SandboxOptions,
        *,
        client_processes: int | None = None,
        transport: Literal["grpc", "http"] = "grpc",
        shared_memory: bool = False,
        capacity: int = 2,
        logs: Path | None = None,
    ) -> None:
        self._launcher = launcher
        self._options = options
        self._client_processes = client_processes
        self._transport = transport
        self._shared_memory = shared_memory
        self._capacity = capacity
        self._loaded: OrderedDict[str, Deployment] = OrderedDict()
        self._pinned: set[str] = set()
        self._samples: tuple[SampleSet, Mapping[str, str], bool] | None = None
        self._warm: dict[str, Warmup | None] = {}
        self.logs = logs or options.workdir / "load"
        self._sandbox: Sandbox | None = None
        self._generator: LoadGenerator | None = None
        self._restarts = 0

    # Life

    def __enter__(self) -> Stand:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        generator, self._generator = self._generator, None
        sandbox, self._sandbox = self._sandbox, None
        try:
            if generator is not None:
                generator.close()
        finally:
            if sandbox is not None:
                sandbox.close()

    @property
    def sandbox(self) -> Sandbox:
        if self._sandbox is None:
            raise EnvironmentFailure(
                "the sandbox is not running", remedy="this is a bug: use the stand as a context manager"
            )
        return self._sandbox

    @property
    def info(self) -> ServerInfo:
        return self.sandbox.info

    @property
    def alive(self) -> bool:
        return self._sandbox is not None and self._sandbox.alive()

    def _start(self) -> None:
        self._sandbox = self._launcher.start(self._options)

    def revive(self) -> bool:
        """Starts a dead server again with the pinned models. ``False`` if it was alive."""
        if self.alive or self._sandbox is None:
            return False
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise EnvironmentFailure(
                f"the sandbox server died {self._restarts} times",
                remedy="look at the last log lines: " + (self._sandbox.log_tail(5) if self._sandbox else "none"),
            )
        pinned = [deployment for name, deployment in self._loaded.items() if name in self._pinned]
        self.close()
        self._loaded.clear()
        self._warm.clear()
        self._start()
        for deployment in pinned:
            failure = self.serve(deployment, pin=True)
            if failure is not None:
                raise EnvironmentFailure(
                    f"a reference does not load any more: {failure.message}",
                    where=deployment.name,
                    remedy="give the sandbox more memory, and `resume`",
                )
        return True

    # Models

    def serve(self, deployment: Deployment, *, pin: bool = False) -> LoadFailure | None:
        """Loads it beside what is there, dropping the candidate that was used longest ago if it gets too many."""
        # A candidate that killed the server was the last one to be asked: the next must not answer for it.
        self.revive()
        if pin:
            self._pinned.add(deployment.name)
        if self._loaded.get(deployment.name) == deployment:
            self._loaded.move_to_end(deployment.name)
            return None
        idle = [name for name in self._loaded if name not in self._pinned]
        while not pin and len(idle) >= self._capacity:
            self.drop(idle.pop(0))
        try:
            failure = self.sandbox.load(deployment)
        except EnvironmentFailure as error:
            if self.alive:
                raise
            failure = LoadFailure(deployment.name, "server_died", error.problem, self.sandbox.log_tail())
            self.revive()
        if failure is None:
            self._loaded[deployment.name] = deployment
            self._warm.pop(deployment.name, None)
        return failure

    def drop(self, name: str) -> None:
        self._loaded.pop(name, None)
        self._pinned.discard(name)
        self._warm.pop(name, None)
        with contextlib.suppress(TritonError):
            self.sandbox.unload(name)

    # Questions and load

    def answers(
        self,
        name: str,
        samples: SampleSet,
        datatypes: Mapping[str, str],
        *,
        in_flight: int = 8,
        timeout_s: float = 60.0,
    ) -> Iterator[Answer | FailedAnswer]:
        """Every sample once, ``in_flight`` at a time, so that a batching server forms batches. In sample order."""
        with TritonClient(self.info.grpc_url) as client:
            yield from answers_of(client, name, samples, datatypes, in_flight=in_flight, timeout_s=timeout_s)

    @contextlib.contextmanager
    def infer(self, name: str, datatypes: Mapping[str, str], *, timeout_s: float = 60.0) -> Iterator[Infer]:
        """A function that sends one request to a loaded model and gives its outputs and their data types."""
        with TritonClient(self.info.grpc_url) as client:
            yield lambda inputs: parse_response(
                client.infer_raw(build_request(name, inputs, datatypes), timeout_s=timeout_s)
            )

    def prepare(self, samples: SampleSet, datatypes: Mapping[str, str], *, batched: bool = True) -> None:
        """Sets the requests of the following loads; ``batched`` says whether their first dimension counts rows."""
        if self._samples is not None and self._samples[0] is samples:
            return
        self._samples = (samples, datatypes, batched)
        if self._generator is not None:
            self._generator.prepare(samples.samples, datatypes, batched=batched, stand_ins=samples.stand_ins)

    def load(
        self, name: str, workload: Workload, candidate_id: str, *, warmup_s: float = 0.0, keep_responses: int = 0
    ) -> Window:
        """One window on a loaded model, after a warm-up of at most ``warmup_s`` the first time it is used."""
        generator = self._ready_generator()
        if name not in self._warm:
            found = None
            if warmup_s > 0:
                found = find_warmup(generator, name, workload, candidate_id=candidate_id, limit_s=warmup_s)
                for log in self.logs.glob(f"{candidate_id}-warmup-*"):
                    log.unlink(missing_ok=True)
            self._warm[name] = found
        warm = self._warm[name]
        window = generator.run(
            name,
            workload,
            candidate_id=candidate_id,
            keep_responses=keep_responses,
            warmup_s=warm.ramp_s if warm is not None else DEFAULT_RAMP_S,
        )
        if name in self._loaded:
            self._loaded.move_to_end(name)
        if window.measurement.usable and self.alive:
            self._restarts = 0
        return window

    def _ready_generator(self) -> LoadGenerator:
        if self._generator is None:
            self.logs.mkdir(parents=True, exist_ok=True)
            generator = LoadGenerator(
                self.info.grpc_url,
                processes=self._client_processes,
                directory=self.logs,
                transport=self._transport,
                http_url=self.info.http_url,
                shared_memory="system" if self._shared_memory else None,
                metrics_url=self.info.metrics_url,
                memory=self.sandbox.memory_bytes,
                gpu=self._options.gpu,
            )
            self._generator = generator.__enter__()
            if self._samples is not None:
                samples, datatypes, batched = self._samples
                self._generator.prepare(samples.samples, datatypes, batched=batched, stand_ins=samples.stand_ins)
        return self._generator


def answers_of(
    client: TritonClient,
    name: str,
    samples: SampleSet,
    datatypes: Mapping[str, str],
    *,
    version: str = "",
    in_flight: int = 8,
    timeout_s: float = 60.0,
) -> Iterator[Answer | FailedAnswer]:
    """Every sample once, ``in_flight`` at a time, in sample order."""
    pending: OrderedDict[int, Callable[[], bytes]] = OrderedDict()
    for index, sample in enumerate(samples.samples):
        request = build_request(name, sample.inputs, datatypes, version=version)
        pending[index] = client.infer_future(request, timeout_s=timeout_s).result
        if len(pending) >= in_flight:
            yield _answer(*pending.popitem(last=False))
    while pending:
        yield _answer(*pending.popitem(last=False))


def _answer(index: int, result: Callable[[], bytes]) -> Answer | FailedAnswer:
    import grpc

    try:
        outputs, datatypes = parse_response(result())
    except grpc.RpcError as error:
        return FailedAnswer(index, f"{error.code().name}: {error.details()}")
    except ValueError as error:
        # An output of 0 bytes with a shape that is not empty, for one.
        return FailedAnswer(index, f"a response does not fill its shape: {error}")
    return Answer(index, outputs, datatypes)


def model_files(directory: Path, version: Path, number: int) -> dict[str, Path]:
    """Files of a deployment of one version as it is: that version, and what lies beside versions and config."""
    files = {f"{number}/{entry.name}": entry for entry in version.iterdir() if entry.name != "optimizer.json"}
    for entry in directory.iterdir():
        if entry.name not in ("config.pbtxt", "configs") and not entry.name[0].isdigit():
            files[entry.name] = entry
    return files
