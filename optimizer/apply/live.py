"""A server that runs on the repository: may it be told to load, did it load, does it answer right, with which version.

The server's word for success is not enough: an explicit load that finds nothing newer answers 200 and does nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from optimizer.accuracy.validator import validate
from optimizer.errors import WriteBackRefused
from optimizer.records.parity import Tolerance
from optimizer.records.samples import SampleSet
from optimizer.stand import answers_of
from optimizer.triton.client import TritonClient, TritonError


def check_explicit(url: str) -> None:
    """Raises :class:`WriteBackRefused` where the server cannot be reached, or does not take loads on request.

    Asked with the load of a model that does not exist: only the text of the refusal tells the modes apart.
    """
    with TritonClient(url) as client:
        if not client.wait_live(3.0):
            raise WriteBackRefused(
                "no Triton server answers", where=url, field="--server-url", remedy="check the address"
            )
        try:
            client.load(f"no-such-model-{secrets.token_hex(4)}", timeout_s=10.0)
        except TritonError as error:
            if "explicit model load" in error.problem or "polling is enabled" in error.problem:
                raise WriteBackRefused(
                    f"the server does not take loads on request ({error.problem})",
                    where=url,
                    field="--server-url",
                    remedy="start it with --model-control-mode=explicit: one that polls may read a model half written",
                ) from None
            if error.status in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"):
                raise WriteBackRefused(
                    f"the server cannot be asked: {error.problem}",
                    where=url,
                    remedy="give the gRPC host:port of a Triton server that is ready",
                ) from None


def known_versions(url: str, model: str) -> tuple[int, ...]:
    """Versions that the server holds in any state but unavailable."""
    with TritonClient(url) as client:
        rows = client.repository_index()
    return tuple(int(row[1]) for row in rows if row[0] == model and row[1].isdigit() and row[2] != "UNAVAILABLE")


def ready_now(url: str, model: str) -> set[int]:
    """Raises :class:`WriteBackRefused` where the server does not say."""
    try:
        with TritonClient(url) as client:
            return ready_versions(client, model)
    except TritonError as error:
        raise WriteBackRefused(
            f"the server cannot be asked: {error.problem}",
            where=url,
            remedy="give the gRPC host:port of a Triton server that is ready",
        ) from None


def ready_versions(client: TritonClient, model: str) -> set[int]:
    return {int(row[1]) for row in client.repository_index() if row[0] == model and row[1] and row[2] == "READY"}


def load_and_verify(
    url: str,
    model: str,
    served: Sequence[int],
    samples: SampleSet,
    tolerances: Sequence[Tolerance],
    datatypes: Mapping[str, str],
    output_datatypes: Mapping[str, str],
) -> list[str]:
    """Loads, then looks: the versions of ``served`` are READY, requests that name no version reach the
    highest, and its answers are within tolerance. Lines for people.

    Raises :class:`WriteBackRefused` for anything else.
    """
    newest = max(served)
    with TritonClient(url) as client:
        try:
            client.load(model)
            ready = ready_versions(client, model)
            if not set(served) <= ready:
                raise _not_verified(
                    url, f"of versions {_listed(served)} only {_listed(sorted(ready)) or 'none'} are ready"
                )
            before = _counts(client, model)
            parity = validate(
                f"{model}:{newest}",
                samples,
                answers_of(client, model, samples, datatypes),
                tolerances,
                output_datatypes,
            )
            if not parity.passed:
                raise _not_verified(url, f"its answers are not those expected: {parity.reason}")
            answered = {version: count - before.get(version, 0) for version, count in _counts(client, model).items()}
        except TritonError as error:
            raise _not_verified(url, error.problem) from None
    rows = sum(sample.batch for sample in samples.samples)
    if answered.get(newest, 0) < rows:
        raise _not_verified(url, f"version {newest} answered {answered.get(newest, 0)} of {rows} rows: others did")
    return [f"{url}: version {newest} is loaded, answered {len(samples)} samples right, and counts {rows} inferences"]


def load_again(url: str, model: str) -> str:
    """Has the server take what is on disk now. A line for people; never raises."""
    try:
        with TritonClient(url) as client:
            client.load(model)
            ready = sorted(ready_versions(client, model))
        return f"{url}: {model} is loaded again, version {_listed(ready)} is ready"
    except TritonError as error:
        return f"{url}: {model} could not be loaded again ({error.problem}): load it by hand"


def _counts(client: TritonClient, model: str) -> dict[int, int]:
    return {int(row.version): int(row.inference_count) for row in client.statistics(model).rows}


def _not_verified(url: str, what: str) -> WriteBackRefused:
    return WriteBackRefused(
        f"the server did not take the new version as it should: {what}",
        where=url,
        remedy="the files are as they were; look at the server's log",
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
