from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.errors import InputError
from optimizer.records.model import Model, ModelFormat, ModelVersion, TensorSpec
from optimizer.repository import on_disk
from optimizer.repository.reader import (
    UnreadableModel,
    ensembles_using,
    list_models,
    onnx_path,
    read_model,
    read_repository,
)
from optimizer.triton.protobuf import parse_config

FLOAT, INT64, STRING, DOUBLE = 1, 7, 8, 11
MakeOnnx = Callable[..., Path]

CONFIG = """\
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
"""


@pytest.fixture
def entry(tmp_path: Path, tiny_onnx: Path) -> Callable[..., Path]:
    """Makes ``NAME`` in the repository ``tmp_path`` from a config and files; ``None`` stands for the tiny model."""

    def make(config: str | None = CONFIG, *, name: str = "m", **files: bytes | None) -> Path:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        if config is not None:
            (directory / "config.pbtxt").write_bytes(config.encode())
        for relative, content in (files or {"1/model.onnx": None}).items():
            path = directory / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            if relative.endswith("/"):
                path.mkdir(exist_ok=True)
            elif content is None:
                shutil.copy(tiny_onnx, path)
            else:
                path.write_bytes(content)
        return tmp_path

    return make


def codes(model: Model, *, fatal: bool | None = None) -> set[str]:
    return {blocker.code for blocker in model.blockers if fatal is None or blocker.fatal is fatal}


# A model in order


def test_an_onnx_model_is_read_whole(tiny_repository: Path, tiny_config: str) -> None:
    model = read_model(tiny_repository, "tiny")
    version_path = tiny_repository / "tiny" / "1"
    assert model.config_text == tiny_config
    assert model.config_path == tiny_repository / "tiny" / "config.pbtxt"
    assert (model.backend, model.platform, model.default_model_filename) == (
        "onnxruntime",
        "onnxruntime_onnx",
        "model.onnx",
    )
    assert model.inputs == (TensorSpec("X", "FP32", (4,)),)
    assert model.outputs == (TensorSpec("Y", "FP32", (4,)),)
    assert model.max_batch_size == 8
    size = (version_path / "model.onnx").stat().st_size
    assert model.versions == (
        ModelVersion(1, version_path, version_path / "model.onnx", ModelFormat.ONNX, size, served=True),
    )
    assert model.version_policy == "latest(1)"
    assert model.blockers == ()
    assert model.notes == ()
    assert onnx_path(model) == version_path / "model.onnx"


def test_the_effective_config_adds_what_triton_fills_in_and_nothing_else(tiny_repository: Path) -> None:
    model = read_model(tiny_repository, "tiny")
    assert model.effective_config_text == model.config_text.replace(
        'platform: "onnxruntime_onnx"\n',
        'platform: "onnxruntime_onnx"\nbackend: "onnxruntime"\ndefault_model_filename: "model.onnx"\n',
    )


def test_the_content_hash_follows_bytes_and_nothing_else(entry: Callable[..., Path]) -> None:
    repository = entry(**{"1/model.onnx": None, "2/model.onnx": None})
    first = read_model(repository, "m").content_hash
    os.utime(repository / "m" / "2" / "model.onnx", (1, 1))
    (repository / "m" / "2" / "optimizer.json").write_text("{}")
    (repository / "m" / "1" / "model.onnx").write_bytes(b"an older version")
    assert read_model(repository, "m").content_hash == first
    (repository / "m" / "2" / "extra").touch()
    second = read_model(repository, "m").content_hash
    assert second != first
    entry(CONFIG + "# a comment\n", **{"2/model.onnx": None})
    assert read_model(repository, "m").content_hash not in (first, second)


def test_no_hash_is_made_where_none_is_wanted(entry: Callable[..., Path]) -> None:
    repository = entry()
    assert read_model(repository, "m", with_hash=False).content_hash == ""
    (model,) = read_repository(repository, with_hash=False)
    assert isinstance(model, Model)
    assert model.content_hash == ""


def test_line_ends_of_the_config_are_not_translated(entry: Callable[..., Path]) -> None:
    text = CONFIG.replace("\n", "\r\n")
    assert read_model(entry(text), "m").config_text == text


# Which config is live


