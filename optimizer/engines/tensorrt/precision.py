"""Rewrites an ONNX model to FP16 or BF16 for builders that take types from the network (TensorRT 11, TensorRT-RTX).

    python -m optimizer.engines.tensorrt.precision REQUEST.json RESULT.json

A worker of its own, since loading and checking a large model uses memory too. Needs onnx, nothing else.

Every node is either *low* (its FP32 tensors become FP16 or BF16) or *kept* (they stay FP32), and a cast stands exactly
where a tensor crosses: between two kept nodes there is none, so a variance computed in FP32 does not pass through FP16
on its way to the square root. Which positions of an operator may be low is read from ONNX's own schemas (``Resize``
has FP32 scales whatever its input). Inputs and outputs of the graph keep their types. Nodes with subgraphs (If, Loop,
Scan) are kept as they are.

onnxconverter-common does the same for FP16 and was tried first: its 1.16 leaves ``Cast`` to FLOAT as it is, so that
magika becomes a graph that no strongly typed builder accepts, and it clips weights at 1e4.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optimizer.engines.tensorrt.source import rename_dimensions

FP16_MAX = 65504.0
MAXIMAL_PROTOBUF_BYTES = 2**31 - 1

_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Log", "Identity", "Unsqueeze", "Squeeze"}
)
"""Kept when all that they read is kept or constant: they finish what an overflow-prone node began (a decomposed
LayerNorm's ``Sqrt(ReduceMean(Pow(x)) + eps)``)."""

_TYPED_BY_ATTRIBUTE = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "EyeLike", "Multinomial", "Bernoulli"}
)
_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_MOVABLE = frozenset({"Constant", "ConstantOfShape"})


class CannotRewrite(Exception):
    """The model does not allow it; the text says why."""


@dataclass
class Rewritten:
    model: Any
    low: int
    """Nodes that now work in the low type."""
    kept: int
    """Nodes with FP32 tensors that stay FP32."""
    casts: int
    warnings: list[str] = field(default_factory=list)


def rewrite(model: Any, precision: str, keep_fp32: Iterable[str]) -> Rewritten:
    """A new model. ``precision`` is ``fp16`` or ``bf16``. Raises :class:`CannotRewrite`."""
    import onnx

    if precision not in ("fp16", "bf16"):
        raise CannotRewrite(f"no rewriting to {precision}")
    low = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.BFLOAT16
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _forget_stale_types(copy.graph)
    try:
        inferred = onnx.shape_inference.infer_shapes(copy, strict_mode=False, data_prop=False)
    except Exception as error:  # noqa: BLE001 - the inference raises several types of its own
        raise CannotRewrite(f"ONNX cannot infer the model's types: {error}") from None
    return _Rewriter(inferred, low, frozenset(keep_fp32)).run()


def _forget_stale_types(graph: Any) -> None:
    # Exporters leave intermediate types that later passes have made wrong; inference then refuses the whole model.
    del graph.value_info[:]


