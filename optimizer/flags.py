"""Command-line flags made from the settings' models, so that every field of the file has one.

A flag is ``--FIELD``, or ``--SECTION-FIELD`` where two sections share a field's name; a few have a better-known name.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from optimizer.config import Settings

_NAMES = {
    "models": "--model",
    "inputs.file": "--inputs",
    "inputs.directory": "--inputs-directory",
    "inputs.held_out_file": "--held-out",
    "inputs.calibration_file": "--calibration",
    "inputs.shapes": "--shape",
    "inputs.int_ranges": "--int-range",
    "search.strategy": "--search",
    "sandbox.launcher": "--sandbox",
    "judge.constraints": "--constraint",
    "builder.python": "--builder-python",
    "builder.module": "--builder-module",
    "search.layers": "--layer",
    "sandbox.python": "--sandbox-python",
    "sandbox.url": "--sandbox-url",
    "sandbox.repository": "--sandbox-repository",
    "sandbox.image": "--image",
    "sandbox.options": "--sandbox-option",
    "builder.image": "--builder-image",
    "builder.time_limit_s": "--build-time-limit-s",
    "budget.minutes": "--budget-minutes",
    "budget.builds": "--budget-builds",
}


def settings_fields() -> dict[str, FieldInfo]:
    """Dotted name to field, in file order."""
    found: dict[str, FieldInfo] = {}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found |= {f"{name}.{inner}": info for inner, info in section.model_fields.items()}
        else:
            found[name] = field
    return found


def flag_of(dotted: str) -> str:
    if dotted in _NAMES:
        return _NAMES[dotted]
    leaf = dotted.rsplit(".", 1)[-1]
    shared = [name for name in settings_fields() if name.rsplit(".", 1)[-1] == leaf and name not in _NAMES]
    text = dotted.replace(".", "-") if len(shared) > 1 else leaf
    return "--" + text.replace("_", "-")


def with_settings_flags(*, only: tuple[str, ...] | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a typer command whose last parameter is ``overrides: dict[str, Any]``: that parameter becomes one flag
    a settings field (of the sections in ``only``, or all); the command gets the dotted names that were given."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        fields = {
            name: field
            for name, field in settings_fields().items()
            if only is None or name.split(".")[0] in only or name in only
        }
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "overrides"]
        taken = {parameter.name for parameter in own}
        extra = [_parameter(name, field) for name, field in fields.items() if name.replace(".", "__") not in taken]

        def wrapper(**given: Any) -> Any:
            overrides = {}
            for name in fields:
                value = given.pop(name.replace(".", "__"), None)
                if value not in (None, []):
                    overrides[name] = value
            return command(**given, overrides=overrides)

        wrapper.__name__ = command.__name__
        wrapper.__doc__ = command.__doc__
        wrapper.__signature__ = signature.replace(parameters=[*own, *extra])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *extra]}
        return wrapper

    return decorate


def _parameter(dotted: str, field: FieldInfo) -> inspect.Parameter:
    annotation = _bare(field.annotation)
    flag = flag_of(dotted)
    kind: Any = str | None
    metavar = _metavar(annotation)
    names = (flag,)
    if annotation is bool:
        kind, metavar = bool | None, None
        names = (f"{flag}/--no-{flag.removeprefix('--')}",)
    elif typing.get_origin(annotation) in (list, dict):
        kind = list[str] | None
    option = typer.Option(*names, metavar=metavar, help=field.description, rich_help_panel=_panel(dotted))
    return inspect.Parameter(
        dotted.replace(".", "__"), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _bare(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(annotation) if part is not type(None)]
        return _bare(inner[0])
    if typing.get_origin(annotation) is Annotated:
        return _bare(typing.get_args(annotation)[0])
    return annotation


def _metavar(annotation: Any) -> str | None:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return "[" + "|".join(map(str, typing.get_args(annotation))) + "]"
    if origin is list:
        return _metavar(_bare(typing.get_args(annotation)[0]))
    return {int: "N", float: "X", Path: "PATH"}.get(annotation, "TEXT")


def _panel(dotted: str) -> str:
    section = dotted.split(".")[0] if "." in dotted else "study"
    return f"Settings: {section}"
