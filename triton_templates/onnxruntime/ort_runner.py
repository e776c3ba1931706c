"""Runs requests through one ONNX Runtime session: gathers those that fit together, splits what comes back.

Knows nothing of Triton: a request is a dictionary of arrays, an answer is a dictionary of arrays or the exception that
belongs to that request. BF16 tensors are uint16 arrays of the raw bits, since NumPy has no such type.
"""

import numpy as np
import ort_bfloat16
import ort_checks


class Runner:
    def __init__(self, session, config, run_options=None):
        """Raises :class:`ort_checks.MismatchError` where the config does not fit the model."""
        inputs, outputs = session.get_inputs(), session.get_outputs()
        initializers = session.get_overridable_initializers()
        ort_checks.check(config, inputs, initializers, outputs)
        shapes = {argument.name: argument.shape for argument in outputs}
        self.session = session
        self.run_options = run_options
        self.batched = int(config.get("max_batch_size", 0)) > 0
        self.output_names = [entry["name"] for entry in config["output"]]
        self.scalar_inputs = {argument.name for argument in (*inputs, *initializers) if not argument.shape}
        # The config says [1] where the model has a scalar.
        self.scalar_outputs = {
            entry["name"]: ort_checks.expected_dims(entry) for entry in config["output"] if not shapes[entry["name"]]
        }
        self.string_inputs = {a.name for a in (*inputs, *initializers) if a.type == "tensor(string)"}
        self.bfloat16_inputs = {a.name for a in (*inputs, *initializers) if a.type == "tensor(bfloat16)"}
        self.bfloat16_outputs = {a.name for a in outputs if a.type == "tensor(bfloat16)"}

    def answer(self, requests):
        """One answer per request, in order: {output: array}, or the exception."""
        groups = {}
        for index, feeds in enumerate(requests):
            # Without a batch dimension every request is a run of its own.
            key = signature(feeds) if self.batched else index
            groups.setdefault(key, []).append(index)
        answers = [None] * len(requests)
        for indices in groups.values():
            self._answer_group(requests, indices, answers)
        return answers

    def _answer_group(self, requests, indices, answers):
        try:
            results = self._run([requests[index] for index in indices])
        except Exception as error:  # noqa: BLE001 - whatever ONNX Runtime raises belongs to these requests alone
            if len(indices) == 1:
                answers[indices[0]] = error
            else:
                # One of them is at fault: the others must not suffer.
                for index in indices:
                    self._answer_group(requests, [index], answers)
        else:
            for index, result in zip(indices, results, strict=True):
                answers[index] = result

    def _run(self, requests):
        if len(requests) == 1:
            feeds = requests[0]
        else:
            feeds = {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}
        if self.string_inputs or self.scalar_inputs:
            feeds = {name: self._as_model_wants(name, array) for name, array in feeds.items()}
        if self.bfloat16_inputs or self.bfloat16_outputs:
            arrays = ort_bfloat16.run(self, feeds)
        else:
            arrays = self.session.run(self.output_names, feeds, self.run_options)
        results = dict(zip(self.output_names, arrays, strict=True))
        for name, dims in self.scalar_outputs.items():
            results[name] = np.asarray(results[name]).reshape(dims)
        if not self.batched:
            return [results]
        sizes = [next(iter(request.values())).shape[0] for request in requests]
        return list(self._split(results, sizes))

    def _as_model_wants(self, name, array):
        if name in self.string_inputs:
            array = strings(array)
        return array.reshape(-1)[:1].reshape(()) if name in self.scalar_inputs else array

    def _split(self, results, sizes):
        total = sum(sizes)
        for name, array in results.items():
            if name not in self.scalar_outputs and (array.ndim == 0 or array.shape[0] != total):
                raise ValueError(
                    f"output '{name}' has shape {list(array.shape)} for a batch of {total}: its first dimension is not "
                    "the batch"
                )
        if len(sizes) == 1:
            yield results
            return
        start = 0
        for size in sizes:
            yield {
                name: array if name in self.scalar_outputs else array[start : start + size]
                for name, array in results.items()
            }
            start += size


def signature(feeds):
    """Requests of equal signature can share a run."""
    return tuple((name, array.shape[1:], array.dtype.str) for name, array in sorted(feeds.items()))


def strings(array):
    """Bytes as ONNX Runtime's Python API takes them; given as they are, it would take their ``repr``.

    Bytes that are not UTF-8 go as a fixed-width array, which loses trailing zero bytes; the native backend loses
    everything from the first one on.
    """
    try:
        flat = [item.decode() for item in array.flat]
    except UnicodeDecodeError:
        return array.astype(np.bytes_)
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(array.shape)
