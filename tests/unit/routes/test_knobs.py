"""The knob database: the published table, TensorRT's JSON, and files that are neither."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.errors import InputError
from optimizer.records.route import KnobClass, Layer
from optimizer.routes.knobs import classify, load_knobs, parse_json, parse_table, published_table, searchable

DOCUMENT = {
    "tuner_version": "2.19.45",
    "tuner_options": [
        {"option": "-a:b", "allowed_values": "-a:b=[on|off]", "default_value": "on", "help": "Fuses a with b."},
        {"option": "-n", "allowed_values": "-n=int", "default_value": "3", "help": ""},
        {"option": "-m", "allowed_values": "-m=[1|2|...]", "default_value": "0", "help": ""},
        {"option": "-level", "allowed_values": "-level=[0|1|2]", "default_value": "1"},
    ],
}


def test_published_table_holds_the_209_knobs_of_tensorrt_11_1() -> None:
    table = published_table()
    shapes = Counter(
        (knob.values, knob.default) if knob.values == ("on", "off") else len(knob.values) for knob in table
    )
    assert len(table) == 209
    assert shapes[("on", "off"), "on"] == 146
    assert shapes[("on", "off"), "off"] == 42
    assert shapes[0] == 14
    assert shapes[3] + shapes[4] == 7
    assert table.tuner_version == "2.19.45"
    assert "not a TensorRT installed here" in table.note
    assert {knob.layer for knob in table} == {Layer.COMPILER}


def test_json_of_tensorrt() -> None:
    table = parse_json(json.dumps(DOCUMENT))
    assert [(knob.name, knob.values, knob.default) for knob in table] == [
        ("a:b", ("on", "off"), "on"),
        ("n", (), "3"),
        ("m", (), "0"),
        ("level", ("0", "1", "2"), "1"),
    ]
    assert table.tuner_version == "2.19.45"
    assert table.knobs[0].help == "Fuses a with b."
    assert table.default_route_text == "-a:b=on -n=3 -m=0 -level=1"


def test_json_and_table_are_told_apart_by_content(tmp_path: Path) -> None:
    for name, text in (("a.txt", "\n " + json.dumps(DOCUMENT)), ("b.json", "-a:b\t[on|off]\ton\tFuses a with b.\n")):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert load_knobs(path).knobs[0].name == "a:b"
        assert load_knobs(path).knobs[0].help == "Fuses a with b."


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("-a\t[on|off]\n", "table:1", "2 columns"),
        ("# c\n\n-a\t[on|off]\ton\n-b\t[on|on]\ton\n", "table:4", "'on' twice"),
        ("-a\t[on|off]\ton\n-a\t[on|off]\ton\n", "table:2", "-a is there twice"),
        ("-a\t[on|off\ton\n", "table:1", "no list of values"),
        ("-a\t[ | ]\ton\n", "table:1", "is empty"),
        ("-a\t\ton\n", "table:1", "no allowed values"),
        ("-a\t[on|off]\t\n", "table:1", "no default"),
        ("-a b\t[on|off]\ton\n", "table:1", "not an option's name"),
        ("# nothing\n", "table", "no knobs"),
    ],
)
def test_bad_table_names_the_line(text: str, where: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        parse_table(text)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("text", "address", "says"),
    [
        ('{"tuner_options": [\n  {]}', "all_build_routes:2:4", "not valid JSON"),
        ("{}", "tuner_options", "no list of options"),
        ("[]", "tuner_options", "no list of options"),
        ('{"tuner_options": [3]}', "tuner_options[0]", "not an object"),
        (
            '{"tuner_options": [{"option": "-a", "allowed_values": "-a=[x|y]"}]}',
            "tuner_options[0] (-a)",
            "default_value",
        ),
        ('{"tuner_options": [{"allowed_values": "-a=[x|y]"}]}', "tuner_options[0]", "option is missing"),
        ('{"tuner_options": []}', "all_build_routes", "no knobs"),
        ("", "all_build_routes", "no build-route tuner"),
        ('{"tuner_options": ' + "[" * 100_000, "all_build_routes", "nested"),
    ],
)
def test_bad_json_names_the_place(text: str, address: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        parse_json(text)
    assert address in (caught.value.where, caught.value.field)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"-a\t\xff\xfe")
    for path, says in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (tmp_path / "binary", "byte 3")):
        with pytest.raises(InputError, match=says) as caught:
            load_knobs(path)
        assert caught.value.where == str(path)


options = st.fixed_dictionaries(
    {},
    optional={
        "option": st.sampled_from(["-a", "a", "", "- b", "-a=b"]) | st.none(),
        "allowed_values": st.text(alphabet="-a=[]|on.", max_size=8) | st.integers(),
        "default_value": st.text(alphabet="on[|", max_size=3),
    },
)
documents = st.lists(options | st.none(), max_size=3).map(lambda value: json.dumps({"tuner_options": value}))


@given(st.text(max_size=40) | documents | st.text(alphabet="-a\t[on|off]\n#", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_json, parse_table):
        try:
            table = parse(text)
        except InputError:
            continue
        assert len(table)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slice_elim_copy:ignore_io_check", KnobClass.UNSAFE),
        ("slice_elim_copy", KnobClass.SAFE),
        ("mha_fusion:v2:causal_mask", KnobClass.UNSAFE),
        ("mha_fusion:v2:skip_causal", KnobClass.UNSAFE),
        ("kgen:lower_gelu_erf", KnobClass.UNSAFE),
        ("mha_fusion:v2:allow_imprecise_skipping", KnobClass.UNSAFE),
        ("cask:fp16_acc", KnobClass.NUMERIC),
        ("mha_fusion:fp32_acc", KnobClass.NUMERIC),
        ("mha_fusion:v2:bmm1_acc", KnobClass.NUMERIC),
        ("rewrite_fp_div_for_constant", KnobClass.NUMERIC),
        ("quantize_ppg:reduce", KnobClass.NUMERIC),
        ("match_gelu", KnobClass.SAFE),
        ("kgen:tiling", KnobClass.SAFE),
    ],
)
def test_class_by_name(name: str, expected: KnobClass) -> None:
    assert classify(name) is expected


def test_searchable_leaves_out_what_breaks_results_unless_named() -> None:
    table = published_table()
    classes = {knob.knob_class for knob in searchable(table)}
    assert classes == {KnobClass.SAFE, KnobClass.NUMERIC}
    assert {knob.knob_class for knob in searchable(table, numeric=False)} == {KnobClass.SAFE}
    named = searchable(table, named=["kgen:lower_gelu"], numeric=False)
    assert [knob.name for knob in named if knob.knob_class is not KnobClass.SAFE] == ["kgen:lower_gelu"]
    assert all(knob.bounded for knob in searchable(table))
