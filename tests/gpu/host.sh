#!/usr/bin/env bash
# On a GPU host without a network: unpacks a packed Python with TensorRT, then runs one piece.
#
#   host.sh keep DIR                move the kit's pieces in DIR out of the way of the next ones
#   host.sh unpack                  unpack what was kept, and say what is there
#   host.sh run PIECE SECONDS [ARGUMENT...]
#                                   python -m tests.gpu.PIECE; results are copied to $OUT
#   host.sh python ARGUMENT...      anything else with that Python
#
# State (plans, finished steps) stays in $STATE between calls, as long as the host is held.
set -euo pipefail
PIECES=${PIECES:-/opt/gpu-kit-pieces}
STATE=${STATE:-/opt/gpu-state}
cd "$(dirname "$0")/../.."

prepare() {
  . /opt/gpu-kit/env.sh
  export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1
}

case ${1:?keep, unpack, run or python} in
keep)
  mkdir -p "$PIECES"
  find "$2" -type f \( -name 'kit.*' -o -name unpack.sh \) -exec mv -f {} "$PIECES"/ \;
  ls "$PIECES" | wc -l
  ;;
unpack)
  bash "$PIECES/unpack.sh" "$PIECES"
  rm -rf "$PIECES"
  ;;
run)
  prepare
  mkdir -p "$STATE"
  status=0
  timeout -k 20 "$(($3 + 40))" python3.10 -m "tests.gpu.$2" --out "$STATE" --seconds "$3" "${@:4}" || status=$?
  if [[ -n ${OUT:-} ]]; then
    # Few files come back: this piece's results, the studies' documents, and everything else in one archive.
    find "$STATE" -maxdepth 1 -type f \( -name "$2.json" -o -name 'study*.json' \) -exec cp {} "$OUT"/ \;
    tar -C "$STATE" --exclude='*.plan' --exclude='*.onnx' --exclude='*.npz' --exclude=./work --exclude=./plans \
      --exclude=cache --exclude=sandbox -czf "$OUT/rest.tgz" . || true
    ls -la "$OUT"
  fi
  exit "$status"
  ;;
python)
  prepare
  exec python3.10 "${@:2}"
  ;;
esac
