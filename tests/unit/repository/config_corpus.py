"""Configs as people write them: every style of text format, every part of the ModelConfig vocabulary that models use.

``MINIMAL`` … are whole files. ``respell`` writes a config's tokens in another style, and ``mutate`` changes a message,
both from a seeded ``random.Random``; the tests combine them.
"""

from __future__ import annotations

import random
import re
from typing import Any

from optimizer.repository.text_tree import tokenize

MINIMAL = 'backend: "onnxruntime"\n'

CLASSIFIER = """\
# Image classifier, owned by the vision team.
name: "classifier"
platform: "onnxruntime_onnx"   # exported with opset 17
max_batch_size: 32

input [
  {
    name: "image"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 224, 224 ]  # channels first
  }
]
output [
  {
    name: "scores"
    data_type: TYPE_FP32
    dims: [ 1000 ]
    label_filename: "labels.txt"
  }
]

# Two per GPU were best on the old machine.
instance_group [
  {
    count: 2
    kind: KIND_GPU
    gpus: [ 0, 1 ]
  }
]
dynamic_batching {
  preferred_batch_size: [ 8, 16, 32 ]
  max_queue_delay_microseconds: 500  # keep below the SLO
}
optimization {
  graph { level: 1 }
  execution_accelerators {
    gpu_execution_accelerator : [ {
      name : "tensorrt"
      parameters { key: "precision_mode" value: "FP16" }
      parameters { key: "max_workspace_size_bytes" value: "1073741824" }
    } ]
  }
}
model_warmup [
  {
    name: "one"
    batch_size: 1
    inputs {
      key: "image"
      value: {
        data_type: TYPE_FP32
        dims: [ 3, 224, 224 ]
        zero_data: true
      }
    }
  }
]
version_policy: { latest: { num_versions: 2 } }
# The end."""

PLAN = """\
name: 'detector'
backend: 'tensorrt'
platform: "tensorrt_plan"
default_model_filename: "model.plan"
cc_model_filenames { key: "9.0" value: "hopper.plan" }
cc_model_filenames { key: "8.6" value: "ampere.plan" }
max_batch_size : 8
input { name : 'pixels' data_type : TYPE_UINT8 dims : 3 dims : -1 dims : -1 }
input { name: "sizes" data_type: TYPE_INT32 dims: [2] is_shape_tensor: true }
output { name: "boxes", data_type: TYPE_FP32, dims: [100, 4]; reshape: { shape: [ 400 ] } };
output < name: "count" data_type: TYPE_INT32 dims: 1 reshape < shape: [] > >
instance_group [ { count: 1, kind: KIND_GPU, gpus: [ 0 ], profile: [ "0", "1" ] } ]
optimization { cuda { graphs: true graph_spec { batch_size: 1 } graph_spec [ { batch_size: 8
  input { key: "pixels" value { dim: [3, 640, 640] } } } ] busy_wait_events: true } priority: PRIORITY_MAX }
parameters: { key: "execution_context_allocation_strategy", value: { string_value: "ON_PROFILE_CHANGE" } }
version_policy { specific { versions: [ 1, 3 ] } }
"""

ENSEMBLE = """\
name: "pipeline"
platform: "ensemble"
max_batch_size: 8
input [ { name: "RAW" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "CLASS" data_type: TYPE_INT64 dims: [ 1 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "preprocess"   # tokenizer
      model_version: -1
      input_map { key: "TEXT" value: "RAW" }
      output_map { key: "IDS" value: "ids" }
    },
    {
      model_name: "encoder"
      model_version: 2
      input_map {
        key: "input_ids"
        value: "ids"
      }
      output_map {
        key: "label"
        value: "CLASS"
      }
    }
  ]
}
"""

SEQUENCE = """\
name:"rnn" backend:"onnxruntime" max_batch_size:4
input[{name:"x" data_type:TYPE_FP32 dims:[16]}]
output[{name:"y" data_type:TYPE_FP32 dims:[16]}]
sequence_batching{
\tmax_sequence_idle_microseconds:5000000
\tdirect{minimum_slot_utilization:0.5 max_queue_delay_microseconds:100}
\tcontrol_input[
\t\t{name:"START" control[{kind:CONTROL_SEQUENCE_START fp32_false_true:[0,1]}]},
\t\t{name:"READY" control[{kind:CONTROL_SEQUENCE_READY int32_false_true:[0,1]}]}
\t]
\tstate[{input_name:"s_in" output_name:"s_out" data_type:TYPE_FP32 dims:[-1]
\t\tinitial_state:{name:"zero" data_type:TYPE_FP32 dims:[4] zero_data:true}}]
}
"""

