"""The reader's rules and the editor's texts, put to the real server."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from optimizer.repository.config_text import edit_config
from optimizer.repository.reader import read_model
from optimizer.triton.client import TritonClient, TritonError
from optimizer.triton.protobuf import parse_config

pytestmark = pytest.mark.system

# Starts faster than any backend that brings a runtime of its own. But where its file is missing the python backend of
# this server never comes back from loading: what misses a file has the onnxruntime backend.
ECHO = """\
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
HEAD = 'backend: "python"\nmax_batch_size: 8\n'
ONNX = 'backend: "onnxruntime"\nmax_batch_size: 8\n'
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 4 }\noutput { name: "Y" data_type: TYPE_FP32 dims: 4 }\n'
CONFIG = HEAD + TENSORS


class Server:
    """Every test has names of its own, and nothing is unloaded: that would take longer than the tests."""

    def __init__(self, models: Path, client: TritonClient, onnx: Path) -> None:
        self.models, self.client, self.onnx = models, client, onnx

    def put(
        self, name: str, config: str, versions: tuple[str, ...] = ("1",), files: Mapping[str, str] | None = None
    ) -> None:
        directory = self.models / name
        directory.mkdir()
        for version in versions:
            (directory / version).mkdir()
            (directory / version / "model.py").write_text(ECHO)
            if "onnxruntime" in config:
                shutil.copy(self.onnx, directory / version / "model.onnx")
        for relative, content in (files or {}).items():
            (directory / relative).write_text(content)
        (directory / "config.pbtxt").write_bytes(config.encode())

    def loads(self, name: str) -> bool:
        try:
            self.client.load(name)
        except TritonError:
            return False
        return True

    def served(self, name: str) -> set[int]:
        return {int(row[1]) for row in self.client.repository_index() if row[0] == name and row[2] == "READY"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_onnx: Path) -> Iterator[Server]:
    """A server of this module's own, since its repository is written to directly, in the user's own words."""
    from optimizer.sandbox._base import SandboxOptions
    from optimizer.sandbox.launchers import launcher

    embedded = launcher("embedded")
    problem = embedded.available()
    if problem:
        pytest.skip(problem)
    workdir = tmp_path_factory.mktemp("rules")
    with embedded.start(SandboxOptions(workdir=workdir)) as sandbox, TritonClient(sandbox.info.grpc_url) as client:
        yield Server(next(workdir.glob("*/models")), client, tiny_onnx)


VERSIONS: list[tuple[str, str, tuple[str, ...]]] = [
    ("latest", "", ("1", "10", "9")),
    ("copy", "", ("1", "1.bak", "01", "old")),
    ("zero", "", ("0",)),
    ("specific", "version_policy { specific { versions: [ 1, 2, 9 ] } }", ("1", "2", "3")),
    ("all", "version_policy { all { } }", ("1", "3")),
    ("empty", "version_policy { }", ("1", "3")),
    ("two", "version_policy { latest { num_versions: 2 } }", ("1", "2", "3")),
    ("misnamed", "", ("1", "2.tmp")),
    ("negative", "", ("-1",)),
    ("none", "version_policy { latest { } }", ("1",)),
    ("other", "version_policy { specific { versions: 7 } }", ("1",)),
]


@pytest.mark.parametrize(("name", "policy", "versions"), VERSIONS)
def test_the_reader_serves_the_versions_that_the_server_serves(
    server: Server, name: str, policy: str, versions: tuple[str, ...]
) -> None:
    server.put(name, (ONNX if name in ("misnamed", "negative") else HEAD) + TENSORS + policy, versions)
    model = read_model(server.models, name)
    loads = not any(blocker.fatal for blocker in model.blockers)
    assert server.loads(name) == loads
    if loads:
        assert server.served(name) == {version.number for version in model.versions if version.served}


