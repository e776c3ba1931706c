"""Studies that nobody ran: a directory with ``study.json`` and a ledger, as large as wanted, whose numbers are known.

The records are the real ones, so what reads a study (summary, report) can be tried at any size without a server. The
ledger is written in one piece, since a thousand candidates are ten thousand records.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.config import Settings
from optimizer.ledger import LEDGER_FILE, SCHEMA, StudyHeader, write_study
from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.codec import to_json
from optimizer.records.decision import Decision, Finalist, Interval, Verdict
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.environment import Fingerprint
from optimizer.records.measurement import Measurement, Resources, ServerDelta, Workload
from optimizer.records.parity import OutputParity, Parity
from optimizer.records.route import AS_FOUND, Candidate, Route

MODEL = "classifier"
THROUGHPUT = 1000.0
NOISE = 0.015
WORKLOAD = Workload(concurrency=16, duration_s=2.0)
KNOBS: Mapping[str, tuple[str, ...]] = {
    "precision": ("fp16", "int8"),
    "builder_optimization_level": ("2", "4", "5"),
    "mha_fusion:v2:enabled": ("off",),
    "copy_elimination:across_layers": ("on",),
    "gemm_tactics:prefer_split_k": ("on",),
    "instances": ("2", "4", "8"),
    "dynamic_batching": ("on",),
    "queue_delay_us": ("100", "500", "2000"),
}


def write_invented_study(
    directory: Path,
    *,
    candidates: int = 40,
    seed: int = 0,
    decided: bool = True,
    percentiles: Sequence[str] = ("p50", "p90", "p95", "p99"),
    reason: str = "output scores: top1 loss 0.08 exceeds 0.05 (worst: cat-17)",
) -> Path:
    """A race of ``candidates`` (as found and the default besides) and, where ``decided``, a confirmed winner.

    ``reason`` is what a candidate that failed validation says: a text from outside.
    """
    book = _Book(random.Random(seed), tuple(percentiles))
    book.begin()
    routes = _routes(book.random, candidates)
    tried = [book.screen(Route(), ""), *(book.screen(route, reason) for route in routes)]
    standing = [candidate for candidate in tried if candidate is not None]
    book.race(standing)
    if decided:
        book.decide()
    settings = Settings.model_validate(
        {"models": [MODEL], "tolerance": ["scores:top1>=0.95"], "budget": {"minutes": 180}}
    )
    facts = {"gpu": "NVIDIA H200", "tensorrt": "11.1.0", "workload": WORKLOAD.label}
    header = StudyHeader(
        settings=settings.model_dump(mode="json"),
        fingerprint=Fingerprint("0" * 64, "1" * 64, facts),
        created_at=1_790_000_000.0,
        notes={"model": MODEL, "repository": "/srv/models", "why_space": f"{candidates} invented routes"},
    )
    write_study(directory, header)
    (directory / LEDGER_FILE).write_text("".join(line + "\n" for line in book.lines), encoding="utf-8")
    return directory


def _routes(random_: random.Random, count: int) -> list[Route]:
    found: dict[Route, None] = {}
    while len(found) < count:
        names = random_.sample(sorted(KNOBS), random_.randint(1, 5))
        found[Route.of((name, random_.choice(KNOBS[name])) for name in names)] = None
    return list(found)


class _Book:
    """Writes down a study as it would have gone."""

    def __init__(self, random_: random.Random, percentiles: tuple[str, ...]) -> None:
        self.random = random_
        self.lines: list[str] = []
        self._percentiles = percentiles
        self._at = 1_790_000_000.0
        self._gains: dict[str, float] = {AS_FOUND: 0.0}
        self._scores: dict[str, list[float]] = {}
        self._labels: dict[str, str] = {}
        self._effects = {
            (name, value): random_.gauss(0.03, 0.08) for name, values in sorted(KNOBS.items()) for value in values
        }

    def add(self, kind: str, key: str, data: Any) -> None:
        self._at += 0.5
        record = data if isinstance(data, dict) else to_json(data)
        self.lines.append(json.dumps({"schema": SCHEMA, "at": self._at, "kind": kind, "key": key, "data": record}))

    def begin(self) -> None:
        self.add("fact", "server", {"triton": "2.73.0", "launcher": "docker", "version": "2.73.0"})
        self.add("candidate", AS_FOUND, {"route": "", "label": AS_FOUND, "engine": AS_FOUND})
        for index in range(8):
            self.pair(AS_FOUND, AS_FOUND, "noise", index)
        noise = {"sd": NOISE, "sd_upper": 0.021, "mean": 0.001, "pairs": 8, "dropped": 0, "biased": False}
        self.add("fact", "noise", noise)
        self.add("search", "race", {"strategy": "race", "why": "invented"})

    def screen(self, route: Route, reason: str) -> str | None:
        """The candidate's id, or ``None`` where it failed."""
        build_route = route.restricted(name for name in KNOBS if name not in ("instances", "dynamic_batching"))
        candidate = Candidate(MODEL, "0" * 64, "tensorrt", route, build_route)
        facts = {"route": route.text, "label": candidate.label, "engine": candidate.engine_id}
        self._labels[candidate.id] = candidate.label
        self.add("candidate", candidate.id, facts)
        chance = self.random.random() if reason else 1.0
        if chance < 0.05:
            why = BuildFailureReason.NO_IMPLEMENTATION
            message = "no tactic for layer /encoder/attn/MatMul"
            self.add(
                "build_failure", candidate.engine_id, BuildFailure(candidate.engine_id, why, message, build_s=21.0)
            )
            self.add("rejection", candidate.id, Rejection(candidate.id, Stage.BUILD, why.value, message))
            return None
        self.add("build", candidate.engine_id, self._engine(candidate.engine_id))
        wrong = chance < 0.1
        self.add("parity", f"tune:{candidate.id}", self._parity(candidate.id, "tune", wrong=wrong))
        if wrong:
            self.add("rejection", candidate.id, Rejection(candidate.id, Stage.VALIDATE, "accuracy", reason))
            return None
        self.add("screened", candidate.id, {"route": candidate.label})
        self._gains[candidate.id] = sum(self._effects[one] for one in route.assignments)
        return candidate.id

    def race(self, standing: Sequence[str]) -> None:
        """Everyone once, then the better third, until eight are left."""
        going, index = list(standing), 0
        while going:
            for candidate in going:
                self._scores.setdefault(candidate, []).append(self.pair(candidate, AS_FOUND, "race", index))
            index += 1
            if len(going) <= 8:
                return
            going = sorted(going, key=lambda one: -self._score(one))[: max(8, math.ceil(len(going) / 3))]

    def _score(self, candidate: str) -> float:
        scores = self._scores[candidate]
        return len(scores) + sum(scores) / len(scores)

    def decide(self) -> None:
        finalists = []
        for candidate in sorted(self._scores, key=lambda one: -self._score(one))[:3]:
            self.add("parity", f"held_out:{candidate}", self._parity(candidate, "held_out", wrong=False))
            ratios = [self.pair(candidate, AS_FOUND, "confirm", index) for index in range(12)]
            mean = sum(ratios) / len(ratios)
            half = 2.43 * NOISE / math.sqrt(len(ratios))
            gain = Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), 0.95, 12)
            tail = Interval(math.exp(-mean), math.exp(-mean - half), math.exp(-mean + half), 0.95, 12)
            finalists.append(Finalist(candidate, self._labels[candidate], gain, gain, tail, gain.lower > 1.01, ""))
        best = max(finalists, key=lambda one: one.gain_over_as_found.ratio if one.gain_over_as_found else 0.0)
        gain = best.gain_over_as_found or Interval(1.0, 1.0, 1.0, 0.95, 0)
        decision = Decision(
            Verdict.WINNER, best.candidate_id, best.label,
            f"{best.label} replaces what is there: throughput better by {gain.ratio - 1:.1%}, by at least "
            f"{gain.lower - 1:.1%} with 95% confidence over 3 finalists (12 fresh pairs).",
            finalists=tuple(finalists), caveats=("an invented study",), tolerance_given=True, noise=NOISE,
            break_even={"sentence": "The 1.2 GPU hours spent are earned back by 0.3 GPU-days of full load."},
        )  # fmt: skip
        self.add("fact", "spent", {"wall_s": 9321.0, "builds": 120, "gpu_s": 0.0})
        self.add("decision", "final", decision)

    def pair(self, candidate: str, reference: str, purpose: str, index: int) -> float:
        key = f"{purpose}:{index}:{candidate}:{reference}"
        arms = []
        for role, one in (("reference", reference), ("candidate", candidate)):
            arms.append(self._measurement(one))
            self.add("measurement", f"{key}:{role}", arms[-1])
        ratio = math.log(arms[1].throughput / arms[0].throughput)
        self.add(
            "pair", key,
            Pair(candidate, reference, purpose, index, ratio, -ratio, arms[0].throughput, arms[1].throughput),
        )  # fmt: skip
        return ratio

    def _measurement(self, candidate: str) -> Measurement:
        throughput = THROUGHPUT * math.exp(self._gains[candidate] + self.random.gauss(0, NOISE / math.sqrt(2)))
        requests = round(throughput * WORKLOAD.duration_s)
        latency_us = WORKLOAD.concurrency / throughput * 1e6
        shape = {"p50": 0.95, "p90": 1.3, "p95": 1.5, "p99": 2.1 + self.random.uniform(-0.3, 0.5)}
        executions = requests // 4
        server = ServerDelta(
            requests, executions, 0, 0.4 * latency_us * requests, 0.05 * latency_us * requests,
            0.4 * latency_us * requests, 0.05 * latency_us * requests, {4: executions},
        )  # fmt: skip
        return Measurement(
            candidate, WORKLOAD, self._at, WORKLOAD.duration_s, requests, requests, {}, throughput, latency_us,
            {name: latency_us * shape[name] for name in self._percentiles}, server,
            Resources(gpu_memory_bytes=3_000_000_000 + self.random.randrange(10**9)),
        )  # fmt: skip

    def _engine(self, engine_id: str) -> Engine:
        size = 40_000_000 + self.random.randrange(40_000_000)
        return Engine(
            engine_id, "tensorrt", {"model.plan": Path("model.plan")}, engine_id * 5, size,
            build_s=self.random.lognormvariate(1.5, 0.6), builder="TensorRT 11.1.0", device_memory_bytes=4 * size,
        )  # fmt: skip

    def _parity(self, candidate: str, samples: str, *, wrong: bool) -> Parity:
        missed = 0.08 if wrong else self.random.choice((0.0, 0.0, 0.01, 0.02))
        far = 10 ** self.random.uniform(-6, -2.5)
        outputs = (
            OutputParity(
                "scores", "top1", missed, 0.05, missed <= 0.05, "cat-17", 0.03, None, round(100 * missed), 100
            ),
            OutputParity("scores", "lInf", far, 0.01, far <= 0.01, "dog-3", units=100),
        )
        tags = {tag: {"scores:top1": missed / 2, "scores:lInf": far / (2 + place)} for place, tag in enumerate("abc")}
        return Parity(candidate, samples, 100, outputs, per_tag=tags)