def test_a_named_config_is_live_where_it_is_there(entry: Callable[..., Path]) -> None:
    files = {"1/model.onnx": None, "configs/gpu.pbtxt": CONFIG.replace("8", "16").encode()}
    repository = entry(**files)
    model = read_model(repository, "m", config_name="gpu")
    assert (model.max_batch_size, model.config_path) == (16, repository / "m" / "configs" / "gpu.pbtxt")
    assert [path.name for path in model.config_candidates] == ["config.pbtxt", "gpu.pbtxt"]
    assert read_model(repository, "m").max_batch_size == 8
    other = read_model(repository, "m", config_name="cpu")
    assert other.max_batch_size == 8
    assert any("configs/cpu.pbtxt" in note for note in other.notes)


def test_without_a_config_the_onnx_file_tells(entry: Callable[..., Path]) -> None:
    model = read_model(entry(None), "m")
    assert (model.config_path, model.config_text) == (None, "")
    config = parse_config(model.effective_config_text)
    assert (config.backend, config.max_batch_size, list(config.input[0].dims)) == ("onnxruntime", 4, [4])
    assert config.HasField("dynamic_batching")
    assert model.dynamic_batching
    assert codes(model) == set()


def test_a_config_with_half_of_the_tensors_is_completed(entry: Callable[..., Path]) -> None:
    text = '# ours\nbackend: "onnxruntime"\nmax_batch_size: 2\ninput { name: "X" data_type: TYPE_FP32 dims: 4 }\n'
    model = read_model(entry(text), "m")
    assert model.outputs == (TensorSpec("Y", "FP32", (4,)),)
    assert model.max_batch_size == 2
    assert model.effective_config_text.startswith("# ours\n")


def test_a_model_without_a_batch_dimension_stays_without(entry: Callable[..., Path], make_onnx: MakeOnnx) -> None:
    from onnx import helper

    repository = entry(None)
    make_onnx(
        repository / "m" / "1" / "model.onnx",
        [helper.make_node("Identity", ["a"], ["b"])],
        [("a", INT64, [])],
        [("b", INT64, [])],
    )
    model = read_model(repository, "m")
    assert (model.max_batch_size, model.dynamic_batching) == (0, False)
    assert model.inputs == (TensorSpec("a", "INT64", (1,)),)
    assert codes(model) == {"no_batch_dimension"}


def test_a_plan_without_a_config_cannot_tell_its_tensors(entry: Callable[..., Path]) -> None:
    model = read_model(entry(None, **{"1/model.plan": b"plan"}), "m")
    assert (model.backend, model.format) == ("tensorrt", ModelFormat.PLAN)
    assert codes(model, fatal=True) == {"signature_unknown"}


# Backends and files


@pytest.mark.parametrize(
    ("files", "backend", "kind"),
    [
        (["1/model.plan", "1/model.onnx"], "tensorrt", ModelFormat.PLAN),
        (["1/model.onnx", "1/model.pt"], "onnxruntime", ModelFormat.ONNX),
        (["1/model.xml", "1/model.pt"], "openvino", ModelFormat.OPENVINO),
        (["1/model.pt", "1/model.py"], "pytorch", ModelFormat.TORCHSCRIPT),
        (["1/model.pt2"], "pytorch", ModelFormat.PYTORCH_EXPORT),
        (["1/model.py"], "python", ModelFormat.PYTHON),
        (["10/model.py", "2/model.pt"], "python", ModelFormat.PYTHON),
    ],
)
def test_files_tell_the_backend_in_the_order_of_triton(
    entry: Callable[..., Path], files: list[str], backend: str, kind: ModelFormat
) -> None:
    model = read_model(entry("max_batch_size: 1\n", **dict.fromkeys(files, b"x")), "m")
    assert model.backend == backend
    served = [version for version in model.versions if version.path.name == files[0].split("/")[0]]
    assert served[0].format is kind


def test_a_plan_dropped_beside_an_onnx_file_is_noted(entry: Callable[..., Path]) -> None:
    text = CONFIG.replace('platform: "onnxruntime_onnx"\n', "")
    model = read_model(entry(text, **{"1/model.onnx": None, "1/model.plan": b"x"}), "m")
    assert model.backend == "tensorrt"
    assert any("Triton takes model.plan" in note for note in model.notes)
    assert onnx_path(model) == model.directory / "1" / "model.onnx"
    assert "no_onnx_source" not in codes(model)


