"""What is in a Triton image: asked of the image itself, in a container that lives for a moment.

Version tables only explain an error; even images of one tag have differed, so what counts is read from the files.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from optimizer import container, processes
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.sandbox import engine

PROBE_TIMEOUT_S = 120.0

# For the shell of any image. Lines of others (a banner) are not in this form.
_QUESTION = r"""
root=/opt/tritonserver
say() { echo "@@ $1 $2"; }
found=$(command -v tritonserver) || found=
[ -n "$found" ] || { [ -x $root/bin/tritonserver ] && found=$root/bin/tritonserver; }
say executable "$found"
[ -r $root/TRITON_VERSION ] && say triton "$(cat $root/TRITON_VERSION)"
for directory in $root/backends/*/; do
  name=$(basename "$directory")
  if [ -e "$directory/libtriton_$name.so" ]; then say native "$name"; else say other "$name"; fi
done
for library in /usr/lib/*/libnvinfer.so.*.*.* /usr/local/lib/libnvinfer.so.*.*.* /opt/tensorrt/lib/libnvinfer.so.*.*.*
do [ -e "$library" ] && say nvinfer "${library##*libnvinfer.so.}"; done
say cuda "${CUDA_VERSION:-}"
say tensorrt_variable "${TRT_VERSION:-}"
version() {
  "$1" - <<'PY'
from importlib import metadata
for name in ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-bindings", "tensorrt-cu12-bindings"):
    try:
        print(metadata.version(name))
        break
    except metadata.PackageNotFoundError:
        pass
PY
}
# An environment that compose/Dockerfile.gpu made comes first, then whatever Python there is.
for python in /opt/triton-optimizer/bin/python python3 python; do
  command -v $python >/dev/null || continue
  builder=$(version $python)
  [ -n "$builder" ] || continue
  say python "$(command -v $python)"
  say builder "$builder"
  break
done
exit 0
"""


@dataclass(frozen=True)
class Image:
    """``reference`` is what the user said; ``id`` is the content's hash."""

    reference: str
    id: str
    digest: str = ""
    """Repository and digest, where the image came from a registry."""
    entrypoint: tuple[str, ...] = ()
    executable: str = ""
    triton: str = ""
    tensorrt: str = ""
    """Of the library with which this image's server opens plans."""
    cuda: str = ""
    python: str = ""
    builder: str = ""
    """A Python that has TensorRT's module, and the module's version; empty where none has, so that it cannot build."""
    native: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    """Backends without a library of their own: python-based ones."""

    def facts(self) -> dict[str, str]:
        found = {
            "image": self.reference,
            "image_id": self.id,
            "digest": self.digest,
            "triton": self.triton,
            "tensorrt": self.tensorrt,
            "cuda": self.cuda,
            "backends": ",".join(sorted((*self.native, *self.other))),
        }
        return {key: value for key, value in found.items() if value}


def examine(reference: str | None) -> Image:
    """Raises :class:`InputError` without a name, :class:`EnvironmentFailure` without engine, image or server in it."""
    import requests

    if not reference:
        raise InputError(
            "is missing",
            field="image",
            remedy="name a Triton image that is on this machine: --image nvcr.io/nvidia/tritonserver:RELEASE-py3",
        )
    client = engine.connect()
    from docker.errors import APIError, ImageNotFound

    try:
        found = client.images.get(reference)
    except ImageNotFound:
        raise EnvironmentFailure(
            "no such image on this machine", where=reference, field="image", remedy=f"docker pull {reference}"
        ) from None
    except (APIError, requests.exceptions.RequestException) as error:
        raise EnvironmentFailure(
            f"the Docker engine does not tell of the image: {container.problem(error)}",
            where=reference,
            field="image",
            remedy="start the Docker engine, and see that this user may use it",
        ) from None
    finally:
        client.close()
    digests = found.attrs.get("RepoDigests") or []
    config = found.attrs.get("Config") or {}
    return _ask(reference, found.id, digests[0] if digests else "", tuple(config.get("Entrypoint") or ()))


@lru_cache(maxsize=8)
def _ask(reference: str, identifier: str, digest: str, entrypoint: tuple[str, ...]) -> Image:
    with tempfile.TemporaryDirectory(prefix="triton-image-") as directory:
        spec = container.Spec(
            name=f"triton-optimizer-probe-{os.getpid()}-{secrets.token_hex(4)}",
            image=identifier,
            entrypoint=(),
            command=("/bin/sh", "-c", _QUESTION),
            state_path=f"{directory}/state.json",
            network="none",
            owner=container.owner(),
        )
        spec.write(Path(directory) / "spec.json")
        log = Path(directory) / "log"
        with processes.start(container.command(Path(directory) / "spec.json"), log_path=log, grace_s=20.0) as process:
            try:
                status = process.wait(PROBE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                status = -1
        text = log.read_text(encoding="utf-8", errors="replace")
    answers = parse_answers(text)
    if status != 0:
        last = text.strip().splitlines()[-1:] or ["no answer"]
        raise EnvironmentFailure(
            f"the image cannot be asked what is in it: {last[0].removeprefix('container: ')}",
            where=reference,
            field="image",
            remedy="use a Triton image, or one made by compose/Dockerfile",
        )
    return described(reference, identifier, digest, entrypoint, answers)


def parse_answers(text: str) -> dict[str, list[str]]:
    answers: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("@@ "):
            key, _, value = line[3:].strip().partition(" ")
            if value:
                answers.setdefault(key, []).append(value.strip())
    return answers


def described(
    reference: str, identifier: str, digest: str, entrypoint: tuple[str, ...], answers: Mapping[str, list[str]]
) -> Image:
    """Raises :class:`EnvironmentFailure` where no server is in the image."""

    def first(key: str) -> str:
        return answers.get(key, [""])[0]

    if not first("executable"):
        raise EnvironmentFailure(
            "there is no tritonserver in this image",
            where=reference,
            field="image",
            remedy="use a Triton image, or one made by compose/Dockerfile",
        )
    return Image(
        reference=reference,
        id=identifier,
        digest=digest,
        entrypoint=entrypoint,
        executable=first("executable"),
        triton=first("triton"),
        # "10.7.0.23-1+cuda12.6" in the variable of NVIDIA's images; the file's own name is the truth.
        tensorrt=first("nvinfer") or re.split(r"[-+]", first("tensorrt_variable"))[0],
        cuda=first("cuda"),
        python=first("python"),
        builder=first("builder"),
        native=tuple(answers.get("native", ())),
        other=tuple(answers.get("other", ())),
    )
