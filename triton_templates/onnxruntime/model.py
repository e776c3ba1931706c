"""Triton's ``onnxruntime`` backend in Python, for servers that have only the python backend.

Serves a model with the config of the native backend, unchanged. One ``execute()`` call gathers the requests that agree
in shape into one run and splits the results; a request that fails has its own error and harms no other.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import ort_checks
import ort_options
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        options = ort_options.parse(
            config,
            kind=args["model_instance_kind"],
            device_id=int(args["model_instance_device_id"]),
            available=onnxruntime.get_available_providers(),
        )
        path = model_path(config, args["model_repository"], args["model_version"])
        self.session = onnxruntime.InferenceSession(
            str(path), ort_options.session_options(options), providers=list(options.providers)
        )
        self.run_options = ort_options.run_options(options)
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        initializers = self.session.get_overridable_initializers()
        ort_checks.check(config, inputs, initializers, outputs)
        self.batched = int(config.get("max_batch_size", 0)) > 0
        self.outputs = [entry["name"] for entry in config["output"]]
        self.scalar_inputs = {argument.name for argument in (*inputs, *initializers) if not argument.shape}
        self.scalar_outputs = {
            entry["name"]: ort_checks.expected_dims(entry)
            for entry in config["output"]
            if not next(argument.shape for argument in outputs if argument.name == entry["name"])
        }

    def execute(self, requests):
        responses = [None] * len(requests)
        groups = {}
        for index, request in enumerate(requests):
            feeds = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            # Without batching every request is its own run.
            key = index if not self.batched else tuple((n, a.shape[1:], a.dtype.char) for n, a in sorted(feeds.items()))
            groups.setdefault(key, []).append((index, feeds))
        for members in groups.values():
            self.run_group(requests, members, responses)
        return responses

    def run_group(self, requests, members, responses):
        try:
            results, sizes = self.run([feeds for _, feeds in members])
        except Exception as error:  # noqa: BLE001 - whatever ONNX Runtime raises belongs to these requests alone
            if len(members) > 1:
                for member in members:
                    self.run_group(requests, [member], responses)
                return
            responses[members[0][0]] = failed(error)
            return
        start = 0
        for (index, _), size in zip(members, sizes, strict=True):
            wanted = requests[index].requested_output_names()
            tensors = [
                pb_utils.Tensor(name, array[start : start + size] if len(members) > 1 else array)
                for name, array in results.items()
                if name in wanted
            ]
            responses[index] = pb_utils.InferenceResponse(tensors)
            start += size

    def run(self, feeds_list):
        first = feeds_list[0]
        sizes = [next(iter(feeds.values())).shape[0] if self.batched else 1 for feeds in feeds_list]
        if len(feeds_list) == 1:
            feeds = dict(first)
        else:
            feeds = {name: np.concatenate([feeds[name] for feeds in feeds_list]) for name in first}
        for name in self.scalar_inputs & feeds.keys():
            feeds[name] = feeds[name].reshape(-1)[:1].reshape(())
        arrays = self.session.run(self.outputs, feeds, self.run_options)
        results = dict(zip(self.outputs, arrays, strict=True))
        for name, dims in self.scalar_outputs.items():
            results[name] = np.asarray(results[name]).reshape(dims)
        total = sum(sizes)
        if len(feeds_list) > 1:
            for name, array in results.items():
                if array.ndim == 0 or array.shape[0] != total:
                    raise ValueError(
                        f"output '{name}' has shape {list(array.shape)} for a batch of {total}: it cannot be split"
                    )
        return results, sizes

    def finalize(self):
        self.session = None


def model_path(config, repository, version):
    """The file to open: ``default_model_filename`` or ``model.onnx``; a directory holds a ``model.onnx``."""
    path = Path(repository) / str(version) / (config.get("default_model_filename") or "model.onnx")
    if path.is_dir():
        path = path / "model.onnx"
    if not path.exists():
        raise FileNotFoundError(f"unable to find '{path}' for model instance '{config['name']}'")
    return path


def failed(error):
    return pb_utils.InferenceResponse([], pb_utils.TritonError(f"onnx runtime error: {error}"))