def test_a_name_with_a_suffix_is_a_custom_backend(entry: Callable[..., Path]) -> None:
    model = read_model(entry("max_batch_size: 1\n", name="simple.identity", **{"1/": b""}), "simple.identity")
    assert (model.backend, model.default_model_filename) == ("identity", "model.identity")


def test_nothing_tells_the_backend(entry: Callable[..., Path]) -> None:
    assert "backend_unknown" in codes(read_model(entry("max_batch_size: 1\n", **{"1/weights": b""}), "m"), fatal=True)
    assert "backend_unknown" in codes(read_model(entry(None, name="docs", **{"readme.md": b""}), "docs"), fatal=True)


def test_a_directory_is_an_onnx_model_with_external_data(entry: Callable[..., Path], tiny_onnx: Path) -> None:
    import onnx

    model = onnx.load(tiny_onnx)
    big = onnx.numpy_helper.from_array(__import__("numpy").zeros(2048, "float32"), "big")
    model.graph.initializer.append(big)
    repository = entry(**{"1/model.onnx/": b""})
    target = repository / "m" / "1" / "model.onnx" / "model.onnx"
    onnx.save(model, target, save_as_external_data=True, location="weights.bin")
    read = read_model(repository, "m")
    assert codes(read) == set()
    assert onnx_path(read) == target
    before = read.content_hash
    weights = target.with_name("weights.bin")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert read_model(repository, "m").content_hash != before
    weights.unlink()
    assert "external_data_missing" in codes(read_model(repository, "m"), fatal=True)


def test_a_file_that_is_no_onnx_model(entry: Callable[..., Path]) -> None:
    for content in (b"", b"not a model", b"\x00" * 64):
        assert "onnx_unreadable" in codes(read_model(entry(**{"1/model.onnx": content}), "m"), fatal=True)


# Versions


def test_versions_and_their_policy(entry: Callable[..., Path]) -> None:
    files = {"1/model.onnx": None, "2/model.onnx": None, "5/model.onnx": None}
    model = read_model(entry(CONFIG + "version_policy { specific { versions: [ 1, 2, 9 ] } }", **files), "m")
    assert {version.number for version in model.versions if version.served} == {1, 2}
    assert model.version_policy == "specific(1,2,9)"
    assert model.live_version is not None
    assert model.live_version.number == 2
    assert codes(model) == {"version_absent"}
    model = read_model(entry(CONFIG + "version_policy { all { } }"), "m")
    assert (model.version_policy, sum(version.served for version in model.versions)) == ("all", 3)
    assert read_model(entry(CONFIG + "version_policy { }"), "m").version_policy == "all"
    model = read_model(entry(CONFIG + "version_policy { latest { num_versions: 2 } }"), "m")
    assert {version.number for version in model.versions if version.served} == {2, 5}
    model = read_model(entry(CONFIG + "version_policy { specific { versions: 7 } }"), "m")
    assert "no_served_version" in codes(model, fatal=True)


def test_a_served_version_without_its_file_blocks_all(entry: Callable[..., Path]) -> None:
    model = read_model(entry(**{"1/model.onnx": None, "2/model.plan": b"x"}), "m")
    blocker = next(blocker for blocker in model.blockers if blocker.code == "model_file_missing")
    assert blocker.fatal
    assert "2/model.onnx" in blocker.reason
    assert "it has model.plan" in blocker.reason
    assert model.versions[0].format is ModelFormat.PLAN


def test_a_directory_being_copied_in_is_a_version_to_triton(entry: Callable[..., Path]) -> None:
    files = {"1/model.onnx": None, "2.tmp/model.onnx": None}
    assert "version_directory_name" in codes(read_model(entry(**files), "m"), fatal=True)
    model = read_model(entry(CONFIG + "version_policy { specific { versions: 1 } }", **files), "m")
    assert "version_directory_name" not in codes(model)


def test_ignored_and_doubled_directories_are_noted(entry: Callable[..., Path]) -> None:
    files = {"1/model.onnx": None, "1.bak/model.onnx": None, "01/model.onnx": None, "old/model.onnx": None}
    notes = " ".join(read_model(entry(**files), "m").notes)
    for part in ("'1.bak' counts as version 1", "'01' is ignored", "'old' is ignored"):
        assert part in notes


