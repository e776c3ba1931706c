"""nginx as the proxy: one include file, ``triton-canary.conf``, is the whole state, readable and writable by hand.

Two servers become upstreams with weights, for HTTP and for gRPC; nginx goes to the other one where a server takes no
connection. Two models of one server are split by ``split_clients`` over the model's name in the URL, for HTTP only:
gRPC names the model inside the message, where nginx cannot change it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from pathlib import Path

import triton_templates
from optimizer.canary.plan import CanaryPlan, Endpoint
from optimizer.canary.proxy import run_command
from optimizer.durable import write_atomically
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.processes import descendants

INCLUDE_FILE = "triton-canary.conf"
CONFIG_FILE = "nginx.conf"
KEPT_FILE = "nginx-include.before"
NOTHING_BEFORE = "# nothing was here\n"
RELOAD_TIMEOUT_S = 10.0

_WEIGHT = re.compile(r"^# candidate weight: (\d+)%$", re.MULTILINE)


def include_text(baseline: Endpoint, candidate: Endpoint, percent: int) -> str:
    """Pure. The include file, for nginx's ``http`` context."""
    head = (
        "# Written by `triton-optimizer canary`. To take over by hand: edit, then reload nginx.\n"
        f"# baseline  {baseline.grpc_url} {baseline.model}\n"
        f"# candidate {candidate.grpc_url} {candidate.model}\n"
        f"# candidate weight: {percent}%\n"
    )
    if baseline.grpc_url == candidate.grpc_url:
        return head + _split(baseline, candidate, percent)
    return head + "".join(
        _upstream(f"triton_canary_{kind}", str(ours), str(theirs), percent)
        for kind, ours, theirs in (
            ("http", baseline.http_url, candidate.http_url),
            ("grpc", baseline.grpc_url, candidate.grpc_url),
        )
        if ours is not None and theirs is not None
    )


def _upstream(name: str, baseline: str, candidate: str, percent: int) -> str:
    """nginx knows no weight of 0: ``down`` is never asked, ``backup`` only when the others cannot be reached."""
    shares = {0: ("", " down"), 100: (" backup", "")}.get(percent, (f" weight={100 - percent}", f" weight={percent}"))
    return (
        f"upstream {name} {{\n"
        # Without a shared zone every worker process counts its own turns.
        f"    zone {name} 64k;\n"
        f"    server {baseline}{shares[0]};\n"
        f"    server {candidate}{shares[1]};\n"
        "    keepalive 32;\n"
        "}\n"
    )


def _split(baseline: Endpoint, candidate: Endpoint, percent: int) -> str:
    # split_clients refuses 0% and takes no 100% beside another share.
    share = f'    {percent}% "{candidate.model}";\n' if 0 < percent < 100 else ""
    rest = candidate.model if percent == 100 else baseline.model
    return (
        'split_clients "$request_id" $triton_canary_model {\n'
        f'{share}    * "{rest}";\n'
        "}\n"
        f"upstream triton_canary_http {{\n    server {baseline.http_url};\n    keepalive 32;\n}}\n"
        f"upstream triton_canary_grpc {{\n    server {baseline.grpc_url};\n    keepalive 32;\n}}\n"
    )


def config_text(plan: CanaryPlan, candidate: Endpoint, directory: Path) -> str:
    """A complete nginx.conf from the template. Pure but for reading the template."""
    proxy = plan.proxy
    assert proxy is not None
    text = (Path(triton_templates.__file__).parent / "nginx" / CONFIG_FILE).read_text(encoding="utf-8")
    rules = (
        "            proxy_http_version 1.1;\n"
        '            proxy_set_header Connection "";\n'
        "            proxy_next_upstream error timeout non_idempotent;\n"
    )
    locations = f"        location / {{\n            proxy_pass http://triton_canary_http;\n{rules}        }}"
    if plan.baseline.grpc_url == candidate.grpc_url:
        locations += (
            f"\n        location ~ ^/v2/models/{re.escape(plan.baseline.model)}(?<rest>/.*)?$ {{\n"
            f"            proxy_pass http://triton_canary_http/v2/models/$triton_canary_model$rest;\n{rules}        }}"
        )
    for name, value in (
        ("DIRECTORY", str(directory)), ("HTTP_LISTEN", proxy.http_listen), ("GRPC_LISTEN", proxy.grpc_listen),
        ("HTTP_LOCATIONS", locations),
    ):  # fmt: skip
        text = text.replace(f"@{name}@", value)
    return text


