"""Which versions are served before, between and after a write-back, as version policies of the config.

Pure: models and messages in, messages out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optimizer.errors import WriteBackRefused
from optimizer.records.model import Model
from optimizer.repository.versions import VersionScan

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig


@dataclass(frozen=True)
class FinalPolicy:
    config: ModelConfig
    served: tuple[int, ...]
    """Versions that a server reads once the config is live, the new one included."""
    sentence: str


def served_numbers(model: Model) -> tuple[int, ...]:
    return tuple(sorted(version.number for version in model.versions if version.served))


def next_version(scan: VersionScan, config: ModelConfig, known: tuple[int, ...] = ()) -> int:
    """Higher than every number that a directory, the policy or (``known``) a server has, served or not: a number is
    never given twice while anybody may still hold the other one."""
    numbers = [version.number for version in scan.versions]
    numbers += [int(name) for name, _ in scan.ignored if name.isdigit()]
    numbers += list(config.version_policy.specific.versions)
    return max([0, *numbers, *known]) + 1


def pinned(effective: ModelConfig, model: Model) -> ModelConfig:
    """What is there, complete, serving exactly the versions that it serves now, whatever directory comes or goes."""
    config = type(effective)()
    config.CopyFrom(effective)
    specific = list(config.version_policy.specific.versions)
    if not specific or not set(specific) <= {version.number for version in model.versions}:
        config.version_policy.Clear()
        config.version_policy.specific.versions.extend(served_numbers(model))
    return config


def final(
    effective: ModelConfig, target: ModelConfig, model: Model, number: int, *, replace_served_versions: bool
) -> FinalPolicy:
    """``target`` under a policy that serves ``number``, and what is served today wherever more than the latest is.

    Raises :class:`WriteBackRefused` where versions that ``all``, ``specific`` or ``latest(n > 1)`` serve today would
    go, since one config cannot load both: the user chooses with ``replace_served_versions``.
    """
    config = type(target)()
    config.CopyFrom(target)
    today = served_numbers(model)
    choice = model.version_policy
    if choice == "latest(1)":
        return FinalPolicy(
            config, (number,), f"version {number} replaces version {_listed(today)}, which stays on disk"
        )
    changed = [
        f"{name} {getattr(effective, name)!r} -> {getattr(target, name)!r}"
        for name in ("platform", "backend", "default_model_filename")
        if getattr(effective, name) != getattr(target, name)
    ]
    if changed:
        if not replace_served_versions:
            raise WriteBackRefused(
                f"version {_listed(today)} would no longer be served: the policy {choice} serves more than the latest, "
                f"and one config cannot load both ({', '.join(changed)})",
                where=model.config_path or model.directory,
                field="version_policy",
                remedy="accept that with --replace-served-versions, or choose a winner of the same backend",
            )
        config.version_policy.Clear()
        config.version_policy.specific.versions.append(number)
        return FinalPolicy(config, (number,), f"version {number} alone is served; {_listed(today)} stay on disk")
    if choice.startswith("specific"):
        config.version_policy.specific.versions.append(number)
    elif choice.startswith("latest"):
        config.version_policy.latest.num_versions = max(config.version_policy.latest.num_versions, len(today) + 1)
    return FinalPolicy(
        config,
        (*today, number),
        f"version {number} is served beside {_listed(today)}, and answers requests that name none",
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) or "none"