@pytest.mark.parametrize("name", ["-1", "99999999999999999999"])
def test_numbers_that_triton_cannot_take(entry: Callable[..., Path], name: str) -> None:
    assert "version_number" in codes(read_model(entry(**{f"{name}/model.onnx": None}), "m"), fatal=True)


def test_a_link_that_leads_nowhere_keeps_triton_from_listing_versions(entry: Callable[..., Path]) -> None:
    repository = entry()
    (repository / "m" / "notes.txt").symlink_to("gone")
    assert "dangling_link" in codes(read_model(repository, "m"), fatal=True)


def test_no_version_at_all(entry: Callable[..., Path]) -> None:
    assert "no_version" in codes(read_model(entry(readme=b""), "m"), fatal=True)


def test_provenance_is_told(entry: Callable[..., Path]) -> None:
    files = {"1/model.onnx": None, "1/optimizer.json": b'{"decision": {"winner": "-a=1"}}'}
    assert "version 1 was written by triton-optimizer (-a=1)" in read_model(entry(**files), "m").notes


# What blocks


BROKEN_CONFIGS: list[tuple[str, str, str]] = [
    ("max_batch_size: 8", "max_batch_size: -1", "config_invalid"),
    ('platform: "onnxruntime_onnx"', 'name: "n" platform: "onnxruntime_onnx"', "name_mismatch"),
    ('platform: "onnxruntime_onnx"', 'backend: "onnxruntime" platform: "tensorrt_plan"', "config_invalid"),
    ("max_batch_size: 8", "max_batch_size: 8 dynamic_batching { preferred_batch_size: 16 }", "config_invalid"),
    ('name: "X" data_type: TYPE_FP32', 'name: "X" data_type: TYPE_FP16', "datatype_mismatch"),
    ('name: "X" data_type: TYPE_FP32', 'name: "X"', "config_invalid"),
    ('name: "Y" data_type: TYPE_FP32 dims: 4', 'name: "Y" data_type: TYPE_FP32', "config_invalid"),
    ("output {", 'input { name: "X" data_type: TYPE_FP32 dims: 4 }\noutput {', "duplicate_tensor"),
    ("output {", 'output { name: "Y" data_type: TYPE_FP32 dims: 4 }\noutput {', "duplicate_tensor"),
    ('name: "X" data_type: TYPE_FP32 dims: 4', 'name: "X" data_type: TYPE_FP32 dims: 0', "config_invalid"),
    ('name: "X"', 'name: "x"', "input_unknown"),
    ('name: "X"', 'name: "x"', "input_missing"),
    ('name: "Y"', 'name: "y"', "output_unknown"),
    ("TYPE_FP32 dims: 4 }\noutput", "TYPE_FP32 dims: [ 2, 2 ] }\noutput", "shape_mismatch"),
    ("TYPE_FP32 dims: 4 }\noutput", "TYPE_FP32 dims: 5 }\noutput", "shape_mismatch"),
    ("TYPE_FP32 dims: 4 }\noutput", "TYPE_FP32 dims: -1 }\noutput", "shape_mismatch"),
    ("max_batch_size: 8", "max_batch_size: 0", "shape_mismatch"),
    ("max_batch_size: 8", "max_batch_size: 8 sequence_batching { }", "sequence_batching"),
    ("max_batch_size: 8", "max_batch_size: 8 model_transaction_policy { decoupled: true }", "decoupled"),
    ('name: "Y"', 'name: "Y" label_filename: "labels.txt"', "label_file_missing"),
    ('name: "Y"', 'name: "Y" label_filename: "../labels.txt"', "label_file_outside"),
    ('name: "X"', 'name: "X" optional: true', "optional_with_batch"),
    ('name: "X"', 'name: "X" allow_ragged_batch: true', "ragged_shape"),
    (
        "max_batch_size: 8",
        'max_batch_size: 8 model_warmup { inputs { key: "X" value { input_data_file: "x.bin" } } }',
        "warmup_file_missing",
    ),
]