class _Rewriter:
    def __init__(self, model: Any, low: int, keep: frozenset[str]) -> None:
        import onnx

        self.model = model
        self.graph = model.graph
        self.low = low
        self.keep = keep
        self.float = onnx.TensorProto.FLOAT
        self.low_name = "tensor(float16)" if low == onnx.TensorProto.FLOAT16 else "tensor(bfloat16)"
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.weights = {item.name: item for item in self.graph.initializer}
        self.types = {item.name: item.data_type for item in self.graph.initializer}
        for value in [*self.graph.input, *self.graph.value_info, *self.graph.output]:
            self.types[value.name] = value.type.tensor_type.elem_type
        self.native: dict[str, int] = {}
        """FP32 tensors of the original and the type in which they now exist."""
        self.converted: dict[tuple[str, int], str] = {}
        self.nodes: list[Any] = []
        self.casts = 0
        self.warnings: list[str] = []

    def run(self) -> Rewritten:
        # What a subgraph reads from here must exist as FP32 under its own name, like an output of the graph.
        outputs = {value.name for value in self.graph.output} | set(_captured(self.graph))
        low_count = kept_count = 0
        for name, kind in self.types.items():
            if kind == self.float:
                self.native[name] = self.float
        weights = {name for name, kind in self.types.items() if name in self.weights and kind == self.float}
        lowered: set[str] = set()
        for node in self.graph.node:
            floats_in = [name for name in node.input if name and self.types.get(name) == self.float]
            floats_out = [name for name in node.output if name and self.types.get(name) == self.float]
            if not floats_in and not floats_out:
                self.nodes.append(node)
                continue
            allowed = self._low_positions(node, lowered)
            if allowed is None:
                kept_count += 1
                self._connect(node, dict.fromkeys(range(len(node.input)), self.float))
                self.nodes.append(node)
                continue
            low_count += 1
            self._connect(node, {i: self.low if i in allowed[0] else self.float for i in range(len(node.input))})
            self._retype_attributes(node)
            self.nodes.append(node)
            for index, name in enumerate(node.output):
                if self.types.get(name) == self.float and index in allowed[1]:
                    lowered.add(name)
                    if name in outputs:
                        self._cast_output(node, index)
                    else:
                        self.native[name] = self.low
        used = {name for node in self.nodes for name in node.input} | outputs
        kept_weights = [item for item in self.graph.initializer if item.name not in weights or item.name in used]
        new_weights = [
            self._low_weight(name, target)
            for (name, kind), target in self.converted.items()
            if name in weights and kind == self.low
        ]
        del self.graph.initializer[:]
        self.graph.initializer.extend([*kept_weights, *new_weights])
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        del self.graph.value_info[:]
        if not low_count:
            raise CannotRewrite("no node of it can work in that type")
        return Rewritten(self.model, low_count, kept_count, self.casts, self.warnings)

    def _low_positions(self, node: Any, lowered: set[str]) -> tuple[set[int], set[int]] | None:
        """Inputs and outputs of ``node`` that become low; ``None`` when it is kept."""
        import onnx

        if node.op_type in self.keep | _TYPED_BY_ATTRIBUTE | _QUANTIZING or any(
            attribute.HasField("g") or attribute.graphs for attribute in node.attribute
        ):
            return None
        if node.op_type == "Mul" and len(node.input) == 2 and node.input[0] == node.input[1] and "Pow" in self.keep:
            return None
        if node.op_type in _ELEMENTWISE and self._finishes_kept(node, lowered):
            return None
        try:
            schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
        except onnx.defs.SchemaError:
            return None
        admits = {item.type_param_str: self.low_name in item.allowed_type_strs for item in schema.type_constraints}
        inputs = self._positions(node.input, schema.inputs, admits)
        outputs = self._positions(node.output, schema.outputs, admits)
        floats_out = {i for i, name in enumerate(node.output) if name and self.types.get(name) == self.float}
        floats_in = {i for i, name in enumerate(node.input) if name and self.types.get(name) == self.float}
        if floats_out - outputs or not (floats_in & inputs or floats_out):
            return None
        return floats_in & inputs, floats_out

    @staticmethod
    def _positions(names: Sequence[str], formal: Sequence[Any], admits: Mapping[str, bool]) -> set[int]:
        # The last formal parameter may be variadic (Concat, Sum): it stands for the rest.
        found = set()
        for index in range(len(names)):
            parameter = formal[min(index, len(formal) - 1)] if formal else None
            if parameter is not None and admits.get(parameter.type_str, False):
                found.add(index)
        return found

    def _finishes_kept(self, node: Any, lowered: set[str]) -> bool:
        floats = [name for name in node.input if name and self.types.get(name) == self.float]
        computed = [name for name in floats if name not in self.weights and name not in self._constants()]
        graph_inputs = {value.name for value in self.graph.input}
        return bool(computed) and not any(name in lowered or name in graph_inputs for name in computed)

    def _constants(self) -> set[str]:
        return {name for node in self.nodes if node.op_type in _MOVABLE for name in node.output}

    def _connect(self, node: Any, wanted: Mapping[int, int]) -> None:
        for index, name in enumerate(node.input):
            if name and self.types.get(name) == self.float:
                node.input[index] = self._as_type(name, wanted[index])

    def _as_type(self, name: str, kind: int) -> str:
        """The name under which ``name`` exists in ``kind``; a cast (or a second copy of a weight) is made once."""
        from onnx import helper

        if self.native.get(name, self.float) == kind:
            return name
        key = (name, kind)
        if key not in self.converted:
            target = f"{name}__{'float' if kind == self.float else 'low'}"
            while target in self.types:
                target += "_"
            self.types[target] = kind
            self.converted[key] = target
            if name not in self.weights:
                self.nodes.append(helper.make_node("Cast", [name], [target], name=f"{target}_cast", to=kind))
                self.casts += 1
        return self.converted[key]

    def _cast_output(self, node: Any, index: int) -> None:
        from onnx import helper

        name = node.output[index]
        inner = f"{name}__inner"
        node.output[index] = inner
        self.types[inner] = self.low
        # Readers inside the graph take the low tensor; the graph's output keeps its name and type.
        self.converted[name, self.low] = inner
        self.nodes.append(helper.make_node("Cast", [inner], [name], name=f"{name}_output_cast", to=self.float))
        self.casts += 1

    def _retype_attributes(self, node: Any) -> None:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == self.float:
                attribute.i = self.low
            elif node.op_type in _MOVABLE and attribute.name == "value" and attribute.t.data_type == self.float:
                attribute.t.CopyFrom(self._low_tensor(attribute.t, attribute.t.name))
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                self._constant_tensor(node, attribute)

    def _constant_tensor(self, node: Any, attribute: Any) -> None:
        import numpy as np
        from onnx import helper, numpy_helper

        single = attribute.name == "value_float"
        values = np.array(attribute.f if single else list(attribute.floats), np.float32)
        tensor = self._low_tensor(numpy_helper.from_array(values, node.output[0]), node.output[0])
        node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute("value", tensor))

    def _low_weight(self, name: str, target: str) -> Any:
        return self._low_tensor(self.weights[name], target)

    def _low_tensor(self, tensor: Any, name: str) -> Any:
        """Rounded to nearest even. A finite weight beyond FP16's largest value becomes that value, and is told of."""
        import numpy as np
        import onnx
        from onnx import numpy_helper

        values = np.ascontiguousarray(numpy_helper.to_array(tensor), np.float32)
        new = onnx.TensorProto(name=name, data_type=self.low, dims=tensor.dims)
        if self.low == onnx.TensorProto.FLOAT16:
            beyond = np.isfinite(values) & (np.abs(values) > FP16_MAX)
            if beyond.any():
                self.warnings.append(f"{int(beyond.sum())} values of {name} are beyond FP16's range and were clipped")
                values = np.where(beyond, np.copysign(np.float32(FP16_MAX), values), values)
            new.raw_data = values.astype("<f2").tobytes()
        else:
            bits = values.view(np.uint32)
            rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
            new.raw_data = np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype("<u2").tobytes()
        return new


