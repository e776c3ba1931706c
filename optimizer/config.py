"""A study's settings: one YAML file, validated before anything starts. Every field has a flag; unknown keys are errors.

The models below are the reference: descriptions are what ``--help`` and the docs print.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from optimizer.errors import InputError

Positive = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        """A study is resumed from anywhere. A bare name may be a program on PATH, or a file here that is there."""
        if isinstance(value, Path) and (len(value.parts) > 1 or value.exists()):
            return value.absolute()
        return value


class Inputs(Section):
    """What is sent to the model, for tuning and for the final check."""

    file: Path | None = Field(None, description="Samples: .npz, a directory of .npz, or perf_analyzer's JSON.")
    directory: Path | None = Field(
        None, description="Samples of several models: DIRECTORY/MODEL.npz, MODEL.json, or MODEL/ with .npz files."
    )
    held_out_file: Path | None = Field(None, description="Samples for the final check; otherwise a part of `file`.")
    held_out_fraction: float = Field(0.3, gt=0, lt=1, description="Part of `file` that is kept for the final check.")
    calibration_file: Path | None = Field(None, description="Samples for calibration, disjoint from both sets.")
    synthetic_count: int = Field(64, ge=4, description="Number of random samples where no file is given.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of random samples, splits and arrival times.")
    shapes: list[str] = Field(
        default_factory=list,
        description="Dimensions of an input with free ones, without batch: x=3x48x320, or SMALLEST:LARGEST.",
    )
    int_ranges: list[str] = Field(default_factory=list, description="Values of an integer input: ids=0:30521.")
    reference: Literal["auto", "golden", "as-found", "onnxruntime-fp32"] = Field(
        "auto", description="Where expected outputs come from; auto: golden if the file has them, else as-found."
    )


class Load(Section):
    """The load of one measurement window."""

    arrival: Literal["closed", "poisson", "constant", "trace"] = Field("closed", description="Arrival pattern.")
    concurrency: list[Annotated[int, Field(ge=1, le=4096)]] = Field(
        [8], min_length=1, description="Requests in flight of a closed loop; candidates are ranked at the first."
    )
    rate_per_s: Positive | None = Field(None, description="Requests per second for poisson and constant arrivals.")
    trace: Path | None = Field(None, description="Trace file for trace arrivals.")
    duration_s: float = Field(2.0, ge=0.05, description="Length of a measurement window.")
    warmup_s: float = Field(2.0, ge=0, description="Limit of the warm-up of a freshly loaded model.")
    processes: int | None = Field(None, ge=1, le=64, description="Client processes; default: by cores.")
    transport: Literal["grpc", "http"] = Field("grpc", description="Protocol of the load.")
    shared_memory: bool = Field(False, description="Send tensors through system shared memory.")

    @model_validator(mode="after")
    def _complete(self) -> Load:
        if self.arrival in ("poisson", "constant") and self.rate_per_s is None:
            raise ValueError("rate_per_s is needed for poisson and constant arrivals")
        if self.arrival == "trace" and self.trace is None:
            raise ValueError("trace is needed for trace arrivals")
        return self


class Search(Section):
    """Which routes are tried."""

    strategy: Literal["auto", "race", "fast", "mixed", "full", "optuna"] = Field(
        "auto", description="auto: chosen by the size of the space and the budget, and explained."
    )
    routes: str | None = Field(None, description="Route expression: -knob=[a|b] varies, -knob=v pins.")
    knobs_from: Path | None = Field(None, description="Knob database (TensorRT's JSON or TSV) for compiler knobs.")
    layers: list[Literal["precision", "builder", "profile", "compiler", "serving"]] = Field(
        ["precision", "builder", "profile", "serving"], description="Layers whose default values are searched."
    )
    max_candidates: int = Field(200, ge=1, description="Upper limit of candidates from the default space.")
    hints: Path | None = Field(None, description="An earlier study: orders the candidates, never scores them.")


class Judge(Section):
    """What it takes to replace what is there."""

    objective: str = Field("throughput", description="throughput, p50/p90/p95/p99/mean latency, energy.")
    constraints: list[str] = Field(default_factory=list, description="Such as p99_ms<=20, memory_mb<=4000.")
    min_gain: float = Field(0.01, ge=0, lt=1, description="Smallest gain that is worth a change.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="One-sided confidence of the decision.")
    p99_guard: Annotated[float, Field(ge=1)] | Literal["off"] = Field(
        1.05, description="Largest tolerated ratio of p99 latencies; off: none."
    )
    finalists: int = Field(3, ge=1, le=10, description="Candidates that are measured again, fresh.")
    pairs: int | None = Field(None, ge=3, description="Confirmation pairs; default: from the measured noise.")
    max_pairs: int = Field(24, ge=3, description="Upper limit of confirmation pairs.")
    noise_pairs: int = Field(4, ge=3, description="A/A pairs of the reference that measure the noise.")

    @property
    def largest_p99_ratio(self) -> float | None:
        """``p99_guard`` as a number; ``None`` where it is off."""
        return None if self.p99_guard == "off" else self.p99_guard


class Budget(Section):
    """When to stop."""

    minutes: Positive | None = Field(None, description="Wall-clock limit of the study.")
    builds: int | None = Field(None, ge=1, description="Limit of engine builds.")
    gpu_hours: Positive | None = Field(None, description="Limit of the hours that a GPU is held.")
    load_per_s: Positive | None = Field(None, description="Production load in inferences/s, for the break-even.")
    gpu_price_per_hour: Positive | None = Field(None, description="Price of a GPU hour, for the break-even.")


class SandboxSettings(Section):
    """The server that belongs to the study."""

    launcher: Literal["auto", "embedded", "process", "docker", "remote"] = Field("auto", description="How it starts.")
    ready_timeout_s: Positive = Field(60.0, description="Limit until the server is ready.")
    load_timeout_s: Positive = Field(300.0, description="Limit until a model is loaded.")
    python: Path | None = Field(None, description="Interpreter of the python-based backends (embedded launcher).")
    image: str | None = Field(None, description="Image by tag or digest (docker launcher).")
    url: str | None = Field(None, description="gRPC host:port of a running server (remote launcher).")
    repository: Path | None = Field(None, description="That server's repository, reachable here (remote launcher).")
    memory_limit_gb: Positive | None = Field(None, description="Memory limit of the server.")
    options: list[str] = Field(
        default_factory=list, description="KEY=VALUE for the launcher alone, such as shm_size=2g or executable=PATH."
    )


class Builder(Section):
    """Engine builds."""

    family: Literal["auto", "tensorrt", "onnxruntime", "unchanged"] = Field(
        "auto", description="Engine family; unchanged: serving settings only."
    )
    onnx: Path | None = Field(None, description="ONNX source of a model that is only there as a plan.")
    python: Path | None = Field(None, description="Interpreter whose TensorRT builds.")
    module: str | None = Field(None, description="Python module of the builder: tensorrt or tensorrt_rtx.")
    image: str | None = Field(
        None, description="Image to build in; default: the docker sandbox's, if it can build; none: this machine."
    )
    version_compatible: bool = Field(
        False, description="Build TensorRT plans that newer releases of the same major version can open."
    )
    time_limit_s: Positive = Field(1800.0, description="Limit of one build.")
    memory_limit_gb: Positive | None = Field(None, description="Memory limit of one build.")
    save_all_engines: bool = Field(False, description="Keep the engines that lost.")


class Settings(Section):
    """The whole file."""

    models: list[str] = Field(default_factory=list, description="Models to tune; none: all that can be.")
    tolerance: list[str] = Field(
        default_factory=list, description="[OUTPUT:]METRIC<=LOSS or >=FLOOR; without one, no write-back."
    )
    suggest_tolerance: bool = Field(False, description="Only propose tolerances, from the reference's own noise.")
    config_name: str | None = Field(None, description="The server's --model-config-name.")
    gpu: str | None = Field(None, description="GPU by index or UUID.")
    accept_unserved_baseline: bool = Field(False, description="Write back though as-found could not be measured.")
    per_model: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Settings of single models, laid over the others: MODEL: {tolerance: [...]}. "
        "As a flag MODEL:KEY=VALUE, such as magika:load.concurrency=[16].",
    )
    inputs: Inputs = Field(default_factory=Inputs)
    load: Load = Field(default_factory=Load)
    search: Search = Field(default_factory=Search)
    judge: Judge = Field(default_factory=Judge)
    budget: Budget = Field(default_factory=Budget)
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    builder: Builder = Field(default_factory=Builder)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, given: Any) -> Any:
        """A section with nothing under it, which YAML reads as null, is all defaults. A null value is still an
        error."""
        if not isinstance(given, Mapping):
            return given
        return {key: value for key, value in given.items() if value is not None or not _is_section(key)}

    @field_validator("per_model", mode="before")
    @classmethod
    def _per_model(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            return {name: {} if changes is None else changes for name, changes in given.items()}
        return _from_flags(given) if isinstance(given, list) else given

    def of_model(self, name: str) -> Settings:
        """What holds for one model: ``per_model`` laid over the rest. Raises :class:`InputError`."""
        changes = self.per_model.get(name)
        if changes is None:
            return self
        shared = sorted(set(changes) & {"models", "per_model", "sandbox", "gpu", "config_name"})
        if shared:
            raise InputError(
                "is one for all models of a run",
                field=f"per_model.{name}.{shared[0]}",
                remedy=f"set {shared[0]} outside of per_model, or tune {name} in a run of its own",
            )
        document = self.model_dump(mode="json", exclude={"per_model"})
        return parse_settings(_laid_over(document, changes), where=f"per_model.{name}")


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        nested = merged.get(key)
        if isinstance(nested, Mapping):
            # An empty section, which YAML reads as null, changes nothing.
            value = nested if value is None else _laid_over(nested, value) if isinstance(value, Mapping) else value
        merged[key] = value
    return merged


def _from_flags(given: list[Any]) -> dict[str, dict[str, Any]]:
    """``MODEL:KEY=VALUE`` texts, with dotted keys and values in YAML, as the mapping of the file."""
    import yaml

    found: dict[str, dict[str, Any]] = {}
    for text in given:
        model, colon, rest = str(text).partition(":")
        dotted, equals, value = rest.partition("=")
        if not (model and colon and dotted and equals):
            raise ValueError(f"expected MODEL:KEY=VALUE, got {text!r}")
        section = found.setdefault(model, {})
        *parents, leaf = dotted.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = yaml.safe_load(value)
    return found


def load_settings(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Reads the YAML file (if any) and lays ``overrides`` over it (dotted keys such as ``load.duration_s``).

    Relative paths in the file are relative to the file. Raises :class:`InputError` naming file and field.
    """
    document: dict[str, Any] = {}
    if path is not None:
        document = _read_yaml(path)
    for dotted, value in (overrides or {}).items():
        section = document
        *parents, leaf = dotted.split(".")
        for parent in parents:
            nested = section.get(parent)
            if nested is None:
                nested = section[parent] = {}
            if not isinstance(nested, dict):
                raise InputError(
                    "must be a section", where=path, field=parent, remedy="write `key: value` lines below it"
                )
            section = nested
        section[leaf] = value
    return parse_settings(document, where=path)