@pytest.mark.parametrize(("old", "new", "code"), BROKEN_CONFIGS)
def test_each_fault_of_a_config_is_named(entry: Callable[..., Path], old: str, new: str, code: str) -> None:
    assert old in CONFIG
    assert code in codes(read_model(entry(CONFIG.replace(old, new)), "m"), fatal=True)


def test_an_input_and_an_output_may_have_one_name(entry: Callable[..., Path]) -> None:
    tensors = "".join(f'{kind} {{ name: "X" data_type: TYPE_FP32 dims: 4 }}\n' for kind in ("input", "output"))
    text = 'backend: "python"\n' + tensors
    assert "duplicate_tensor" not in codes(read_model(entry(text), "m"))
    blockers = {blocker.code: blocker for blocker in read_model(entry(text + tensors), "m").blockers}
    assert "output 'X' 2 times" in blockers["duplicate_tensor"].reason
    assert blockers["duplicate_tensor"].remedy == "leave one output 'X' in the config"


def test_the_fixture_config_has_no_fault(entry: Callable[..., Path]) -> None:
    assert codes(read_model(entry(), "m")) == set()


def test_a_fixed_batch_needs_max_batch_size_zero(entry: Callable[..., Path], make_onnx: MakeOnnx) -> None:
    from onnx import helper

    repository = entry()
    make_onnx(
        repository / "m" / "1" / "model.onnx",
        [helper.make_node("Identity", ["X"], ["Y"])],
        [("X", FLOAT, [8, 4])],
        [("Y", FLOAT, [8, 4])],
    )
    assert "batch_dimension" in codes(read_model(repository, "m"), fatal=True)
    entry(CONFIG.replace("max_batch_size: 8", "max_batch_size: 0").replace("dims: 4", "dims: [ 8, 4 ]"))
    assert codes(read_model(repository, "m"), fatal=True) == set()


def test_reshape_is_compared_instead_of_dims(entry: Callable[..., Path]) -> None:
    text = CONFIG.replace("dims: 4 }\noutput", "dims: [ 2, 2 ] reshape { shape: 4 } }\noutput")
    model = read_model(entry(text), "m")
    assert codes(model) == set()
    assert model.inputs == (TensorSpec("X", "FP32", (2, 2), reshape=(4,)),)


def test_what_rules_out_a_plan_is_not_fatal(entry: Callable[..., Path], make_onnx: MakeOnnx) -> None:
    from onnx import helper

    repository = entry(
        'backend: "onnxruntime"\nmax_batch_size: 0\n'
        'input { name: "s" data_type: TYPE_STRING dims: [ -1 ] }\n'
        'output { name: "t" data_type: TYPE_STRING dims: [ -1 ] }\n'
    )
    make_onnx(
        repository / "m" / "1" / "model.onnx",
        [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("Identity", ["s"], ["u"])],
        [("s", STRING, ["n"])],
        [("t", STRING, ["n"]), ("u", STRING, ["n"])],
    )
    model = read_model(repository, "m")
    assert model.inputs[0].datatype == "BYTES"
    assert codes(model, fatal=False) == {"datatype_not_in_tensorrt", "free_dimensions", "output_not_listed"}
    assert codes(model, fatal=True) == set()


def test_custom_operators_are_told(entry: Callable[..., Path], tiny_onnx: Path) -> None:
    import onnx

    model = onnx.load(tiny_onnx)
    model.graph.node[0].domain = "com.example"
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    repository = entry()
    onnx.save(model, repository / "m" / "1" / "model.onnx")
    assert codes(read_model(repository, "m")) == {"custom_domains"}


def test_ensembles_name_their_members(entry: Callable[..., Path]) -> None:
    entry()
    repository = entry(
        'platform: "ensemble"\n'
        'input { name: "A" data_type: TYPE_FP32 dims: 4 }\noutput { name: "B" data_type: TYPE_FP32 dims: 4 }\n'
        "ensemble_scheduling {\n"
        '  step { model_name: "m" input_map { key: "X" value: "A" } output_map { key: "Y" value: "h" } }\n'
        '  step { model_name: "gone" input_map { key: "X" value: "h" } output_map { key: "Y" value: "B" } }\n'
        "}\n",
        name="e",
        **{"1/": b""},
    )
    ensemble = read_model(repository, "e")
    assert ensemble.ensemble_members == ("m", "gone")
    assert ensemble.format is ModelFormat.ENSEMBLE
    assert codes(ensemble, fatal=True) == {"ensemble", "ensemble_member_missing"}
    assert ensembles_using(repository, "m") == ["e"]
    assert "used by ensemble e" in read_model(repository, "m").notes