def _captured(graph: Any) -> Iterator[str]:
    """Names that the nodes of ``graph``'s subgraphs mention; a few too many (their own) does no harm."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                for item in inner.node:
                    yield from item.input
                yield from (value.name for value in inner.output)
                yield from _captured(inner)


def rewrite_file(
    source: Path,
    target: Path,
    precision: str,
    keep_fp32: Iterable[str],
    names: Mapping[str, Mapping[int, str]] | None = None,
) -> dict[str, Any]:
    """Reads ``source`` with its external data and writes ``target``, over 2 GiB with external data beside it.

    ``names`` are new names of input dimensions.
    """
    import onnx

    model = onnx.load(str(source))
    rename_dimensions(model, names or {})
    done = rewrite(model, precision, keep_fp32)
    large = done.model.ByteSize() > MAXIMAL_PROTOBUF_BYTES - (1 << 20)
    onnx.save_model(
        done.model,
        str(target),
        save_as_external_data=large,
        all_tensors_to_one_file=True,
        location=f"{target.name}.data",
    )
    return {"ok": True, "low": done.low, "kept": done.kept, "casts": done.casts, "warnings": done.warnings[:20]}


def main(arguments: list[str]) -> int:
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    precision = str(request["precision"])
    result: dict[str, Any]
    try:
        # JSON has text keys only.
        names = {
            name: {int(axis): to for axis, to in axes.items()} for name, axes in request["dimension_names"].items()
        }
        result = rewrite_file(
            Path(request["onnx"]), Path(request["target"]), precision, request.get("keep_fp32") or (), names
        )
    except ImportError as error:
        result = _failure("not_available", f"cannot rewrite ONNX types: {error}")
    except CannotRewrite as error:
        result = _failure("not_available", f"the model cannot be rewritten to {precision}: {error}")
    except MemoryError:
        result = _failure("out_of_memory", "Python ran out of memory while rewriting types")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this candidate's failure
        result = _failure("other", f"cannot rewrite the model to {precision}: {type(error).__name__}: {error}")
    Path(arguments[1]).write_text(json.dumps(result), encoding="utf-8")
    return 0


def _failure(reason: str, message: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason, "message": message}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
