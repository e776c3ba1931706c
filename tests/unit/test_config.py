import math
from pathlib import Path

import pytest
import yaml

from optimizer.config import Settings, load_settings, parse_settings
from optimizer.errors import InputError
from optimizer.flags import flag_of, settings_fields


def test_an_empty_document_is_all_defaults() -> None:
    assert parse_settings({}) == Settings()


EMPTY_SECTIONS = "load:\ninputs:\njudge:  # as they are\nper_model:\n"


def test_an_empty_section_is_all_defaults(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(EMPTY_SECTIONS)
    assert load_settings(file) == Settings()
    assert load_settings(file, {"load.duration_s": 3}).load.duration_s == 3
    assert load_settings(file, {"per_model": ["m:load.duration_s=3"]}).of_model("m").load.duration_s == 3


def test_an_empty_section_of_one_model_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("load: {duration_s: 3}\nper_model:\n  a:\n  b: {load: }\n")
    settings = load_settings(file)
    assert settings.of_model("a").load.duration_s == 3
    assert settings.of_model("b").load.duration_s == 3


@pytest.mark.parametrize("document", [{"load": {"duration_s": None}}, {"models": None}, {"lod": None}])
def test_an_empty_value_is_no_section(document: dict[str, object]) -> None:
    with pytest.raises(InputError):
        parse_settings(document)


def test_a_typo_names_the_nearest_key() -> None:
    with pytest.raises(InputError, match=r"load\.concurency: unknown key\n.*did you mean `concurrency`"):
        parse_settings({"load": {"concurency": [4]}}, where="study.yaml")


def test_a_wrong_value_names_file_field_and_value() -> None:
    with pytest.raises(InputError) as caught:
        parse_settings({"load": {"duration_s": "soon"}}, where="study.yaml")
    assert caught.value.where == "study.yaml"
    assert caught.value.field == "load.duration_s"
    assert "'soon'" in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize(
    "document",
    [
        {"load": {"duration_s": math.inf}},
        {"load": {"warmup_s": math.inf}},
        {"budget": {"minutes": math.nan}},
        {"builder": {"memory_limit_gb": math.inf}},
        {"judge": {"p99_guard": math.inf}},
        {"inputs": {"seed": 2**63}},
        {"per_model": 3},
    ],
)
def test_numbers_that_are_none_are_refused(document: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError):
        load_settings(file)


def test_files_are_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "samples.npz").touch()
    monkeypatch.chdir(tmp_path)
    settings = parse_settings({"inputs": {"file": "samples.npz"}, "sandbox": {"python": "python3"}})
    assert settings.inputs.file == tmp_path / "samples.npz"
    assert settings.sandbox.python == Path("python3"), "a program on PATH stays one"


def test_an_arrival_without_its_rate_is_refused() -> None:
    with pytest.raises(InputError, match="rate_per_s is needed"):
        parse_settings({"load": {"arrival": "poisson"}})


def test_broken_yaml_names_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("load:\n  duration_s: [1\n")
    with pytest.raises(InputError, match=r"study\.yaml:\d+:\d+"):
        load_settings(file)


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text\n"])
def test_yaml_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match="key: value"):
        load_settings(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yaml"):
        load_settings(tmp_path / "absent.yaml")


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("inputs:\n  file: samples.npz\n")
    assert load_settings(tmp_path / "study.yaml").inputs.file == tmp_path / "samples.npz"


def test_flags_lie_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("load:\n  duration_s: 5\n  concurrency: [4]\n")
    settings = load_settings(tmp_path / "study.yaml", {"load.duration_s": "0.5"})
    assert settings.load.duration_s == 0.5
    assert settings.load.concurrency == [4]


def test_every_field_has_a_flag_of_its_own_and_a_description() -> None:
    fields = settings_fields()
    flags = [flag_of(name) for name in fields]
    assert len(set(flags)) == len(flags)
    assert all(field.description for field in fields.values())


def test_settings_of_one_model_lie_over_the_others(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "load: {concurrency: [4], duration_s: 1}\n"
        "per_model:\n"
        "  magika: {load: {concurrency: [16]}, inputs: {file: magika.npz}, tolerance: ['top1>=0.99']}\n"
    )
    settings = load_settings(tmp_path / "study.yaml")
    magika = settings.of_model("magika")
    assert (magika.load.concurrency, magika.load.duration_s) == ([16], 1)
    assert magika.inputs.file == tmp_path / "magika.npz"
    assert magika.tolerance == ["top1>=0.99"]
    assert settings.of_model("other") is settings


def test_settings_of_one_model_can_be_flags() -> None:
    flags = ["magika:load.concurrency=[16]", "magika:load.duration_s=2", "ocr:tolerance=['*:lInf<=0.1']"]
    settings = load_settings(None, {"per_model": flags})
    assert settings.of_model("magika").load.concurrency == [16]
    assert settings.of_model("magika").load.duration_s == 2
    assert settings.of_model("ocr").tolerance == ["*:lInf<=0.1"]


@pytest.mark.parametrize(
    ("per_model", "field"),
    [
        ({"m": {"load": {"concurency": [4]}}}, "load.concurency"),
        ({"m": {"sandbox": {"launcher": "docker"}}}, "per_model.m.sandbox"),
    ],
)
def test_wrong_settings_of_one_model_are_named(per_model: dict[str, dict[str, object]], field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_settings({"per_model": per_model}).of_model("m")
    assert caught.value.field == field


def test_a_flag_for_one_model_needs_its_three_parts() -> None:
    with pytest.raises(InputError, match="MODEL:KEY=VALUE"):
        load_settings(None, {"per_model": ["magika=3"]})