PYTHON = """\
backend: "python"

parameters: {
  key: "EXECUTION_ENV_PATH",
  value: {string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz"}
}
parameters: {
  key: "greeting"
  value: { string_value: "It's \\"quoted\\", "
                         'and goes on # not a comment'   # but this is
                         "\\n" }
}
metric_tags { key: "team" value: "search" }

input { name: "q" data_type: TYPE_STRING dims: [ -1 ] optional: true }
output { name: "a" data_type: TYPE_STRING dims: [ -1 ] }
model_transaction_policy { decoupled: true }
response_cache { enable: false }
instance_group { kind: KIND_CPU count: 3
  rate_limiter { resources [ { name: "R1" count: 4 }, { name: "R2" global: true count: 2 } ] priority: 2 } }
instance_group { kind: KIND_GPU count: 1 gpus: 0 gpus: 1
  secondary_devices { kind: KIND_NVDLA device_id: 0 } passive: false }
"""

BATCHING = """\
max_batch_size: 64
dynamic_batching { }
input {
    name: "tokens"
    data_type: TYPE_INT64
    dims: [
        -1,   # length
        # the rest is fixed
        8
    ]
    allow_ragged_batch: true
}
batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "OFFSETS"
                data_type: TYPE_FP32 source_input: "tokens" } ]
output { name: "out" data_type: TYPE_BF16 dims: [ 8 ] }
batch_output [ { target_name: "out" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "tokens" } ]
"""

PRIORITIES = """\
#######################
## served since 2021 ##
#######################

name: "ranker"

backend: "onnxruntime"
default_model_filename: "ranker.onnx"

max_batch_size: 0

input:  [ { name: "f"; data_type: TYPE_FP64; dims: [ 1, 40 ]; },
          { name: "m"; data_type: TYPE_BOOL; dims: [ 1 ]; } ]
output: [ { name: "s"; data_type: TYPE_FP16; dims: [ 1 ]; } ]

dynamic_batching: {
    priority_levels: 2
    default_priority_level: 1
    default_queue_policy: { timeout_action: REJECT, default_timeout_microseconds: 1000 }
    priority_queue_policy: [
        { key: 1  value: { max_queue_size: 10 } },
        { key: 2  value: { timeout_action: DELAY allow_timeout_override: true } }
    ]
    preserve_ordering: false
}
model_operations { op_library_filename: [ "a.so", "b.so" ] }
model_repository_agents { agents [ { name: "checksum" parameters { key: "MD5:config.pbtxt" value: "0" } } ] }
model_metrics { metric_control: [ { metric_identifier: { family: "nv_inference_first_response_histogram_ms" }
                                    histogram_options: { buckets: [ 1, 2.5, 4e1 ] } } ] }
version_policy: { all { } }
"""

CORPUS: dict[str, str] = {
    "minimal": MINIMAL,
    "classifier": CLASSIFIER,
    "plan": PLAN,
    "ensemble": ENSEMBLE,
    "sequence": SEQUENCE,
    "python": PYTHON,
    "batching": BATCHING,
    "priorities": PRIORITIES,
    "windows": CLASSIFIER.replace("\n", "\r\n"),
    "mixed line ends": PLAN.replace("\n", "\r\n", 5),
    "comments only": "# nothing yet\n",
    "empty": "",
    "one line": re.sub(r"\s+", " ", SEQUENCE).strip(),
    "no last line end": PLAN.rstrip("\n"),
}


