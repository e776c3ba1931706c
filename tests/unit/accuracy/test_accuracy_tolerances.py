"""The grammar of tolerances, and what it refuses."""

from __future__ import annotations

import pytest

from optimizer.accuracy.tolerances import check_tolerances, parse_tolerance, parse_tolerances, tolerances_for
from optimizer.errors import InputError
from optimizer.records.model import TensorSpec
from optimizer.records.parity import Tolerance


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lInf<=1e-3", Tolerance("lInf", 1e-3)),
        ("*:l2<=0", Tolerance("l2", 0.0)),
        (" probabilities:cos<=1e-4 ", Tolerance("cos", 1e-4, "probabilities")),
        ("save_infer_model/scale_0.tmp_1:rel_l2<=.5", Tolerance("rel_l2", 0.5, "save_infer_model/scale_0.tmp_1")),
        ("a:b:c:top5(axis=1)>=0.9", Tolerance("top5", 0.1, "a:b:c", {"axis": 1.0})),
        ("top1>=0.995", Tolerance("top1", 0.005)),
        ("top1>=0.999@0.95", Tolerance("top1", 0.001, "*", {"confidence": 0.95})),
        ("top1(tag=hard)>=0.98", Tolerance("top1", 0.02, "*", {"tag": "hard"})),
        ("psnr>=40", Tolerance("psnr", -40.0)),
        ("cos>=0.999", Tolerance("cos", 0.001)),
        ("exact>=1", Tolerance("exact", 0.0)),
        ("l0(atol=1e-3,rtol=0)<=0.01", Tolerance("l0", 0.01, "*", {"atol": 1e-3, "rtol": 0.0})),
    ],
)
def test_reads_and_writes(text: str, expected: Tolerance) -> None:
    assert parse_tolerance(text) == expected
    assert parse_tolerance(expected.text) == expected


def test_a_python_function_with_an_output(tmp_path: object) -> None:
    path = f"{tmp_path}/f.py"
    with open(path, "w") as file:  # noqa: PTH123
        file.write("def g(a, r): return 0.0\n")
    for output in ("*", "out", "a:b"):
        text = f"{output}:python:{path}:g<=0.5"
        assert parse_tolerance(text) == Tolerance(f"python:{path}:g", 0.5, output)
    assert parse_tolerance(f"python:{path}:g<=-2").threshold == -2.0


def test_a_floor_of_nine_in_ten_admits_one_in_ten() -> None:
    # 1 - 0.9 is 0.09999999999999998 in binary, and one miss in ten would exceed it.
    for floor in ("0.9", "0.99", "0.7", "0.3", "0.999"):
        parts = len(floor) - 2
        assert parse_tolerance(f"top1>={floor}").threshold == (10**parts - int(floor[2:])) / 10**parts


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lInf<1e-3", "cannot read"),
        ("lInf", "cannot read"),
        ("lInf<=", "cannot read"),
        ("lInf<=nan", "cannot read"),
        ("lInf<=1e999", "not a finite number"),
        ("linf<=1", "no metric is called 'linf'"),
        ("lInf<=-1", "never negative"),
        ("lInf>=1", "has no floor"),
        ("top1>=99.5", "counts a fraction"),
        ("top1<=1", "counts a fraction"),
        ("top0>=0.9", "no metric is called 'top0'"),
        ("top1(axes=1)>=0.9", "'axes=1' in"),
        ("top1(axis=x)>=0.9", "not a number"),
        ("top1(axis=0.5)>=0.9", "whole number"),
        ("lInf<=1e-3@0.95", "does not count independent rows"),
        ("argmax>=0.9@0.95", "does not count independent rows"),
        ("top1>=0.9@95", "expected a confidence"),
        ("top1>=1@0.95", "no number of samples"),
    ],
)
def test_refuses(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_tolerance(text)


def test_two_thresholds_for_one_thing_are_a_mistake() -> None:
    with pytest.raises(InputError, match=r"'lInf<=2' repeats 'lInf<=1'"):
        parse_tolerances(["lInf<=1", "lInf<=2"])
    assert len(parse_tolerances(["top1>=0.9", "top1(tag=hard)>=0.8", "y:top1>=0.9"])) == 3


def test_an_outputs_own_tolerances_replace_those_for_every_output() -> None:
    everything, own, tag = parse_tolerances(["lInf<=1", "y:cos<=1", "z:cos(tag=hard)<=1"])
    tolerances = (everything, own, tag)
    assert tolerances_for(tolerances, "x") == (everything,)
    assert tolerances_for(tolerances, "y") == (own,)
    # A floor on a tag leaves the other samples unchecked, so the general one stays.
    assert tolerances_for(tolerances, "z") == (tag, everything)


def test_tolerances_fit_the_outputs() -> None:
    outputs = [TensorSpec("y", "FP32", (4,)), TensorSpec("text", "BYTES", (1,))]
    check_tolerances((), outputs)
    check_tolerances(parse_tolerances(["lInf<=1"]), outputs)
    check_tolerances(parse_tolerances(["y:lInf<=1", "text:exact>=1"]), outputs)
    with pytest.raises(InputError, match="no output 'x'"):
        check_tolerances(parse_tolerances(["lInf<=1", "x:lInf<=1"]), outputs)
    with pytest.raises(InputError, match="output 'text' has no tolerance"):
        check_tolerances(parse_tolerances(["y:lInf<=1"]), outputs)
    with pytest.raises(InputError, match="output 'y' has no tolerance"):
        check_tolerances(parse_tolerances(["text:exact>=1", "top1(tag=hard)>=0.9"]), outputs)
    with pytest.raises(InputError, match="'text' is BYTES, lInf needs numbers"):
        check_tolerances(parse_tolerances(["lInf<=1", "text:lInf<=1"]), outputs)
