"""Triton's ``onnxruntime`` backend in Python, for servers that have only the python backend.

Serves a model with the config of the native backend, unchanged. What it reads and what it refuses is in
``ort_options`` and ``ort_checks``; how requests share a run is in ``ort_runner``.
"""

import json
from pathlib import Path

import onnxruntime
import ort_bfloat16
import ort_checks
import ort_options
import triton_python_backend_utils as pb_utils
from ort_runner import Runner


class TritonPythonModel:
    def initialize(self, args):
        try:
            self.runner = make_runner(args)
        except (ort_options.ConfigError, ort_checks.MismatchError, FileNotFoundError) as error:
            # Triton prints a traceback with any other exception.
            raise pb_utils.TritonModelException(str(error)) from None

    def execute(self, requests):
        # Kept until the next call: a BF16 tensor is made of its array's memory, which Triton reads after this returns.
        self.answers = self.runner.answer([self.feeds(request) for request in requests])
        return [self.response(request, answer) for request, answer in zip(requests, self.answers, strict=True)]

    def feeds(self, request):
        bfloat16 = self.runner.bfloat16_inputs
        return {
            tensor.name(): ort_bfloat16.from_triton(tensor) if tensor.name() in bfloat16 else tensor.as_numpy()
            for tensor in request.inputs()
        }

    def response(self, request, answer):
        if isinstance(answer, Exception):
            return pb_utils.InferenceResponse([], pb_utils.TritonError(f"onnx runtime error: {answer}"))
        wanted = set(request.requested_output_names())
        bfloat16 = self.runner.bfloat16_outputs
        return pb_utils.InferenceResponse(
            [
                ort_bfloat16.to_triton(pb_utils, name, array) if name in bfloat16 else pb_utils.Tensor(name, array)
                for name, array in answer.items()
                if name in wanted
            ]
        )

    def finalize(self):
        self.runner = self.answers = None


def make_runner(args):
    config = json.loads(args["model_config"])
    options = ort_options.parse(
        config,
        kind=args["model_instance_kind"],
        device_id=int(args["model_instance_device_id"]),
        available=onnxruntime.get_available_providers(),
    )
    path = model_path(config, args["model_repository"], args["model_version"])
    session = onnxruntime.InferenceSession(
        str(path),
        ort_options.session_options(options, args["model_repository"]),
        providers=list(options.providers),
    )
    return Runner(session, config, ort_options.run_options(options))


def model_path(config, repository, version):
    """The file to open: ``default_model_filename`` or ``model.onnx``; a directory holds a ``model.onnx``."""
    path = Path(repository) / str(version) / (config.get("default_model_filename") or "model.onnx")
    if path.is_dir():
        path = path / "model.onnx"
    if not path.exists():
        raise FileNotFoundError(f"unable to find '{path}' for model instance '{config['name']}'")
    return path