def respell(text: str, rng: random.Random) -> str:
    """The same tokens with other blanks, comments, line ends and brackets."""
    newline = rng.choice(["\n", "\n", "\r\n"])
    parts: list[str] = []
    closers: list[str] = []
    previous = ""
    for token in tokenize(text):
        written = token.text
        if written in ("{", "<"):
            written = rng.choice("{{{<")
            closers.append("}" if written == "{" else ">")
        elif written in ("}", ">"):
            written = closers.pop()
        elif written in (",", ";") and parts and rng.random() < 0.1:
            written = rng.choice([written, f" {written}", f"{newline}{written} # separator{newline}"])
        glued = previous[-1:] in tuple("{}<>[]:,;") or token.text[0] in "{}<>[]:,;\"'"
        blanks = ["" if glued else " ", " ", "  ", "\t", newline, f"{newline}  ", f" # {rng.randrange(100)}{newline}"]
        weights = [8, 8, 1, 1, 3, 3, 1]
        parts += [
            rng.choices(blanks, weights)[0] if parts else rng.choice(["", "", newline, f"# top{newline}"]),
            written,
        ]
        previous = written
    parts.append(rng.choice(["", newline, f"{newline}# last", f"{newline}{newline}"]))
    return "".join(parts)


def mutate(message: Any, rng: random.Random, *, changes: int) -> None:
    """So many random changes anywhere in the message: values set, cleared, added, moved, swapped."""
    for _ in range(changes):
        _mutate_once(message, rng, depth=0)


_WORDS = (
    "model.plan",
    "tensorrt",
    "x",
    "it's",
    'a "b"',
    "tab\tend",
    "{}",
    "# no comment",
    "é",
    "",
    "back\\slash",
    "1",
    "a\nb",
)


def _mutate_once(message: Any, rng: random.Random, depth: int) -> None:
    fields = message.DESCRIPTOR.fields
    if not len(fields):
        return
    present = [descriptor for descriptor, _ in message.ListFields()]
    descriptor = rng.choice(present) if present and rng.random() < 0.6 else rng.choice(fields)
    name = descriptor.name
    repeated, composite = _is_repeated(descriptor), descriptor.message_type
    if rng.random() < 0.15:
        message.ClearField(name)
    elif composite is not None and composite.GetOptions().map_entry:
        entries = getattr(message, name)
        key_field, value_field = composite.fields_by_name["key"], composite.fields_by_name["value"]
        known = sorted(entries)
        key = rng.choice(known) if known and rng.random() < 0.6 else _scalar(key_field, rng)
        if key in entries and rng.random() < 0.3:
            del entries[key]
        elif value_field.message_type is not None:
            _mutate_once(entries[key], rng, depth + 1)
        else:
            entries[key] = _scalar(value_field, rng)
    elif repeated:
        values = getattr(message, name)
        operation = rng.choice(["add", "delete", "change", "change", "swap", "insert"])
        index = rng.randrange(len(values)) if len(values) else 0
        if operation == "delete" and len(values):
            del values[index]
        elif operation == "swap" and len(values) > 1:
            reordered = list(values)
            rng.shuffle(reordered)
            del values[:]
            values.extend(reordered)
        elif composite is None:
            value = _scalar(descriptor, rng)
            if operation == "change" and len(values):
                values[index] = value
            else:
                values.insert(index if operation == "insert" else len(values), value)
        elif operation == "change" and len(values):
            _mutate_once(values[index], rng, depth + 1)
        else:
            element = composite._concrete_class()
            for _ in range(rng.randrange(4)):
                _mutate_once(element, rng, depth + 1)
            values.insert(index if operation == "insert" else len(values), element)
    elif composite is not None:
        getattr(message, name).SetInParent()
        if rng.random() < 0.9:
            _mutate_once(getattr(message, name), rng, depth + 1)
    else:
        setattr(message, name, _scalar(descriptor, rng))


def _is_repeated(descriptor: Any) -> bool:
    return bool(descriptor.is_repeated) if hasattr(descriptor, "is_repeated") else descriptor.label == 3


def _scalar(descriptor: Any, rng: random.Random) -> Any:
    if descriptor.enum_type is not None:
        return rng.choice(descriptor.enum_type.values).number
    if descriptor.cpp_type == descriptor.CPPTYPE_STRING:
        return rng.choice(_WORDS)
    if descriptor.cpp_type == descriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if descriptor.cpp_type in (descriptor.CPPTYPE_FLOAT, descriptor.CPPTYPE_DOUBLE):
        return rng.choice([0.0, 0.5, 1.0, 2.5e9, 0.1])
    signed = descriptor.cpp_type in (descriptor.CPPTYPE_INT32, descriptor.CPPTYPE_INT64)
    return rng.choice([0, 1, 2, 8, 64, 1000, *([-1] if signed else [])])