def test_referenced_files_that_are_there(entry: Callable[..., Path]) -> None:
    text = CONFIG.replace('name: "Y"', 'name: "Y" label_filename: "labels.txt"') + (
        'model_warmup { name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 4 '
        'input_data_file: "x.bin" } } }\n'
    )
    model = read_model(entry(text, **{"1/model.onnx": None, "labels.txt": b"a\n", "warmup/x.bin": b"0"}), "m")
    assert codes(model) == set()
    assert (model.label_files, model.warmup_files) == (("labels.txt",), ("warmup/x.bin",))
    assert model.outputs[0].label_filename == "labels.txt"


def test_a_file_that_hides_changes_from_triton_is_noted(entry: Callable[..., Path]) -> None:
    repository = entry()
    (repository / "m" / "config").touch()
    model = read_model(repository, "m")
    assert any("'config' beside 'config.pbtxt'" in note for note in model.notes)


# What cannot be read


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../m", "/m", "m\0"])
def test_a_name_that_is_no_directory_name_is_refused(entry: Callable[..., Path], name: str) -> None:
    with pytest.raises(InputError, match="no model name"):
        read_model(entry(), name)


def test_a_missing_model_names_the_nearest(entry: Callable[..., Path]) -> None:
    repository = entry(name="classifier")
    with pytest.raises(InputError) as caught:
        read_model(repository, "clasifier")
    assert caught.value.remedy == "did you mean 'classifier'?"
    with pytest.raises(InputError) as caught:
        read_model(repository, "zzz")
    assert caught.value.remedy == "models there: classifier"
    (repository / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match="leads nowhere"):
        read_model(repository, "link")


def test_a_repository_that_is_none(entry: Callable[..., Path], tmp_path: Path) -> None:
    repository = entry()
    for path, problem in [
        (tmp_path / "absent", "no such directory"),
        (repository / "m" / "config.pbtxt", "it is a file"),
        (repository / "m", "one model's directory"),
        (Path("s3://bucket/models"), "cloud storage"),
    ]:
        with pytest.raises(InputError, match=problem):
            list_models(path)


def test_a_malformed_config_is_a_value_among_the_others(entry: Callable[..., Path]) -> None:
    entry(name="good")
    repository = entry("max_batchsize: 3\n", name="bad")
    bad, good = read_repository(repository)
    assert isinstance(bad, UnreadableModel)
    assert bad.error.where == f"{repository}/bad/config.pbtxt:1:1"
    assert isinstance(good, Model)


def test_a_config_that_is_not_utf8_names_the_byte(entry: Callable[..., Path]) -> None:
    repository = entry()
    (repository / "m" / "config.pbtxt").write_bytes(b"# ok\n# caf\xe9\n")
    with pytest.raises(InputError) as caught:
        read_model(repository, "m")
    assert (caught.value.where or "").endswith("config.pbtxt:2:6")


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Root may read everything, so it becomes nobody for a while."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_an_unreadable_directory_is_named(entry: Callable[..., Path], request: pytest.FixtureRequest) -> None:
    repository = entry()
    (repository / "m" / "1").chmod(0)
    try:
        request.getfixturevalue("ordinary_user")
        with pytest.raises(InputError, match="Permission denied"):
            read_model(repository, "m")
    finally:
        os.seteuid(os.getuid())
        (repository / "m" / "1").chmod(0o755)


def test_changes_while_reading_are_seen(entry: Callable[..., Path]) -> None:
    directory = entry() / "m"
    before = on_disk.snapshot(directory)
    assert on_disk.difference(before, on_disk.snapshot(directory)) is None
    (directory / "1" / "model.onnx").write_bytes(b"half")
    assert on_disk.difference(before, on_disk.snapshot(directory)) == "1/model.onnx"
    (directory / "2").mkdir()
    assert on_disk.difference(before, on_disk.snapshot(directory)) is not None
