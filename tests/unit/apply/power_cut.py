"""What a power cut may leave: a traced run replayed up to any call, with everything dropped that was not fsynced.

The model is the strictest that POSIX allows: a file's content is what its last fsync saw, and a name (created, renamed
or removed) is as its directory's last fsync saw it. A directory's own creation counts as a name in its parent.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from crash_steps import DRIVER, new_world, recovered

from optimizer.durable import sha256_tree

TRACED = (
    "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,write,pwrite64,ftruncate,"
    "fsync,fdatasync"
)


@dataclass
class Node:
    """A file or directory; ``names`` of a directory map to nodes."""

    directory: bool
    content: bytearray = field(default_factory=bytearray)
    names: dict[str, Node] = field(default_factory=dict)
    safe_content: bytes = b""
    safe_names: dict[str, Node] = field(default_factory=dict)

    def sync(self) -> None:
        self.safe_content = bytes(self.content)
        self.safe_names = dict(self.names)


Call: TypeAlias = tuple[str, list[str], bytes]


def traced_calls(job: str, repository: Path, way: str) -> list[Call]:
    """(system call, paths, data) of a whole run, for paths below the repository's parent."""
    log = repository.parent.with_suffix(".replay")
    command = ["strace", "-y", "-xx", "-s", "10000000", "-e", f"trace={TRACED}", "-o", str(log)]
    run = subprocess.run(
        [*command, sys.executable, "-B", str(DRIVER), job, str(repository), way], capture_output=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return list(_parse(log.read_text(), str(repository.parent)))


def _parse(text: str, root: str) -> Iterator[Call]:
    for line in text.splitlines():
        match = re.match(r"(\w+)\((.*)\)\s+= (-?\d+)", line)
        if match is None or int(match.group(3)) < 0:
            continue
        call, arguments = match.group(1), match.group(2)
        strings = [bytes.fromhex(each.replace("\\x", "")) for each in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', arguments)]
        descriptors = [_plain(each) for each in re.findall(r"\d+<([^>]*)>", arguments)]
        if call in ("write", "pwrite64"):
            paths, data = descriptors[:1], strings[0] if strings else b""
        elif call in ("fsync", "fdatasync", "ftruncate"):
            paths, data = descriptors[:1], b""
        else:
            # Relative to the descriptor before it, where there is one.
            base = next((each for each in descriptors if each.startswith(root)), "")
            paths = [str(Path(base, each.decode())) for each in strings]
            data = arguments.encode()
        if paths and paths[0].startswith(root + "/"):
            yield call, [os.path.relpath(path, root) for path in paths], data


def _plain(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode() if text.startswith("\\x") else text


class Disk:
    """Begins as ``root`` is on disk, all of it safe."""

    def __init__(self, root: Path) -> None:
        self.top = _read(root)

    def do(self, call: Call) -> None:
        kind, paths, data = call
        if kind in ("openat", "open", "creat"):
            parent, name = self._place(paths[0])
            flags = data.decode()
            if name not in parent.names and "O_CREAT" in flags:
                parent.names[name] = Node(directory=False)
            if "O_TRUNC" in flags:
                parent.names[name].content.clear()
        elif kind in ("mkdir", "mkdirat"):
            parent, name = self._place(paths[0])
            parent.names[name] = Node(directory=True)
        elif kind.startswith("rename"):
            (parent, name), (target, new) = self._place(paths[0]), self._place(paths[1])
            target.names[new] = parent.names.pop(name)
        elif kind in ("unlink", "unlinkat", "rmdir"):
            parent, name = self._place(paths[0])
            del parent.names[name]
        elif kind in ("write", "pwrite64"):
            node = self._node(paths[0])
            if kind == "pwrite64":
                node.content[:] = data
            else:
                node.content.extend(data)
        elif kind == "ftruncate":
            self._node(paths[0]).content.clear()
        else:
            self._node(paths[0]).sync()

    def write(self, root: Path, *, names: str, contents: str) -> None:
        """``names`` and ``contents`` are ``safe`` or ``all``: what the power cut left of each."""
        _write(self.top, root, names, contents)

    def _node(self, path: str) -> Node:
        parent, name = self._place(path)
        return parent.names[name] if name else parent

    def _place(self, path: str) -> tuple[Node, str]:
        *parts, name = [part for part in path.split("/") if part != "."]
        node = self.top
        for part in parts:
            node = node.names[part]
        return node, name


def _read(path: Path) -> Node:
    node = Node(directory=path.is_dir())
    if node.directory:
        node.names = {child.name: _read(child) for child in path.iterdir()}
    else:
        node.content[:] = path.read_bytes()
    node.sync()
    return node


def _write(node: Node, path: Path, names: str, contents: str) -> None:
    if not node.directory:
        path.write_bytes(node.safe_content if contents == "safe" else bytes(node.content))
        path.chmod(0o644)
        return
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
    for name, child in (node.safe_names if names == "safe" else node.names).items():
        _write(child, path / name, names, contents)


def replay(root: Path, job: str, way: str, *, stride: int = 1, fsyncs: bool = True) -> Counter[str]:
    """Cuts the power after every ``stride``-th call of ``job``, in four ways, and recovers: which trees are then there.

    Raises ``AssertionError`` (or what recovery raises) for a state that does not come back. ``fsyncs=False`` leaves the
    job's fsyncs out, as if it had none: what the replay must notice.
    """
    repository, hashes = new_world(root, job, way)
    start = root.with_name(root.name + "-start")
    shutil.rmtree(start, ignore_errors=True)
    shutil.copytree(root, start)
    calls = traced_calls(job, repository, way)
    disk = Disk(start)
    for call in calls:
        disk.do(call)
    after = sha256_tree(repository)
    shutil.rmtree(root)
    disk.write(root, names="all", contents="all")
    assert sha256_tree(repository) == after, "the replay does not do what the job did"
    if not fsyncs:
        calls = [call for call in calls if call[0] not in ("fsync", "fdatasync")]
    trees: Counter[str] = Counter()
    disk = Disk(start)
    for number, call in enumerate(calls):
        disk.do(call)
        for names, contents in itertools.product(("safe", "all"), repeat=2) if number % stride == 0 else ():
            shutil.rmtree(root)
            disk.write(root, names=names, contents=contents)
            trees[recovered(repository, hashes)] += 1
    return trees
