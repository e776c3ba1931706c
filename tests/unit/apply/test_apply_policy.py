"""Which versions a new config serves: values in, values out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optimizer.apply import policy
from optimizer.errors import WriteBackRefused
from optimizer.records.model import Model
from optimizer.repository.reader import read_model
from optimizer.repository.versions import scan_versions
from optimizer.triton.protobuf import parse_config

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 }'
HEAD = 'backend: "python" max_batch_size: 8 default_model_filename: "model.py" '


def model_of(tmp_path: Path, text: str, versions: tuple[str, ...]) -> tuple[Model, Any]:
    directory = tmp_path / "models" / "m"
    for version in versions:
        (directory / version).mkdir(parents=True)
        (directory / version / "model.py").write_text("")
    (directory / "config.pbtxt").write_text(HEAD + TENSORS + text)
    model = read_model(tmp_path / "models", "m")
    return model, parse_config(model.effective_config_text)


def target_of(effective: Any, **fields: str) -> Any:
    target = type(effective)()
    target.CopyFrom(effective)
    for name, value in fields.items():
        setattr(target, name, value)
    return target


LATEST_2 = "version_policy { latest { num_versions: 2 } }"
ALL = "version_policy { all { } }"
SPECIFIC = "version_policy { specific { versions: [ 1, 3 ] } }"

SAME_BACKEND = [
    ("", ("1", "2"), (3,), None),
    (LATEST_2, ("1", "2", "3"), (2, 3, 4), "latest { num_versions: 3 }"),
    (LATEST_2, ("1",), (1, 2), "latest { num_versions: 2 }"),
    (ALL, ("1", "2"), (1, 2, 3), "all { }"),
    ("version_policy { }", ("1", "2"), (1, 2, 3), ""),
    (SPECIFIC, ("1", "2", "3"), (1, 3, 4), "specific { versions: [ 1, 3, 4 ] }"),
]


@pytest.mark.parametrize(("text", "versions", "served", "wanted"), SAME_BACKEND)
def test_what_is_served_today_goes_on_being_served(
    tmp_path: Path, text: str, versions: tuple[str, ...], served: tuple[int, ...], wanted: str | None
) -> None:
    model, effective = model_of(tmp_path, text, versions)
    number = policy.next_version(scan_versions(model.directory), effective)
    final = policy.final(effective, target_of(effective), model, number, replace_served_versions=False)
    assert final.served == served
    if wanted is None:
        assert not final.config.HasField("version_policy")
    else:
        assert final.config.version_policy == parse_config(f"version_policy {{ {wanted} }}").version_policy
    # A reader, put before the result, sees what was promised.
    (model.directory / str(number)).mkdir()
    (model.directory / str(number) / "model.py").write_text("")
    from optimizer.triton.protobuf import print_config

    (model.directory / "config.pbtxt").write_text(print_config(final.config))
    assert policy.served_numbers(read_model(tmp_path / "models", "m")) == served


@pytest.mark.parametrize(("text", "today"), [(LATEST_2, "2, 3"), (ALL, "1, 2, 3"), (SPECIFIC, "1, 3")])
def test_another_backend_takes_served_versions_away_only_when_told(tmp_path: Path, text: str, today: str) -> None:
    model, effective = model_of(tmp_path, text, ("1", "2", "3"))
    target = target_of(effective, backend="tensorrt", platform="tensorrt_plan", default_model_filename="model.plan")
    with pytest.raises(WriteBackRefused, match=f"version {today} would no longer be served") as refusal:
        policy.final(effective, target, model, 4, replace_served_versions=False)
    assert "--replace-served-versions" in str(refusal.value)
    final = policy.final(effective, target, model, 4, replace_served_versions=True)
    assert final.served == (4,)
    assert list(final.config.version_policy.specific.versions) == [4]


def test_under_the_latest_version_alone_another_backend_may_come(tmp_path: Path) -> None:
    model, effective = model_of(tmp_path, "", ("1",))
    target = target_of(effective, backend="tensorrt")
    assert policy.final(effective, target, model, 2, replace_served_versions=False).served == (2,)


@pytest.mark.parametrize("text", ["", LATEST_2, ALL, SPECIFIC])
def test_a_pinned_config_serves_the_same_whatever_comes_in(tmp_path: Path, text: str) -> None:
    from optimizer.triton.protobuf import print_config

    model, effective = model_of(tmp_path, text, ("1", "2", "3"))
    pinned = policy.pinned(effective, model)
    assert policy.pinned(pinned, model) == pinned
    (model.directory / "config.pbtxt").write_text(print_config(pinned))
    (model.directory / "10").mkdir()
    (model.directory / "10" / "model.onnx").write_text("")
    after = read_model(tmp_path / "models", "m")
    assert policy.served_numbers(after) == policy.served_numbers(model)
    assert after.backend == "python"


def test_a_version_number_is_never_given_twice(tmp_path: Path) -> None:
    model, effective = model_of(
        tmp_path, "version_policy { specific { versions: [ 1, 7 ] } }", ("1", "3", "04", "5.bak", "notes")
    )
    scan = scan_versions(model.directory)
    assert policy.next_version(scan, effective) == 8
    assert policy.next_version(scan, effective, (11, 2)) == 12
    effective.version_policy.Clear()
    assert policy.next_version(scan, effective) == 6
