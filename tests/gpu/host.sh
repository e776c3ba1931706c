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
    find "$STATE" -maxdepth 1 -type f \( -name '*.json' -o -name '*.log' \) -exec cp {} "$OUT"/ \;
    find "$STATE" -maxdepth 1 -type d -name 'phases-*' -exec cp -r {} "$OUT"/ \;
    for folder in study report; do
      if [[ -d $STATE/$folder ]]; then tar -C "$STATE" --exclude='*.plan' -czf "$OUT/$folder.tgz" "$folder"; fi
    done
  fi
  exit "$status"
  ;;
python)
  prepare
  exec python3.10 "${@:2}"
  ;;
esac
