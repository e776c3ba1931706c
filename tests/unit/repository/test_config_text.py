from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from config_corpus import CLASSIFIER, CORPUS, PLAN, PYTHON

from optimizer.errors import InputError
from optimizer.repository.config_text import config_diff, edit_config, set_name, without_name
from optimizer.repository.text_tree import read_tree
from optimizer.triton.protobuf import parse_config


def changed(text: str, change: Callable[[Any], object]) -> str:
    target = parse_config(text)
    change(target)
    edited = edit_config(text, target)
    assert parse_config(edited) == target
    return edited


def lines_changed(old: str, new: str) -> tuple[list[str], list[str]]:
    """Lines that went and lines that came."""
    lines = config_diff(old, new).splitlines()[2:]
    return [line[1:] for line in lines if line[0] == "-"], [line[1:] for line in lines if line[0] == "+"]


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_a_config_that_means_it_already_stays_as_it_is(name: str) -> None:
    assert edit_config(CORPUS[name], parse_config(CORPUS[name])) == CORPUS[name]


def test_a_value_changes_and_its_comment_stays() -> None:
    edited = changed(CLASSIFIER, lambda config: setattr(config, "platform", "tensorrt_plan"))
    assert lines_changed(CLASSIFIER, edited) == (
        ['platform: "onnxruntime_onnx"   # exported with opset 17'],
        ['platform: "tensorrt_plan"   # exported with opset 17'],
    )


def test_a_nested_value_in_a_list_changes_alone() -> None:
    edited = changed(CLASSIFIER, lambda config: setattr(config.instance_group[0], "count", 4))
    assert lines_changed(CLASSIFIER, edited) == (["    count: 2"], ["    count: 4"])


def test_new_header_fields_stand_with_the_header_in_reading_order() -> None:
    def to_plan(config: Any) -> None:
        config.platform, config.backend, config.default_model_filename = "tensorrt_plan", "tensorrt", "model.plan"

    assert changed('name: "m"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\n', to_plan) == (
        'name: "m"\nplatform: "tensorrt_plan"\nbackend: "tensorrt"\n'
        'default_model_filename: "model.plan"\nmax_batch_size: 8\n'
    )


def test_windows_line_ends_and_a_missing_last_one_are_kept() -> None:
    assert changed('backend: "x"\r\n# end', lambda config: setattr(config, "max_batch_size", 4)) == (
        'backend: "x"\r\nmax_batch_size: 4\r\n# end'
    )
    assert changed('backend: "x"', lambda config: setattr(config, "max_batch_size", 4)) == (
        'backend: "x"\nmax_batch_size: 4'
    )


def test_a_line_that_is_replaced_keeps_the_line_breaks_around_it() -> None:
    def other_key(config: Any) -> None:
        del config.metric_tags["a"]
        config.metric_tags["b"] = "2"

    text = 'backend: "x"\r\nmax_batch_size: 1\nmetric_tags { key: "a" value: "1" }\r\nruntime: "r"\n'
    edited = changed(text, other_key)
    assert edited.startswith('backend: "x"\r\nmax_batch_size: 1\nmetric_tags {')
    assert edited.endswith('}\r\nruntime: "r"\n')


def test_a_deleted_field_takes_its_lines_and_leaves_comments() -> None:
    text = 'backend: "x"\n# on batching\ndynamic_batching {\n  preserve_ordering: true\n}\nmax_batch_size: 4\n'
    assert changed(text, lambda config: config.ClearField("dynamic_batching")) == (
        'backend: "x"\n# on batching\nmax_batch_size: 4\n'
    )
    text = 'backend: "x"\nruntime: "model.py"  # set by hand\nmax_batch_size: 4\n'
    assert changed(text, lambda config: config.ClearField("runtime")) == (
        'backend: "x"\n# set by hand\nmax_batch_size: 4\n'
    )


def test_the_first_line_goes_without_a_trace() -> None:
    assert without_name('name: "m"\nbackend: "x"\n') == 'backend: "x"\n'
    assert without_name('name: "m"\r\nbackend: "x"') == 'backend: "x"'
    assert without_name('name: "m"') == ""


