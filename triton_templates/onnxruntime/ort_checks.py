"""Does the config fit the model? The native backend's rules and messages, before the first request."""

ORT_TO_TRITON = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(string)": "STRING",
}


class MismatchError(ValueError):
    """The config does not fit the model."""


def dimensions(argument):
    """A ``NodeArg``'s shape with -1 for every free dimension."""
    return [dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape]


def numbers(values):
    return [int(value) for value in values]


def expected_dims(entry):
    reshape = entry.get("reshape")
    return numbers(reshape.get("shape", [])) if reshape is not None else numbers(entry["dims"])


def shape_text(dims):
    return "[" + ",".join(str(dim) for dim in dims) + "]"


def check(config, inputs, initializers, outputs):
    """``inputs``, ``initializers`` (overridable ones) and ``outputs`` are the session's ``NodeArg`` lists.

    Raises :class:`MismatchError`.
    """
    name = config["name"]
    refuse_unsupported(config)
    batched = int(config.get("max_batch_size", 0)) > 0
    required = [entry for entry in config["input"] if not entry.get("optional")]
    controls = control_names(config)
    if len(required) + len(controls) != len(inputs):
        raise MismatchError(
            f"unable to load model '{name}', configuration expects {len(required) + len(controls)} inputs, "
            f"model provides {len(inputs)}"
        )
    known = {argument.name: argument for argument in (*inputs, *initializers)}
    for entry in config["input"]:
        if entry.get("optional") and batched:
            raise MismatchError(
                f"unable to load model '{name}', optional input '{entry['name']}' is not supported for models that "
                "support batching"
            )
        check_tensor(name, "input", entry, known, batched, exact=False)
    known = {argument.name: argument for argument in outputs}
    for entry in config["output"]:
        check_tensor(name, "output", entry, known, batched, exact=True)


def refuse_unsupported(config):
    """What the native backend can do and this runner cannot: better no answer than another one."""
    found = [key for key in ("batch_input", "batch_output") if config.get(key)]
    found += [f"allow_ragged_batch (input '{i['name']}')" for i in config["input"] if i.get("allow_ragged_batch")]
    if (config.get("sequence_batching") or {}).get("state"):
        found.append("sequence_batching.state")
    if (config.get("model_transaction_policy") or {}).get("decoupled"):
        found.append("model_transaction_policy.decoupled")
    types = {entry["data_type"] for entry in (*config["input"], *config["output"])}
    if {"TYPE_BF16", "TYPE_STRING"} <= types:
        # ONNX Runtime's Python API takes BF16 as bound values only, and strings as anything but these.
        found.append("BF16 beside STRING")
    if found:
        raise MismatchError(
            f"unable to load model '{config['name']}': {', '.join(found)} is not supported by the python-based "
            "onnxruntime runner; serve this model on a server with the native onnxruntime backend"
        )


def control_names(config):
    controls = (config.get("sequence_batching") or {}).get("control_input") or []
    return [control["name"] for control in controls]


def check_tensor(model, role, entry, known, batched, exact):
    argument = known.get(entry["name"])
    if argument is None:
        raise MismatchError(
            f"unable to load model '{model}', unexpected inference {role} '{entry['name']}', allowed {role}s are: "
            + ", ".join(sorted(known))
        )
    wanted = entry["data_type"].removeprefix("TYPE_")
    provided = ORT_TO_TRITON.get(argument.type, argument.type)
    if wanted != provided:
        raise MismatchError(
            f"unable to load model '{model}', configuration expects datatype TYPE_{wanted} for {role} "
            f"'{entry['name']}', model provides TYPE_{provided}"
        )
    dims, shape = expected_dims(entry), dimensions(argument)
    if not shape:
        if any(dim != 1 for dim in dims):
            raise MismatchError(
                f"unable to load model '{model}', scalar tensor '{entry['name']}', should only provide 1 in the model "
                f"configuration when the model doesn't support batching. Model configuration provided: "
                f"{shape_text(dims)}."
            )
        return
    where = f"model '{model}', tensor '{entry['name']}'"
    if batched and shape[0] != -1:
        raise MismatchError(
            f"{where}: for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {shape_text(shape)}"
        )
    full = [-1, *dims] if batched else dims
    fits = len(full) == len(shape) and all(
        have == want for have, want in zip(shape, full, strict=True) if exact or have != -1
    )
    if not fits:
        because = (
            f"{len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            f"tensor shape, making complete shape {shape_text(full)})"
            if batched
            else f"{len(full)} dimensions (shape {shape_text(full)})"
        )
        raise MismatchError(
            f"{where}: the model expects {len(shape)} dimensions (shape {shape_text(shape)}) but the model "
            f"configuration specifies {because}"
        )
