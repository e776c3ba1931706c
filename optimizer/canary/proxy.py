"""Who splits the users' traffic: nginx, or anything that a command can tell a weight.

``set_weight`` returns when the new weight is in force, and raises :class:`EnvironmentFailure` when it is not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from optimizer import processes
from optimizer.canary.plan import CanaryPlan, Endpoint
from optimizer.errors import EnvironmentFailure

COMMAND_TIMEOUT_S = 60.0


class Proxy(Protocol):
    def prepare(self) -> None:
        """Everything at the baseline, before a canary begins. Idempotent."""

    def set_weight(self, percent: int) -> None:
        """So many of 100 requests go to the candidate from now on."""

    def weight(self) -> int | None:
        """What is in force, as far as it can be read; ``None``: unknown."""

    def restore(self) -> None:
        """As it was before :meth:`prepare`, or everything at the baseline where nothing was there."""


class NoProxy:
    """No users' traffic is moved: the canary only measures."""

    def prepare(self) -> None:
        pass

    def set_weight(self, percent: int) -> None:
        pass

    def weight(self) -> int | None:
        return None

    def restore(self) -> None:
        pass


class CommandProxy:
    """``words`` hold ``{weight}``, for instance ``kubectl annotate ingress … canary-weight={weight} --overwrite``."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def prepare(self) -> None:
        self.set_weight(0)

    def set_weight(self, percent: int) -> None:
        run_command([word.replace("{weight}", str(percent)) for word in self._words], "--weight-command")

    def weight(self) -> int | None:
        return None

    def restore(self) -> None:
        self.set_weight(0)


def run_command(words: Sequence[str], field: str) -> None:
    """Raises :class:`EnvironmentFailure` with the command's last lines."""
    try:
        status, output = processes.run(words, timeout_s=COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(
            f"cannot run {' '.join(words)}: {error}", field=field, remedy="correct the command"
        ) from None
    if status:
        said = " / ".join(line for line in output.splitlines()[-4:] if line) or "it said nothing"
        raise EnvironmentFailure(
            f"{' '.join(words)} ended with status {status}: {said}", field=field,
            remedy="set the weight by hand, correct the cause, then run the canary again",
        )  # fmt: skip


def proxy_of(plan: CanaryPlan, candidate: Endpoint, directory: Path) -> Proxy:
    """``directory`` is the canary's state, where the proxy's old configuration is kept."""
    if plan.proxy is None:
        return NoProxy()
    if plan.proxy.directory is not None:
        from optimizer.canary.nginx import NginxProxy

        return NginxProxy(plan, candidate, directory)
    return CommandProxy(plan.proxy.command)
