"""apply, status and rollback of real models: load-tested in a real sandbox, then served by a fresh server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from production_server import production_server

from optimizer.apply import apply_winner, live_status, rollback
from optimizer.config import parse_settings
from optimizer.durable import sha256_tree
from optimizer.errors import WriteBackRefused
from optimizer.preparation import Preparation
from optimizer.records.route import Route
from optimizer.repository.reader import read_model
from optimizer.testing.decided import decided_study

pytestmark = pytest.mark.system

ENSEMBLE = """\
name: "both"
platform: "ensemble"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step [
    { model_name: "tiny" model_version: -1 input_map { key: "X" value: "IN" } output_map { key: "Y" value: "mid" } },
    { model_name: "after" model_version: -1 input_map { key: "X" value: "mid" } output_map { key: "Y" value: "OUT" } }
  ]
}
"""


def right(inputs: Any) -> dict[str, Any]:
    return {"Y": (inputs["X"] * 2 + 1).astype(np.float32)}


def study(repository: Path, directory: Path, route: dict[str, str], *, expected: Callable[[Any], Any] = right,
          served: bool = True, **settings: Any) -> Preparation:  # fmt: skip
    given = {
        "tolerance": ["*:lInf<=1e-4"],
        "inputs": {"synthetic_count": 12},
        "search": {"routes": "-instances=[1|2]"},
        "builder": {"family": "unchanged"},
        **settings,
    }
    return decided_study(
        repository, "tiny", directory, parse_settings(given, where="test"), expected, route=Route.of(route),
        served=served,
    )  # fmt: skip


def apply(preparation: Preparation, **options: Any) -> dict[str, Any]:
    return apply_winner(preparation, **options)


def ask(client: Any, name: str = "tiny", version: str = "", **inputs: Any) -> Any:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    return x, client.infer(name, inputs or {"X": x}, {"X": "FP32", "IN": "FP32"}, version=version)


def left_over(repository: Path) -> list[str]:
    return [path.name for path in (*repository.iterdir(), *repository.parent.iterdir()) if ".triton" in path.name]


def test_a_new_engine_is_written_served_told_of_and_taken_back(tiny_repository: Path, tmp_path: Path) -> None:
    before = sha256_tree(tiny_repository)
    old_text = (tiny_repository / "tiny" / "config.pbtxt").read_text()
    settings: dict[str, Any] = {
        "builder": {"family": "onnxruntime"},
        "search": {"routes": "-graph_optimization=[all|basic]"},
    }
    preparation = study(tiny_repository, tmp_path / "study", {"graph_optimization": "basic"}, **settings)

    shown = apply(preparation, dry_run=True)
    assert shown["changed"] is False
    assert sha256_tree(tiny_repository) == before
    done = apply(preparation)
    assert done["diff"] == shown["diff"] != ""
    assert (done["version"], done["way"], done["served"]) == (2, "rename", [2])
    assert left_over(tiny_repository) == []
    text = (tiny_repository / "tiny" / "config.pbtxt").read_text()
    assert text.startswith("# Serves Y = 2 X + 1.\n")
    assert 'backend: "onnxruntime"' in text
    provenance = json.loads((tiny_repository / "tiny" / "2" / "optimizer.json").read_text())
    assert provenance["config"]["before"]["text"] == old_text
    assert provenance["engine"]["sha256"] == done["engine_sha256"]
    assert set(provenance["files"]) == {"model.onnx"}
    row = live_status(tiny_repository, read_model(tiny_repository, "tiny"))
    assert (row["version"], row["written"], row["stale"]) == (2, True, [])
    assert row["since"] == provenance["written_at_utc"]
    with production_server(tiny_repository, tmp_path / "server", models=["tiny"]) as server:
        assert server.ready("tiny") == [2]
        x, outputs = ask(server.client)
        np.testing.assert_array_equal(outputs["Y"], 2 * x + 1)

    (tiny_repository / "tiny" / "2" / "model.onnx").write_bytes(b"other")
    assert "model.onnx was changed" in live_status(tiny_repository, read_model(tiny_repository, "tiny"))["stale"][0]
    with pytest.raises(WriteBackRefused, match=r"model\.onnx was changed"):
        rollback(tiny_repository, "tiny")
    shutil.copy(next((tmp_path / "study" / "engines").rglob("*.onnx")), tiny_repository / "tiny" / "2" / "model.onnx")
    (tiny_repository / "tiny" / "1").rename(tmp_path / "1")
    with pytest.raises(WriteBackRefused, match="version 1, which was served before, is gone"):
        rollback(tiny_repository, "tiny")
    (tmp_path / "1").rename(tiny_repository / "tiny" / "1")
    config = tiny_repository / "tiny" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text + "# later\n")
    with pytest.raises(WriteBackRefused, match="was edited since the write-back"):
        rollback(tiny_repository, "tiny")
    config.write_text(text)
    taken = rollback(tiny_repository, "tiny")
    assert taken["rolled_back"]
    assert sha256_tree(tiny_repository) == before
    with pytest.raises(WriteBackRefused, match="nothing to take back"):
        rollback(tiny_repository, "tiny")


def test_versions_served_by_policy_go_on_and_several_write_backs_go_back_one_by_one(
    tiny_repository: Path, tmp_path: Path
) -> None:
    config = tiny_repository / "tiny" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy: { all { } }\n")
    hashes = [sha256_tree(tiny_repository)]
    for number, instances in enumerate((2, 1)):
        routes = {"search": {"routes": "-instances=[1|2]"}}
        done = apply(study(tiny_repository, tmp_path / f"study{number}", {"instances": str(instances)}, **routes))
        assert done["served"] == list(range(1, number + 3))
        hashes.append(sha256_tree(tiny_repository))
    with production_server(tiny_repository, tmp_path / "server", models=["tiny"]) as server:
        assert server.ready("tiny") == [1, 2, 3]
        for version in ("", "1", "2"):
            x, outputs = ask(server.client, version=version)
            np.testing.assert_array_equal(outputs["Y"], 2 * x + 1)
    for before in (hashes[1], hashes[0]):
        rollback(tiny_repository, "tiny")
        assert sha256_tree(tiny_repository) == before


def test_an_ensemble_is_tried_with_the_new_version(tiny_repository: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_repository / "tiny", tiny_repository / "after")
    config = tiny_repository / "after" / "config.pbtxt"
    config.write_text(config.read_text().replace('"tiny"', '"after"'))
    (tiny_repository / "both" / "1").mkdir(parents=True)
    (tiny_repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    done = apply(study(tiny_repository, tmp_path / "study", {"instances": "2"}))
    assert any("ensemble both loads with it and answers" in line for line in done["lines"])


def test_wrong_answers_in_the_sandbox_write_nothing(tiny_repository: Path, tmp_path: Path) -> None:
    before = sha256_tree(tiny_repository)
    preparation = study(
        tiny_repository, tmp_path / "study", {"instances": "2"}, expected=lambda inputs: {"Y": inputs["X"] * 2}
    )
    with pytest.raises(WriteBackRefused, match=r"lInf loss 1 exceeds 0\.0001"):
        apply(preparation)
    assert sha256_tree(tiny_repository) == before
    assert left_over(tiny_repository) == []


def test_another_platform_comes_and_goes(tiny_repository: Path, tiny_onnx: Path, tmp_path: Path) -> None:
    """What is there cannot be served here (TorchScript); an ONNX source beside it can."""
    directory = tiny_repository / "tiny"
    (directory / "1" / "model.onnx").unlink()
    (directory / "1" / "model.pt").write_bytes(b"torchscript")
    text = (directory / "config.pbtxt").read_text().replace("onnxruntime_onnx", "pytorch_libtorch")
    (directory / "config.pbtxt").write_text(text + "version_policy: { specific { versions: 1 } }\r\n")
    before = sha256_tree(tiny_repository)
    preparation = study(
        tiny_repository, tmp_path / "study", {"graph_optimization": "basic"}, served=False,
        builder={"family": "onnxruntime", "onnx": str(tiny_onnx)}, search={"routes": "-graph_optimization=[all|basic]"},
    )  # fmt: skip
    with pytest.raises(WriteBackRefused, match="could not be served") as refusal:
        apply(preparation)
    assert refusal.value.field == "--accept-unserved-baseline"
    with pytest.raises(WriteBackRefused, match="no longer be served") as refusal:
        apply(preparation, accept_unserved_baseline=True)
    assert sha256_tree(tiny_repository) == before
    done = apply(preparation, accept_unserved_baseline=True, replace_served_versions=True)
    assert done["served"] == [2]
    with production_server(tiny_repository, tmp_path / "server", models=["tiny"]) as server:
        x, outputs = ask(server.client)
        np.testing.assert_array_equal(outputs["Y"], 2 * x + 1)
    rollback(tiny_repository, "tiny")
    assert sha256_tree(tiny_repository) == before


def test_a_named_config_with_labels_and_warm_up(tiny_repository: Path, tmp_path: Path) -> None:
    """The server's --model-config-name decides which config is live: that one is edited, the other is not touched."""
    directory = tiny_repository / "tiny"
    text = (
        (directory / "config.pbtxt")
        .read_text()
        .replace('output [ { name: "Y"', 'output [ { name: "Y" label_filename: "labels.txt"')
    )
    text = text.replace("dims: [ 4 ] } ]\noutput", "dims: [ 2, 2 ] reshape { shape: [ 4 ] } } ]\noutput")
    text += (
        'model_warmup [ { name: "w" batch_size: 2 inputs { key: "X" value '
        '{ data_type: TYPE_FP32 dims: [ 2, 2 ] input_data_file: "x" } } } ]  # kept\n'
    )
    (directory / "configs").mkdir()
    (directory / "configs" / "prod.pbtxt").write_bytes(text.replace("\n", "\r\n").encode())
    (directory / "labels.txt").write_text("a\nb\nc\nd\n")
    (directory / "warmup").mkdir()
    (directory / "warmup" / "x").write_bytes(np.zeros((2, 2), np.float32).tobytes())
    other = (directory / "config.pbtxt").read_bytes()
    before = sha256_tree(tiny_repository)

    def answer(inputs: Any) -> dict[str, Any]:
        return {"Y": (inputs["X"].reshape(-1, 4) * 2 + 1).astype(np.float32)}

    done = apply(study(tiny_repository, tmp_path / "study", {"instances": "2"}, expected=answer, config_name="prod"))
    assert done["config"].endswith("configs/prod.pbtxt")
    edited = (directory / "configs" / "prod.pbtxt").read_bytes()
    assert edited.count(b"\n") == edited.count(b"\r\n")
    assert b"# kept\r\n" in edited
    assert (directory / "config.pbtxt").read_bytes() == other
    with production_server(
        tiny_repository, tmp_path / "server", models=["tiny"], more=["--model-config-name=prod"]
    ) as server:
        assert server.ready("tiny") == [2]
        x = np.ones((1, 2, 2), np.float32)
        np.testing.assert_array_equal(ask(server.client, X=x)[1]["Y"], answer({"X": x})["Y"])
    rollback(tiny_repository, "tiny")
    assert sha256_tree(tiny_repository) == before