def parse_settings(document: Mapping[str, Any], *, where: Path | str | None = None) -> Settings:
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        location = [str(part) for part in first["loc"]]
        if first["type"] == "extra_forbidden":
            known = _known_keys(location[:-1])
            near = difflib.get_close_matches(location[-1], known, n=1)
            remedy = f"did you mean `{near[0]}`?" if near else f"known keys here: {', '.join(known)}"
            raise InputError("unknown key", where=where, field=".".join(location), remedy=remedy) from None
        shown = repr(first.get("input"))
        raise InputError(
            f"{first['msg']} (got {shown[:80]})",
            where=where,
            field=".".join(location) or None,
            remedy=_description(location) or "correct the value",
        ) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=path, remedy="give a readable YAML file") from None
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        location = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InputError(
            getattr(error, "problem", None) or str(error), where=location, remedy="correct the YAML"
        ) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InputError("must hold `key: value` lines", where=path, remedy="see the settings reference")
    return _resolve_paths(document, path.parent.resolve())


_PATH_KEYS = {
    "inputs": ("file", "directory", "held_out_file", "calibration_file"),
    "load": ("trace",),
    "search": ("hints", "knobs_from"),
    "sandbox": ("repository", "python"),
    "builder": ("onnx", "python"),
}


def _resolve_paths(document: dict[str, Any], base: Path) -> dict[str, Any]:
    for section, keys in _PATH_KEYS.items():
        values = document.get(section)
        if isinstance(values, dict):
            for key in keys:
                if isinstance(values.get(key), str):
                    values[key] = str(base / values[key])
    per_model = document.get("per_model")
    for changes in per_model.values() if isinstance(per_model, dict) else ():
        if isinstance(changes, dict):
            _resolve_paths(changes, base)
    return document


def _field_model(location: list[str]) -> type[BaseModel] | None:
    model: type[BaseModel] = Settings
    for part in location:
        field = model.model_fields.get(part)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        model = field.annotation
    return model


def _is_section(key: str) -> bool:
    return key == "per_model" or _field_model([key]) is not None


def _known_keys(location: list[str]) -> list[str]:
    model = _field_model(location)
    return sorted(model.model_fields) if model else []


def _description(location: list[str]) -> str | None:
    names = [part for part in location if not part.isdigit()]
    model = _field_model(names[:-1]) if names else None
    field = model.model_fields.get(names[-1]) if model else None
    return field.description if field else None