def check_nginx(plan: CanaryPlan, candidate: Endpoint) -> list[str]:
    """Raises :class:`InputError` where nginx cannot split these arms; returns what a user must know."""
    shared = plan.baseline.grpc_url == candidate.grpc_url
    if not shared and plan.baseline.model != candidate.model:
        raise InputError(
            f"nginx cannot send one request as {plan.baseline.model} to one server and as {candidate.model} to another",
            field="--nginx-dir",
            remedy="give the model the same name on both servers, or put both models on one",
        )
    for text in (plan.baseline.model, candidate.model):
        if not re.fullmatch(r"[\w.-]+", text):
            raise InputError(f"cannot put the model name {text!r} in a URL", field="--nginx-dir", remedy="rename it")
    arms = (plan.baseline, candidate)
    if shared and plan.baseline.http_url is None:
        raise InputError(
            "two models of one server are split over HTTP, whose address is not known", field="--baseline-http",
            remedy="give it: --baseline-http HOST:PORT",
        )  # fmt: skip
    if shared:
        return ["nginx splits HTTP only: gRPC names the model inside the message, so all of it stays at the baseline"]
    if any(arm.http_url is None for arm in arms):
        if plan.proxy is not None and plan.proxy.directory and not (Path(plan.proxy.directory) / CONFIG_FILE).exists():
            raise InputError(
                "the HTTP address of both servers is needed", field="--baseline-http, --candidate-http",
                remedy="give both as HOST:PORT",
            )  # fmt: skip
        return ["without the servers' HTTP addresses nginx splits gRPC only"]
    return []


def nginx_path() -> str:
    """Debian keeps it where the PATH of an ordinary user does not look."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin") or "nginx"


def accepts(worker: int) -> bool:
    """Whether it lives and takes connections: one that finishes what it has says so in its title."""
    try:
        return b"shutting down" not in Path(f"/proc/{worker}/cmdline").read_bytes()
    except OSError:
        return False


class NginxProxy:
    """Implements :class:`optimizer.canary.proxy.Proxy`. ``state`` keeps the include file that was there before."""

    def __init__(self, plan: CanaryPlan, candidate: Endpoint, state: Path) -> None:
        assert plan.proxy is not None
        assert plan.proxy.directory is not None
        self._plan = plan
        self._candidate = candidate
        self._directory = Path(plan.proxy.directory).absolute()
        self._include = self._directory / INCLUDE_FILE
        self._kept = state / KEPT_FILE
        at = [nginx_path(), "-p", str(self._directory), "-c", CONFIG_FILE]
        self._reload = list(plan.proxy.reload) or [*at, "-s", "reload"]
        self._test = [] if plan.proxy.reload else [*at, "-t", "-q"]

    def prepare(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not self._kept.exists():
                before = self._include.read_text(encoding="utf-8") if self._include.exists() else NOTHING_BEFORE
                write_atomically(self._kept, before)
            if not (self._directory / CONFIG_FILE).exists():
                write_atomically(
                    self._directory / CONFIG_FILE, config_text(self._plan, self._candidate, self._directory)
                )
            self._write(include_text(self._plan.baseline, self._candidate, 0))
        except OSError as error:
            raise self._unwritable(error) from None

    def set_weight(self, percent: int) -> None:
        try:
            self._write(include_text(self._plan.baseline, self._candidate, percent))
        except OSError as error:
            raise self._unwritable(error) from None
        self.reload()

    def weight(self) -> int | None:
        try:
            match = _WEIGHT.search(self._include.read_text(encoding="utf-8"))
        except OSError:
            return None
        return int(match[1]) if match else None

    def restore(self) -> None:
        """Where nothing was there before, nginx still needs its upstreams: they stay, with the baseline alone."""
        before = self._kept.read_text(encoding="utf-8") if self._kept.exists() else NOTHING_BEFORE
        try:
            nothing = before == NOTHING_BEFORE
            self._write(include_text(self._plan.baseline, self._candidate, 0) if nothing else before)
        except OSError as error:
            raise self._unwritable(error) from None
        self.reload()

    def reload(self) -> None:
        """``nginx -s reload`` only sends a signal. nginx then starts new workers and, a moment later, asks the old ones
        to take no more connections: only then is the new weight in force."""
        if self._test:
            run_command(self._test, "--nginx-dir")
        master = self._master()
        before = set(descendants(master)) if master is not None else set()
        run_command(self._reload, "--nginx-dir")
        if master is None:
            return
        deadline = time.monotonic() + RELOAD_TIMEOUT_S
        while not set(descendants(master)) - before or any(accepts(pid) for pid in before):
            if time.monotonic() > deadline:
                raise EnvironmentFailure(
                    "nginx did not take the new configuration", where=self._include, field="--nginx-dir",
                    remedy="look into its error log; the file says what weight is wanted",
                )  # fmt: skip
            time.sleep(0.02)

    def _master(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self._directory / "nginx.pid").read_text(encoding="ascii"))
        return None

    def _write(self, text: str) -> None:
        if not self._include.exists() or self._include.read_text(encoding="utf-8") != text:
            write_atomically(self._include, text)

    def _unwritable(self, error: OSError) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"cannot be written: {error.strerror}", where=error.filename or self._directory, field="--nginx-dir",
            remedy="name a directory that this user may write, and nginx may read",
        )  # fmt: skip
