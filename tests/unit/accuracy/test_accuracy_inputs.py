"""Samples from files, and every way in which a file can be wrong."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.accuracy.inputs import load_samples, save_samples
from optimizer.accuracy.tensors import round_to_bf16
from optimizer.errors import InputError
from optimizer.records.model import Model, TensorSpec
from optimizer.triton.client import from_wire, to_wire

Build = Callable[..., Model]


def arrays(count: int = 3) -> dict[str, Any]:
    return {
        "image": np.arange(count * 15, dtype=np.float32).reshape(count, 3, 5),
        "tokens": np.arange(count * 2, dtype=np.int64).reshape(count, 2),
    }


def saved(directory: Path, name: str = "samples.npz", **tensors: Any) -> Path:
    path = directory / name
    np.savez(path, **tensors)
    return path


def test_an_npz_with_golden_outputs_tags_and_ids(tmp_path: Path, model: Model) -> None:
    scores = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = saved(tmp_path, **arrays(), **{"expected/scores": scores}, tags=["a, hard", "", "b"], ids=["x", "y", "z"])
    loaded = load_samples(path, model, name="tune")
    assert loaded.name == "tune"
    assert loaded.references == "golden"
    assert not loaded.synthetic
    assert "sha256" in loaded.origin
    assert [sample.id for sample in loaded.samples] == ["x", "y", "z"]
    assert [sample.tags for sample in loaded.samples] == [{"a", "hard"}, set(), {"b"}]
    # The wire form has the batch in front.
    assert loaded.samples[1].inputs["image"].shape == (1, 3, 5)
    assert loaded.samples[1].inputs["tokens"].tolist() == [[2, 3]]
    assert (loaded.samples[2].expected or {})["scores"].tolist() == [[8, 9, 10, 11]]


def test_the_other_spelling_of_golden_outputs(tmp_path: Path, model: Model) -> None:
    scores = np.zeros((3, 4), np.float32)
    path = saved(tmp_path, **arrays(), **{"output:scores": scores})
    assert load_samples(path, model, name="t").references == "golden"
    path = saved(tmp_path, **arrays(), **{"output:scores": scores, "expected/scores": scores})
    with pytest.raises(InputError, match="is given twice"):
        load_samples(path, model, name="t")


def test_samples_may_be_requests_of_several_rows(tmp_path: Path, model: Model) -> None:
    path = saved(
        tmp_path,
        image=np.zeros((2, 5, 3, 4), np.float32),
        tokens=np.zeros((2, 5, 2), np.int64),
        **{"expected/scores": np.zeros((2, 5, 4), np.float32)},
    )
    loaded = load_samples(path, model, name="t")
    assert [sample.batch for sample in loaded.samples] == [5, 5]
    with pytest.raises(InputError, match="expected a batch of 1 to 8, got 9"):
        load_samples(
            saved(tmp_path, image=np.zeros((1, 9, 3, 4), np.float32), tokens=np.zeros((1, 9, 2), np.int64)),
            model,
            name="t",
        )
    with pytest.raises(InputError, match=r"(?s)'tokens', sample 0: expected a batch of 5 .* got 4"):
        load_samples(
            saved(tmp_path, image=np.zeros((1, 5, 3, 4), np.float32), tokens=np.zeros((1, 4, 2), np.int64)),
            model,
            name="t",
        )


def test_a_model_that_does_not_batch_has_no_batch_axis(tmp_path: Path, build_model: Build) -> None:
    model = build_model([TensorSpec("x", "FP32", (-1, 2)), TensorSpec("rate", "INT64", ())], [], 0)
    path = saved(tmp_path, x=np.zeros((4, 7, 2), np.float32), rate=np.full(4, 16000))
    loaded = load_samples(path, model, name="t")
    assert loaded.samples[0].inputs["x"].shape == (7, 2)
    assert loaded.samples[0].inputs["rate"].shape == ()


def test_shape_tensors_have_no_batch_axis(tmp_path: Path, build_model: Build) -> None:
    model = build_model([TensorSpec("x", "FP32", (2,)), TensorSpec("size", "INT32", (2,), shape_tensor=True)], [])
    path = saved(tmp_path, x=np.zeros((3, 2), np.float32), size=np.zeros((3, 2), np.int32))
    sample = load_samples(path, model, name="t").samples[0]
    assert sample.inputs["size"].shape == (2,)
    assert sample.inputs["x"].shape == (1, 2)


def test_a_directory_holds_samples_of_varying_shapes(tmp_path: Path, model: Model) -> None:
    for index, width in enumerate((2, 9, 4)):
        saved(
            tmp_path,
            f"s{index}.npz",
            image=np.zeros((3, width), np.float32),
            tokens=np.zeros((1, 2), np.int64),
            tags="w",
        )
    loaded = load_samples(tmp_path, model, name="t")
    assert [sample.inputs["image"].shape for sample in loaded.samples] == [(1, 3, 2), (1, 3, 9), (1, 3, 4)]
    assert loaded.samples[0].id == "s0"
    assert loaded.samples[0].tags == {"w"}
    np.savez(tmp_path / "s3.npz", image=np.zeros((3, 1), np.float32), tokens=np.zeros(2, np.int64),
             **{"expected/scores": np.zeros(4, np.float32)})  # fmt: skip
    with pytest.raises(InputError, match="sample s0 has no expected outputs while others have"):
        load_samples(tmp_path, model, name="t")


def test_what_is_saved_is_loaded(tmp_path: Path, model: Model, build_model: Build) -> None:
    path = saved(tmp_path, **arrays(), **{"expected/scores": np.ones((3, 4), np.float32)}, tags=["a", "", "b,c"])
    first = load_samples(path, model, name="t")
    save_samples(tmp_path / "again.npz", first)
    again = load_samples(tmp_path / "again.npz", model, name="t")
    assert [s.content_hash for s in again.samples] == [s.content_hash for s in first.samples]
    assert [s.tags for s in again.samples] == [s.tags for s in first.samples]


def test_bytes_from_fixed_width_texts(tmp_path: Path, build_model: Build) -> None:
    model = build_model([TensorSpec("t", "BYTES", (2,))], [])
    loaded = load_samples(saved(tmp_path, t=np.array([["a", "über"], ["", "c"]])), model, name="t")
    assert loaded.samples[0].inputs["t"].tolist() == [[b"a", "über".encode()]]
    loaded = load_samples(saved(tmp_path, t=np.array([[b"a", b"\xff"]])), model, name="t")
    assert loaded.samples[0].inputs["t"].tolist() == [[b"a", b"\xff"]]
    objects = np.array([["a", "b"]], dtype=object)
    with pytest.raises(InputError, match="without unpickling"):
        load_samples(saved(tmp_path, t=objects), model, name="t")


def test_bf16_from_fp32_and_from_bits(tmp_path: Path, build_model: Build) -> None:
    model = build_model([TensorSpec("t", "BF16", (3,))], [])
    values = np.array([[1.0, 3.14159, -1e-3]], np.float32)
    from_fp32 = load_samples(saved(tmp_path, t=values), model, name="t").samples[0].inputs["t"]
    assert np.array_equal(from_fp32, from_wire(to_wire(values, "BF16"), "BF16", (1, 3)))
    bits = (from_fp32.view(np.uint32) >> 16).astype(np.uint16)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from_bits = load_samples(saved(tmp_path, t=bits.view(ml_dtypes.bfloat16)), model, name="t").samples[0].inputs["t"]
    assert np.array_equal(from_bits, from_fp32)
    special = np.array([np.nan, np.inf, -np.inf, 3.4e38], np.float32)
    rounded = round_to_bf16(special)
    assert np.isnan(rounded[0])
    assert rounded[1:3].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(image=a["image"].astype("f8")), "'image', sample 0: expected data type FP32 .* float64"),
        (lambda a: a.update(tokens=a["tokens"].astype("i4")), "'tokens', sample 0: expected .* INT64 .*, got int32"),
        (lambda a: a.update(image=a["image"][:, :2]), r"expected shape \[batch, 3, \?\], got \[1, 2, 5\]"),
        (lambda a: a.update(image=a["image"][..., None, None, None]), r"expected shape \[batch, 3, \?\]"),
        (lambda a: a.update(tokens=a["tokens"][:2]), "'tokens': expected 3 samples along the first axis, got 2"),
        (lambda a: a.update(tokens=np.int64(3)), "'tokens': expected 3 samples along the first axis, got a scalar"),
        (lambda a: a.pop("tokens"), "'tokens': this input is missing"),
        (lambda a: a.update(extra=a["tokens"]), "'extra': the model has no input .* inputs: image, tokens"),
        (lambda a: a.update({"expected/score": a["tokens"]}), "the model has no output of this name"),
        (lambda a: a["image"].__setitem__((2, 1, 1), np.nan), "'image', sample 2: .* got NaN in 1 of 15"),
        (lambda a: a.update({"expected/scores": np.full((3, 4), np.nan, "f4")}), "'scores', sample 0: .*, got NaN"),
        (lambda a: a.update(tokens=np.zeros((3, 2), "U1")), "expected data type INT64"),
        (lambda a: a.update({"tokens": a["tokens"], "tags": np.array(["a"])}), "'tags': expected 3 samples"),
    ],
)  # fmt: skip
def test_a_wrong_array_names_file_tensor_sample_expected_and_got(
    tmp_path: Path, model: Model, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    tensors = arrays()
    change(tensors)
    path = saved(tmp_path, **tensors)
    with pytest.raises(InputError, match=f"(?s){message}") as caught:
        load_samples(path, model, name="t")
    assert str(path) in caught.value.message
    assert caught.value.remedy


def test_every_output_or_none_has_golden_values(tmp_path: Path, model: Model) -> None:
    two = replace(model, outputs=(*model.outputs, TensorSpec("other", "FP32", (1,))))
    path = saved(tmp_path, **arrays(), **{"expected/scores": np.zeros((3, 4), np.float32)})
    with pytest.raises(InputError, match="'other': expected values are given for scores but not for this output"):
        load_samples(path, two, name="t")


def test_an_optional_input_may_be_left_out(tmp_path: Path, model: Model) -> None:
    optional = replace(model, inputs=(model.inputs[0], replace(model.inputs[1], optional=True)))
    path = saved(tmp_path, image=arrays()["image"])
    assert set(load_samples(path, optional, name="t").samples[0].inputs) == {"image"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.npz", None, "no such file or directory"),
        ("broken.npz", b"PK\x03\x04 broken", "not a valid .npz"),
        ("text.npz", b"hello", "not a valid .npz"),
        ("samples.csv", b"1,2", "cannot tell the format"),
        ("broken.json", b'{"data": [}', "line 1, column 11"),
        ("list.json", b"[]", 'an object with a list "data"'),
        ("empty.json", b'{"data": []}', "holds no samples"),
        ("latin.json", b'{"data": "\xff"}', "not UTF-8"),
    ],
)
def test_a_file_that_is_not_samples(
    tmp_path: Path, model: Model, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_samples(tmp_path / name, model, name="t")
    assert name in caught.value.message


def test_a_single_array_and_an_empty_directory_are_not_samples(tmp_path: Path, model: Model) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(InputError, match="single array"):
        load_samples(tmp_path / "one.npz", model, name="t")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no samples"):
        load_samples(tmp_path / "empty", model, name="t")


def test_ids_are_unique(tmp_path: Path, model: Model) -> None:
    with pytest.raises(InputError, match="sample id 'a' occurs more than once"):
        load_samples(saved(tmp_path, **arrays(), ids=["a", "b", "a"]), model, name="t")


# perf_analyzer's JSON


def written(directory: Path, document: Any) -> Path:
    path = directory / "data.json"
    path.write_text(json.dumps(document))
    return path


def test_perf_analyzers_forms(tmp_path: Path, model: Model) -> None:
    raw = base64.b64encode(np.arange(6, dtype="<f4").tobytes()).decode()
    path = written(
        tmp_path,
        {
            "data": [
                {"image": {"content": [[1, 2], [3, 4], [5, 6]], "shape": [3, 2]}, "tokens": [7, 8]},
                {"image": [1, 2, 3, 4, 5, 6, 7, 8, 9], "tokens": [[7, 8]]},
                {"image": {"b64": raw, "shape": [3, 2]}, "tokens": [7, 8]},
            ],
            "validation_data": [{"scores": [0, 1, 2, 3]}, {"scores": [0.5, 1, 2, 3]}, {"scores": [0, 1, 2, 3]}],
        },
    )
    loaded = load_samples(path, model, name="t")
    assert loaded.references == "golden"
    assert [sample.inputs["image"].shape for sample in loaded.samples] == [(1, 3, 2), (1, 3, 3), (1, 3, 2)]
    assert loaded.samples[0].inputs["image"][0].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert loaded.samples[2].inputs["image"].ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert loaded.samples[1].inputs["tokens"].dtype == np.int64
    assert (loaded.samples[1].expected or {})["scores"].tolist() == [[0.5, 1, 2, 3]]


def test_streams_become_samples_of_their_steps(tmp_path: Path, model: Model) -> None:
    step = {"image": [1, 2, 3], "tokens": [1, 2]}
    loaded = load_samples(written(tmp_path, {"data": [[step, step], [step]]}), model, name="t")
    assert [sample.id for sample in loaded.samples] == ["0/0", "0/1", "1/0"]


def test_texts_and_their_base64(tmp_path: Path, build_model: Build) -> None:
    model = build_model([TensorSpec("t", "BYTES", (2,))], [])
    prefixed = b"\x01\x00\x00\x00a\x03\x00\x00\x00bcd"
    path = written(
        tmp_path, {"data": [{"t": ["a", "bcd"]}, {"t": {"b64": base64.b64encode(prefixed).decode(), "shape": [2]}}]}
    )
    loaded = load_samples(path, model, name="t")
    assert [sample.inputs["t"].tolist() for sample in loaded.samples] == [[[b"a", b"bcd"]]] * 2


def test_64_bit_integers_stay_exact(tmp_path: Path, model: Model) -> None:
    path = written(tmp_path, {"data": [{"image": [1, 2, 3], "tokens": [2**63 - 1, -(2**63)]}]})
    assert load_samples(path, model, name="t").samples[0].inputs["tokens"].tolist() == [[2**63 - 1, -(2**63)]]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"tokens": [1, 2]}, "'image', sample 0: this input is missing"),
        (
            {"image": [1, 2, 3], "tokens": [1, 2.5]},
            "'tokens', sample 0: expected INT64, got 2.5, which is not an integer",
        ),
        ({"image": [1, 2, 3], "tokens": [1, 2**63]}, "outside -9223372036854775808"),
        ({"image": [1, 2, "x"], "tokens": [1, 2]}, "expected FP32, got 'x'"),
        ({"image": [1, 2, float("nan")], "tokens": [1, 2]}, "expected FP32, got NaN"),
        ({"image": [1, 2, 1e39], "tokens": [1, 2]}, "outside ±"),
        ({"image": [1, 2, True], "tokens": [1, 2]}, "expected FP32, got True"),
        ({"image": [1, 2, 3, 4], "tokens": [1, 2]}, "4 values do not tell the free dimensions"),
        ({"image": [1, 2, 3], "tokens": [1, 2, 3]}, r"shape \[2\] holds 2 values, got 3"),
        ({"image": {"content": [1, 2, 3], "shape": [3, 2]}, "tokens": [1, 2]}, "holds 6 values, got 3"),
        ({"image": {"content": [1, 2, 3], "shape": 3}, "tokens": [1, 2]}, "is not a list of sizes"),
        ({"image": {"b64": "!!", "shape": [3, 1]}, "tokens": [1, 2]}, "is not base64"),
        ({"image": {"b64": "AAAA", "shape": [3, 1]}, "tokens": [1, 2]}, "3 bytes are not whole FP32 values"),
        ({"image": {"shape": [3, 1]}, "tokens": [1, 2]}, 'expected "content" or "b64"'),
        ({"image": [1, 2, 3], "tokens": [1, 2], "x": [1]}, "'x', sample 0: the model has no input of this name"),
        (7, r"data\[0\]: expected an object of tensors"),
    ],
)
def test_a_wrong_step_names_tensor_and_sample(tmp_path: Path, model: Model, step: Any, message: str) -> None:
    path = written(tmp_path, {"data": [step]})
    with pytest.raises(InputError, match=message) as caught:
        load_samples(path, model, name="t")
    assert str(path) in caught.value.message


def test_outputs_for_every_step_or_none(tmp_path: Path, model: Model) -> None:
    step = {"image": [1, 2, 3], "tokens": [1, 2]}
    document = {"data": [step, step], "validation_data": [{"scores": [0, 1, 2, 3]}]}
    with pytest.raises(InputError, match=r"expected as many entries as in data \(2\), got 1"):
        load_samples(written(tmp_path, document), model, name="t")