CONFIGS: list[tuple[str, str]] = [
    ("valid", CONFIG),
    ("backend_from_the_files", CONFIG.replace('backend: "python"\n', "")),
    ("own_name", 'name: "own_name"\n' + CONFIG),
    ("other_name", 'name: "another"\n' + CONFIG),
    ("preferred", CONFIG + "dynamic_batching { preferred_batch_size: [ 4, 8 ] }"),
    ("preferred_beyond", CONFIG + "dynamic_batching { preferred_batch_size: 16 }"),
    ("negative_batch", CONFIG.replace("8", "-8")),
    ("label", CONFIG.replace('name: "Y"', 'name: "Y" label_filename: "labels.txt"')),
    ("label_missing", CONFIG.replace('name: "Y"', 'name: "Y" label_filename: "none.txt"')),
    ("zero_dims", CONFIG.replace("dims: 4", "dims: 0")),
    ("no_dims", CONFIG.replace(" dims: 4", "")),
    ("no_type", CONFIG.replace(" data_type: TYPE_FP32", "")),
    ("empty_reshape", CONFIG.replace("8", "0").replace("dims: 4", "dims: 1 reshape { }")),
    ("platform", 'platform: "tensorrt_plan"\n' + CONFIG.replace("python", "onnxruntime")),
    ("other_file", ONNX + TENSORS + 'default_model_filename: "runner.onnx"'),
    ("warm_up_missing", CONFIG + 'model_warmup { name: "w" batch_size: 1 inputs { key: "X" value '
     '{ data_type: TYPE_FP32 dims: 4 input_data_file: "none" } } }'),
    ("cache_and_sequence", CONFIG + "sequence_batching { }\nresponse_cache { enable: true }"),
]  # fmt: skip
# A model of the python backend may keep state or answer often; that it loads is all that is asked here.
ONLY_TUNING = {"sequence_batching", "decoupled"}


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_the_server_loads_what_the_reader_finds_no_fault_in(server: Server, name: str, config: str) -> None:
    server.put(name, config, files={"labels.txt": "a\n"})
    model = read_model(server.models, name)
    assert server.loads(name) == (not any(b.fatal and b.code not in ONLY_TUNING for b in model.blockers)), (
        model.blockers
    )


def test_a_link_that_leads_nowhere_keeps_the_model_from_loading(server: Server) -> None:
    server.put("linked", CONFIG)
    (server.models / "linked" / "notes.txt").symlink_to("gone")
    assert {blocker.code for blocker in read_model(server.models, "linked").blockers if blocker.fatal} == {
        "dangling_link"
    }
    assert not server.loads("linked")


def _instances(config: Any) -> None:
    config.instance_group.add(count=2, kind=2)


def _batching(config: Any) -> None:
    config.dynamic_batching.preferred_batch_size.extend([2, 8])
    config.dynamic_batching.max_queue_delay_microseconds = 250


def _parameters(config: Any) -> None:
    config.parameters["it's"].string_value = 'a "b" \\ é\n{}'
    config.cc_model_filenames["9.0"] = "model.py"
    config.metric_tags["team"] = "# none"


def _tensors(config: Any) -> None:
    config.input.add(name="Z", data_type=13, dims=[-1, 2])
    del config.output[0].dims[:]
    config.output[0].dims.extend([2, 2])
    config.output[0].reshape.shape.append(4)


def _policy(config: Any) -> None:
    config.version_policy.specific.versions.append(1)
    config.optimization.priority = 2
    config.optimization.input_pinned_memory.enable = False
    config.optimization.output_pinned_memory.enable = True
    config.default_model_filename = "model.py"


EDITS: dict[str, Callable[[Any], None]] = {
    "instances": _instances,
    "batching": _batching,
    "parameters": _parameters,
    "tensors": _tensors,
    "policy": _policy,
}


@pytest.mark.parametrize("name", sorted(EDITS))
def test_the_server_reads_an_edited_config_as_it_was_meant(server: Server, name: str) -> None:
    """Python's and the server's protobuf parsers are two programs: the server's own reading counts."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "repository"))
    try:
        from config_corpus import respell
    finally:
        sys.path.pop(0)
    rng = random.Random(name)
    text = respell(CONFIG + "# what follows\nparameters { key: 'k' value: { string_value: 'v' } }\n", rng)
    target = parse_config(text)
    EDITS[name](target)
    server.put(f"edit-{name}", edit_config(text, target))
    server.client.load(f"edit-{name}")
    live = server.client.model_config(f"edit-{name}")
    for descriptor, value in target.ListFields():
        if descriptor.name == "instance_group":
            assert [(group.count, group.kind) for group in live.instance_group] == [(2, 2)]
        else:
            assert getattr(live, descriptor.name) == value, descriptor.name


@pytest.mark.parametrize("text", ["\ufeff" + CONFIG, CONFIG.replace(": 8", ":\u00a08")])
def test_what_python_would_let_pass_the_server_refuses(server: Server, text: str) -> None:
    name = f"blanks-{len(text)}"
    server.put(name, text)
    assert not server.loads(name)
