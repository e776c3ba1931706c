"""A timing cache per GPU, TensorRT and builder flags, shared between the routes of a study. Runs in the worker."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from optimizer.durable import write_atomically
from optimizer.engines.tensorrt.capabilities import Capabilities


def cache_file(directory: Path, have: Capabilities, flags: Sequence[str]) -> Path:
    """Readable name, with a hash over everything that the entries depend on."""
    key = json.dumps([have.module, have.version, have.gpu, sorted(flags)], sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return directory / f"timing-{have.module}-{have.version}-{digest}.cache"


class TimingCache:
    """``attach`` before the build, ``save`` after it. ``status`` says what happened."""

    def __init__(self, path: Path, log: Sequence[str] = ()) -> None:
        self.path = path
        self._log = log
        self.status = "new"
        self._cache: Any = None
        self._made: list[Any] = []
        """A config may still point to a cache that it refused: none of them may go before the build."""

    def attach(self, config: Any) -> None:
        data = self.path.read_bytes() if self.path.exists() else b""
        before = len(self._log)
        if data:
            self._cache = self._take(config, data, mismatch=False)
            # Some releases take any bytes, say in the log that they are of no use, and go on with an empty cache.
            if self._cache is not None and not _rejected(self._log[before:]):
                self.status = f"loaded {len(data)} bytes"
                return
            if not _rejected(self._log[before:]):
                # The file's name already stands for GPU, driver and release, so a mismatch of what TensorRT compares
                # besides is none.
                self._cache = self._take(config, data, mismatch=True)
                if self._cache is not None and not _rejected(self._log[before:]):
                    self.status = f"loaded {len(data)} bytes, past TensorRT's own comparison"
                    return
            self.status = f"incompatible cache set aside as {set_aside(self.path).name}"
        self._cache = self._take(config, b"", mismatch=False)
        if self._cache is None:
            self.status += "; no cache was taken by the builder"
        said = "; ".join(self._log[before:])[:300]
        if said:
            self.status += f" ({said})"

    def _take(self, config: Any, data: bytes, *, mismatch: bool) -> Any:
        cache = _create(config, data)
        if cache is None:
            return None
        self._made.append(cache)
        try:
            taken = config.set_timing_cache(cache, mismatch)
        except (RuntimeError, ValueError):
            return None
        return None if taken is False else cache

    def save(self, config: Any) -> None:
        """Merges with what another build has written meanwhile. A cache that cannot be written costs only time."""
        current = config.get_timing_cache() or self._cache
        if current is None:
            return
        with contextlib.suppress(OSError), _locked(self.path):
            if self.path.exists():
                other = _create(config, self.path.read_bytes())
                if other is not None:
                    with contextlib.suppress(Exception):
                        current.combine(other, False)
            data = bytes(current.serialize())
            write_atomically(self.path, data)
            self.status += f"; wrote {len(data)} bytes"


def _rejected(lines: Sequence[str]) -> bool:
    return any("iming cache" in line and re.search(r"ailed|ill not be used|ismatch|nvalid", line) for line in lines)


def set_aside(path: Path) -> Path:
    number = 0
    while (target := path.with_name(f"{path.name}.incompatible-{number}")).exists():
        number += 1
    with contextlib.suppress(FileNotFoundError):
        path.rename(target)
    return target


def _create(config: Any, data: bytes) -> Any:
    try:
        return config.create_timing_cache(data)
    except (RuntimeError, ValueError, TypeError):
        return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_name(f".{path.name}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
