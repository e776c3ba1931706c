"""Samples as request bodies, built once and sent many times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.records.samples import Sample
from optimizer.triton.client import build_request, to_wire


@dataclass(frozen=True)
class Bodies:
    """``payloads`` by sample: a serialized ModelInferRequest without a model name, or the body of an HTTP request whose
    first ``json_bytes`` bytes are its JSON part (0 for gRPC)."""

    payloads: tuple[bytes, ...]
    json_bytes: tuple[int, ...]


def grpc_bodies(samples: Sequence[Sample], datatypes: Mapping[str, str]) -> Bodies:
    return Bodies(tuple(build_request("", each.inputs, datatypes) for each in samples), (0,) * len(samples))


@dataclass(frozen=True)
class Part:
    """What a mixed load sends to one model."""

    model: str
    samples: Sequence[Sample]
    datatypes: Mapping[str, str]
    batched: bool = True
    """Whether the first dimension counts rows; where it does not, a request is one inference."""


def mixed_bodies(parts: Sequence[Part]) -> tuple[Bodies, tuple[tuple[str, Sample], ...]]:
    """Requests that hold their model's name, the models in turn, each as often as the others; and whose each one is.

    Every model's samples come as often as the longest set has samples, so that one round through all requests asks
    every model equally often.
    """
    longest = max(len(part.samples) for part in parts)
    requests = [(part, part.samples[turn % len(part.samples)]) for turn in range(longest) for part in parts]
    payloads = tuple(build_request(part.model, sample.inputs, part.datatypes) for part, sample in requests)
    return Bodies(payloads, (0,) * len(payloads)), tuple((part.model, sample) for part, sample in requests)


def http_bodies(samples: Sequence[Sample], datatypes: Mapping[str, str]) -> Bodies:
    payloads, lengths = [], []
    for sample in samples:
        tensors = {name: to_wire(array, datatypes[name]) for name, array in sample.inputs.items()}
        document = {
            "inputs": [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": datatypes[name],
                    "parameters": {"binary_data_size": len(tensors[name])},
                }
                for name, array in sample.inputs.items()
            ],
            "parameters": {"binary_data_output": True},
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        payloads.append(b"".join((text, *tensors.values())))
        lengths.append(len(text))
    return Bodies(tuple(payloads), tuple(lengths))


def shared_memory_bodies(
    samples: Sequence[Sample],
    datatypes: Mapping[str, str],
    offsets: Sequence[Mapping[str, tuple[int, int]]],
    region: str,
) -> Bodies:
    """``offsets`` holds (offset, bytes) of every input in the region, by sample."""
    from tritonclient.grpc import service_pb2

    payloads = []
    for sample, places in zip(samples, offsets, strict=True):
        request = service_pb2.ModelInferRequest()
        for name, array in sample.inputs.items():
            tensor = request.inputs.add(name=name, datatype=datatypes[name])
            tensor.shape.extend(array.shape)
            offset, size = places[name]
            tensor.parameters["shared_memory_region"].string_param = region
            tensor.parameters["shared_memory_byte_size"].int64_param = size
            if offset:
                tensor.parameters["shared_memory_offset"].int64_param = offset
        payloads.append(bytes(request.SerializeToString()))
    return Bodies(tuple(payloads), (0,) * len(samples))