def test_a_model_without_a_config_gets_one_and_loses_it_again(tiny_repository: Path, tmp_path: Path) -> None:
    (tiny_repository / "tiny" / "config.pbtxt").unlink()
    before = sha256_tree(tiny_repository)
    done = apply(study(tiny_repository, tmp_path / "study", {"instances": "2"}))
    assert (tiny_repository / "tiny" / "config.pbtxt").is_file()
    assert done["diff"].startswith("---")
    rollback(tiny_repository, "tiny")
    assert sha256_tree(tiny_repository) == before


MOUNTED = """
import subprocess, sys
from pathlib import Path
from optimizer.apply import apply_winner, rollback
from optimizer.config import parse_settings
from optimizer.durable import sha256_tree
from optimizer.records.route import Route
from optimizer.testing.decided import decided_study
from optimizer.testing.models import null_model
top = Path(sys.argv[1])
repository = top / "models"
repository.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(repository)], check=True)
null_model("m").write(repository)
settings = {"tolerance": ["*:lInf<=1e-4"], "inputs": {"synthetic_count": 8}, "builder": {"family": "unchanged"},
            "search": {"routes": "-instances=[1|2]"}}
preparation = decided_study(repository, "m", top / "study", parse_settings(settings, where="test"),
                            lambda inputs: {"OUTPUT0": inputs["INPUT0"]}, route=Route.of({"instances": "2"}))
before = sha256_tree(repository)
done = apply_winner(preparation)
assert done["way"] == "in_place", done
assert sorted(path.name for path in (repository / "m" / "2").iterdir()) == ["model.py", "optimizer.json"]
rollback(repository, "m")
assert sha256_tree(repository) == before
assert not list((top / "study").glob(".triton*"))
"""


def test_a_repository_that_is_a_mount_point(tmp_path: Path) -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
    ):
        pytest.skip("no mount namespace can be made here (unshare --mount)")
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", MOUNTED, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
