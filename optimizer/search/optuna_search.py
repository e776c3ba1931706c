"""Large spaces of a few knobs with many values: Optuna's TPE sampler proposes, the board measures, a race ends it.

Needs the extra ``search``. Seeded, in one thread, with in-memory storage: the same outcomes give the same proposals,
so an interrupted search is repeated from the laboratory's memory like any other.

TPE: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS 2011.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from optimizer.errors import EnvironmentFailure
from optimizer.records.route import Knob, Route
from optimizer.search._base import Laboratory, Standing
from optimizer.search.board import Board, Entry
from optimizer.search.race import RaceSettings, race
from optimizer.search.stopping import expected_improvement


def available() -> bool:
    return importlib.util.find_spec("optuna") is not None


@dataclass(frozen=True)
class OptunaSettings:
    race: RaceSettings = field(default_factory=RaceSettings)
    trials: int = 100
    """Different candidates that are measured, at most."""
    seed: int = 0
    random_first: int = 16
    """Candidates that are drawn at random before the sampler has enough to learn from."""
    pairs: int = 1
    worthwhile: float = 0.001
    """Stops where further candidates are expected to add less than this (ln ratio)."""


class OptunaSearch:
    """``knobs`` span the space; ``why_not`` gives the reason why a route is not in it, else ``None``."""

    name = "optuna"

    def __init__(
        self,
        knobs: Sequence[Knob],
        why_not: Callable[[Route], str | None] = lambda _: None,
        settings: OptunaSettings | None = None,
        *,
        hints: Sequence[Route] = (),
    ) -> None:
        self._knobs = {knob.name: knob for knob in knobs if knob.bounded}
        self._why_not = why_not
        self._settings = settings or OptunaSettings()
        self._hints = hints
        self._board: Board | None = None
        self.stopped_because = ""

    @property
    def standings(self) -> tuple[Standing, ...]:
        return self._board.standings if self._board else ()

    def search(self, laboratory: Laboratory) -> tuple[Standing, ...]:
        """Raises :class:`EnvironmentFailure` where Optuna is not installed."""
        if not available():
            raise EnvironmentFailure(
                "the search strategy optuna needs Optuna", remedy="pip install 'triton-optimizer[search]'"
            )
        board = self._board = Board(laboratory)
        self._propose(board)
        settings = self._settings.race
        best = sorted((entry for entry in board.entries.values() if entry.standing), key=lambda entry: -entry.score)
        racing = [entry for entry in best if not entry.is_reference][: settings.shrink * settings.last_round]
        for entry in racing:
            entry.rank += 1
        race(board, racing, settings)
        return board.standings

    def _propose(self, board: Board) -> None:
        study = self._study()
        settings = self._settings
        size = 1
        for knob in self._knobs.values():
            size *= len(knob_choices(knob))
        most = min(settings.trials, size)
        tried: set[str] = set()
        repeated = 0
        while len(tried) < most:
            trial = study.ask()
            route = Route.of(
                (name, value)
                for name, knob in self._knobs.items()
                if (value := trial.suggest_categorical(name, knob_choices(knob))) != knob.default
            )
            # A sampler that has converged proposes what is known: that is an answer, not work.
            repeated = repeated + 1 if route.text in tried or self._why_not(route) else 0
            if repeated > 50:
                self.stopped_because = "the sampler proposes nothing new"
                return
            if not route.is_default and self._why_not(route):
                study.tell(trial, state=_pruned())
                continue
            entry = board.enter(route)
            tried.add(route.text)
            if entry.next_index == 0:
                board.try_out(entry, settings.pairs)
            if entry.standing:
                study.tell(trial, entry.score)
            else:
                # Pruned trials without a value count as worst: the sampler keeps away, and no score is made up.
                study.tell(trial, state=_pruned())
            if settings.random_first < len(tried) < most and self._exhausted(board, most - len(tried)):
                self.stopped_because = (
                    f"{most - len(tried)} more are expected to add less than {settings.worthwhile:.1%}"
                )
                return

    def _exhausted(self, board: Board, remaining: int) -> bool:
        standing: list[Entry] = [entry for entry in board.entries.values() if entry.standing and entry.pairs]
        gain = expected_improvement(
            [entry.score for entry in standing], [entry.pairs for entry in standing], board.noise, remaining
        )
        return gain < self._settings.worthwhile

    def _study(self) -> Any:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            # The multivariate sampler is marked experimental; knobs that only pay together need it.
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(
                seed=self._settings.seed, n_startup_trials=self._settings.random_first, multivariate=True
            )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for route in (Route(), *self._hints):
            values = dict(route.assignments)
            if values.keys() <= self._knobs.keys() and all(
                value in knob_choices(self._knobs[name]) for name, value in values.items()
            ):
                study.enqueue_trial({name: values.get(name, knob.default) for name, knob in self._knobs.items()})
        return study


def _pruned() -> Any:
    import optuna

    return optuna.trial.TrialState.PRUNED


def knob_choices(knob: Knob) -> tuple[str, ...]:
    return knob.values if knob.default in knob.values else (knob.default, *knob.values)
