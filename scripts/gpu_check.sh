#!/usr/bin/env bash
# Run the doctor for real on a machine with GPUs, and keep what it found, redacted.
#
#   scripts/gpu_check.sh [PYTHON] [FOLDER]
#
# PYTHON has a torch built with CUDA (default: python3), FOLDER gets the results (default: gpu-check).
# Takes about three minutes on eight GPUs; changes nothing but FOLDER. Besides the healthy run it puts
# in faults that need no root, and says for each whether the doctor named it. What to send in: the
# folder; facts.json is what becomes a fixture in tests/data/doctor.
set -u
python=${1:-python3}
folder=${2:-gpu-check}
gpuenv=${GPUENV:-gpuenv}
missed=0

say() { printf '%s\n' "$*" | tee -a "$folder/summary.txt"; }

command -v "$gpuenv" >/dev/null || { echo "gpu_check: no gpuenv on PATH (or set GPUENV)" >&2; exit 2; }
"$python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
  { echo "gpu_check: $python has no torch built with CUDA" >&2; exit 2; }
mkdir -p "$folder"
: >"$folder/summary.txt"

say "== healthy: gpuenv doctor --level standard"
start=$(date +%s)
"$gpuenv" doctor --python "$python" --level standard --require gpu,nccl,compile \
  --capture "$folder/facts.json" --html "$folder/report.html" --junit "$folder/report.xml" \
  >"$folder/report.txt" 2>"$folder/progress.txt"
code=$?
say "exit code $code after $(($(date +%s) - start)) s; $(tail -n 1 "$folder/report.txt")"

# fault NAME CHECK VARIABLE=VALUE...: the check must warn or fail when the variables are set
fault() {
  local name=$1 check=$2
  shift 2
  env "$@" "$gpuenv" doctor --python "$python" --level "${level:-quick}" --json \
    >"$folder/fault-$name.json" 2>/dev/null
  if "$python" - "$folder/fault-$name.json" "$check" <<'EOF'
import json, sys
results = json.load(open(sys.argv[1]))["data"]["checks"]
sys.exit(not any(r["id"] == sys.argv[2] and r["status"] in ("warn", "fail") for r in results))
EOF
  then say "named    $name ($check)"
  else say "MISSED   $name ($check)"; missed=$((missed + 1))
  fi
}

say "== faults put in"
fault no-such-gpu vis.cvd CUDA_VISIBLE_DEVICES=99
fault gpu-twice vis.cvd CUDA_VISIBLE_DEVICES=0,0
fault no-such-interface nccl.ifname NCCL_SOCKET_IFNAME=nope
doubles=$(cd "$(dirname "$0")/.." && pwd)/tests/compute/doubles
if [ -d "$doubles" ]; then
  fault wrong-gradient num.autograd TEST_FAULT=wrong-gradient "PYTHONPATH=$doubles"
  fault wrong-product num.matmul TEST_FAULT=wrong-product "PYTHONPATH=$doubles"
  fault nan-loss num.step TEST_FAULT=nan-loss "PYTHONPATH=$doubles"
  if [ "$("$python" -c 'import torch; print(torch.cuda.device_count())')" -gt 1 ]; then
    level=standard
    fault lost-contribution nccl.allreduce.mp TEST_FAULT=lost-contribution "PYTHONPATH=$doubles"
    fault killed-rank nccl.allreduce.mp TEST_FAULT=killed-rank "PYTHONPATH=$doubles"
  fi
fi
say "== $missed missed; results in $folder"
[ "$missed" -eq 0 ]