def test_an_empty_message_opens_up() -> None:
    def batch(config: Any) -> None:
        config.dynamic_batching.preferred_batch_size.extend([4, 8])
        config.dynamic_batching.max_queue_delay_microseconds = 100

    expected = "dynamic_batching {\n  preferred_batch_size: [4, 8]\n  max_queue_delay_microseconds: 100\n}\n"
    for text in ("dynamic_batching { }\n", "dynamic_batching {}\n", "dynamic_batching {\n}\n"):
        assert changed(f"max_batch_size: 8\n{text}", batch) == f"max_batch_size: 8\n{expected}"
    assert changed("max_batch_size: 8 dynamic_batching < >", batch) == (
        "max_batch_size: 8 dynamic_batching < preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100 >"
    )


def test_indentation_and_colons_follow_the_file() -> None:
    text = 'backend : "x"\noptimization {\n\tgraph {\n\t\tlevel : 1\n\t}\n}\n'
    edited = changed(
        text, lambda config: config.version_policy.latest.SetInParent() or setattr(config, "max_batch_size", 2)
    )
    assert edited == text + "version_policy {\n\tlatest { }\n}\nmax_batch_size : 2\n"


def test_list_elements_come_and_go_with_their_commas() -> None:
    def preferred(text: str, values: list[int]) -> str:
        def change(config: Any) -> None:
            config.dynamic_batching.ClearField("preferred_batch_size")
            config.dynamic_batching.SetInParent()
            config.dynamic_batching.preferred_batch_size.extend(values)

        return changed(f"max_batch_size: 64 dynamic_batching {{ {text} }}", change)[38:-2]

    assert preferred("preferred_batch_size: [ 4, 8 ]", [4, 8, 16]) == "preferred_batch_size: [ 4, 8, 16 ]"
    assert preferred("preferred_batch_size: [ 4, 8, 16 ]", [4, 16]) == "preferred_batch_size: [ 4, 16 ]"
    assert preferred("preferred_batch_size: [ 4, 8, 16 ]", [16]) == "preferred_batch_size: [ 16 ]"
    assert preferred("preferred_batch_size: [ 8 ]", [4, 8]) == "preferred_batch_size: [ 4, 8 ]"
    assert preferred("preferred_batch_size: [ 4 ]", [32]) == "preferred_batch_size: [ 32 ]"
    assert preferred("preferred_batch_size: 4 preferred_batch_size: 8", [4, 8, 9]) == (
        "preferred_batch_size: 4 preferred_batch_size: 8 preferred_batch_size: [9]"
    )
    assert preferred("preferred_batch_size: [ 4 ] preferred_batch_size: [ 8, 9 ]", [8, 9]) == (
        "preferred_batch_size: [ 8, 9 ]"
    )
    assert preferred("preferred_batch_size: [ 4, # four\n 8 # eight\n ]", [4]) == (
        "preferred_batch_size: [ 4 # four\n  # eight\n ]"
    )
    assert preferred("preferred_batch_size: [ ]", [4, 8]) == "preferred_batch_size: [ 4, 8 ]"


def test_map_entries_are_found_by_key() -> None:
    def change(config: Any) -> None:
        config.cc_model_filenames["9.0"] = "new.plan"
        del config.cc_model_filenames["8.6"]
        config.cc_model_filenames["10.0"] = "blackwell.plan"

    before = (
        'cc_model_filenames { key: "9.0" value: "hopper.plan" }\n'
        'cc_model_filenames { key: "8.6" value: "ampere.plan" }\n'
    )
    after = (
        'cc_model_filenames { key: "9.0" value: "new.plan" }\n'
        'cc_model_filenames {\n  key: "10.0"\n  value: "blackwell.plan"\n}\n'
    )
    assert before in PLAN
    assert changed(PLAN, change) == PLAN.replace(before, after)


