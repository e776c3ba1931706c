#!/bin/bash
# For the lead: the TensorRT worker on a GPU host with the gpu-kit (TensorRT 8.6, Python 3.10). Run in the checkout.
#   . /opt/gpu-kit/env.sh; bash tensorrt_86_check.sh [MODEL.onnx]
# The worker needs stdlib + tensorrt (+ onnx for node names). Nothing else of the project's dependencies.
set -eu
PY=${PY:-python3.10} MODULE=${MODULE:-tensorrt}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
OUT=${OUT:-/tmp/tensorrt-86}; mkdir -p "$OUT/cache"
# 1. what the builder has (want: live true, weak_typing true, explicit_batch_flag true, int64 false, gpu.* filled)
echo '{"action":"probe","module":"'$MODULE'"}' | $PY -m optimizer.engines.tensorrt.worker - - 2>"$OUT/probe.log" | tee "$OUT/probe.json"
# 2. a tiny model, or yours
ONNX=${1:-$OUT/tiny.onnx}
[ $# -gt 0 ] || $PY - "$ONNX" <<'PY'
import sys, numpy as np, onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh
rng = np.random.default_rng(0)
w = [nh.from_array(rng.standard_normal(s).astype(np.float32) * 0.1, n) for n, s in (("a", (64, 256)), ("b", (256, 32)))]
nodes = [h.make_node("MatMul", ["x", "a"], ["h"], name="up"), h.make_node("Relu", ["h"], ["r"], name="relu"),
         h.make_node("MatMul", ["r", "b"], ["l"], name="down"), h.make_node("Softmax", ["l"], ["y"], name="softmax", axis=-1)]
g = h.make_graph(nodes, "tiny", [h.make_tensor_value_info("x", T.FLOAT, ["n", 64])], [h.make_tensor_value_info("y", T.FLOAT, ["n", 32])], w)
onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 17)], ir_version=8), sys.argv[1])
PY
# 3. builds: default, fp16 with softmax pinned to FP32, every builder knob, two profiles; each prints ok + what was taken
# the profile is given before, so that a fragment's own profiles win (JSON: the last key counts)
build() { # name, json fragment
  cat > "$OUT/$1.request.json" <<J
{"action":"build","module":"$MODULE","onnx":"$ONNX","plan":"$OUT/$1.plan","inspection":"$OUT/$1.layers.json",
 "timing_cache_directory":"$OUT/cache","profiles":[{"x":[[1,64],[8,64],[16,64]]}],$2  "outputs":[]}
J
  $PY -m optimizer.engines.tensorrt.worker "$OUT/$1.request.json" "$OUT/$1.result.json" 2>"$OUT/$1.log"
  $PY - "$1" "$OUT/$1.result.json" <<'PY'
import json, sys
d = json.load(open(sys.argv[2])); e = d.get("engine", {})
print(sys.argv[1], d["ok"], d.get("reason"), d.get("message"), d.get("size_bytes"), e.get("source"), e.get("profiles"),
      e.get("device_memory_bytes"), e.get("fingerprint", "")[:12], d.get("taken"), d.get("timing_cache"), "%.1f s" % d.get("build_s", 0))
PY
}
build default '"precision":"tf32",'
build default-again '"precision":"tf32",'           # fingerprint as "default", timing cache loaded
build fp32 '"precision":"fp32",'
build fp16 '"precision":"fp16","keep_fp32":["Softmax"],'
build fp16-all '"precision":"fp16",'
build knobs '"precision":"tf32","settings":{"optimization_level":"4","aux_streams":"1","sparsity":"on","workspace":"256","tactic_sources":"without_cudnn","hardware_compatibility":"ampere_plus"},'
build version-compatible '"precision":"tf32","settings":{"version_compatible":"on"},'   # want: ok, or not_available where libnvinfer_lean is missing
build not-available '"precision":"tf32","settings":{"tiling_level":"full"},'   # want: not_available
build profiles '"precision":"tf32","profiles":[{"x":[[1,64],[1,64],[1,64]]},{"x":[[1,64],[8,64],[16,64]]}],'
C=$(ls "$OUT"/cache/*.cache 2>/dev/null | head -1); [ -z "$C" ] || printf garbage > "$C"   # the first one may be another flag set's: then bad-cache shows "loaded"
build bad-cache '"precision":"tf32",'               # want: ok, "incompatible cache set aside as …"
# 4. the family itself (needs the project's dependencies): TensorRTFamily(python="python3.10") in a study, or
#    python3.10 -m pytest tests/unit/engines/tensorrt -q