def test_the_last_definition_of_a_key_counts() -> None:
    text = 'metric_tags { key: "a" value: "1" }\nmetric_tags { key: "a" value: "2" }\n'
    assert changed(text, lambda config: config.metric_tags.update({"a": "3"})) == (
        'metric_tags { key: "a" value: "1" }\nmetric_tags { key: "a" value: "3" }\n'
    )
    assert changed(text, lambda config: config.metric_tags.pop("a")) == ""


def test_quotes_and_adjacent_strings_of_other_fields_stay() -> None:
    assert "'it\\'s'" in changed("name: 'm'", lambda config: setattr(config, "name", "it's"))
    edited = changed(PYTHON, lambda config: config.parameters["EXECUTION_ENV_PATH"].ClearField("string_value"))
    assert edited == PYTHON.replace('{string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz"}', "{}")


def test_a_number_that_becomes_its_default_keeps_its_line() -> None:
    text = "max_batch_size: 8  # see the wiki\n"
    assert changed(text, lambda config: setattr(config, "max_batch_size", 0)) == "max_batch_size: 0  # see the wiki\n"


def test_a_renamed_element_is_told_by_its_name() -> None:
    """Deleting the first input must not turn it into the second one."""
    text = 'input [ {\n  name: "a" # one\n  dims: [ 1 ]\n}, {\n  name: "b" # two\n  dims: [ 2 ]\n} ]\n'

    def change(config: Any) -> None:
        del config.input[0]
        config.input[0].dims[0] = 3

    assert changed(text, change) == 'input [ {\n  name: "b" # two\n  dims: [ 3 ]\n} ]\n'


def test_one_scheduler_replaces_another() -> None:
    text = 'backend: "x"\ndynamic_batching { }\nmax_batch_size: 4\n'
    edited = changed(text, lambda config: config.sequence_batching.direct.SetInParent())
    assert edited == 'backend: "x"\nmax_batch_size: 4\nsequence_batching {\n  direct { }\n}\n'


def test_names_are_set_and_taken_away() -> None:
    assert set_name('name: "a"  # ours\n', "b") == 'name: "b"  # ours\n'
    assert parse_config(set_name('backend: "x"\n', "b")).name == "b"
    assert without_name(set_name('backend: "x"\n', "b")) == 'backend: "x"\n'


def test_a_diff_shows_what_a_terminal_would_hide() -> None:
    assert config_diff("a\n", "a\n") == ""
    assert config_diff("a\r\n", "b") == (
        "--- config.pbtxt\n+++ config.pbtxt (new)\n@@ -1 +1 @@\n-a\\r\n+b\n\\ No newline at end of file\n"
    )


def test_a_config_that_does_not_parse_names_line_and_column() -> None:
    with pytest.raises(InputError) as caught:
        edit_config('name: "a"\nmax_batchsize: 3\n', parse_config(""), where="repo/m/config.pbtxt")
    assert caught.value.where == "repo/m/config.pbtxt:2:1"
    assert caught.value.remedy == "did you mean 'max_batch_size'?"
    with pytest.raises(InputError) as caught:
        parse_config('input { name: "x"\n  dtype: TYPE_FP32 }')
    assert caught.value.where == "config.pbtxt:2:3"
    assert "data_type" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("text", "where"),
    [("\ufeffmax_batch_size: 1\n", "config.pbtxt:1:1"), ('name: "m"\nmax_batch_size:\u00a01\n', "config.pbtxt:2:16")],
)
def test_what_only_the_server_refuses_is_refused(text: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        edit_config(text, parse_config("max_batch_size: 2"))
    assert caught.value.where == where


def test_the_tree_covers_brackets_separators_and_adjacent_strings() -> None:
    text = "a: 'x' # c\n 'y';b [1, 2], c < d: -1 >"
    tree = read_tree(text)
    a, b, c = tree.fields
    assert text[a.values[0].start : a.values[0].end] == "'x' # c\n 'y'"
    assert (a.separator, b.separator, c.separator) == (";", ",", "")
    assert [text[value.start : value.end] for value in b.values] == ["1", "2"]
    assert text[c.values[0].start : c.values[0].end] == "< d: -1 >"
