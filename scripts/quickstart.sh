#!/usr/bin/env bash
# From a fresh clone to a proven image: quickstart.sh GPUENV
set -euo pipefail
gpuenv=$1

say() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }
[ -t 2 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "$*" >&2; }

say "1/3  A container engine"
if ! "$gpuenv" -q engine status >/dev/null 2>&1; then
    "$gpuenv" engine up
fi
"$gpuenv" engine status

# With what jupyter and ssh need, which they build otherwise when they are first called.
image=("$gpuenv" build --make-base --with jupyter --with ssh)

say "2/3  An image that fits this host"
"${image[@]}"

say "3/3  Proof: the doctor, inside the image"
"$gpuenv" doctor --image "$("${image[@]}" -q --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["image_ref"])')"

say "Ready."
cat <<TXT
  A notebook:  $gpuenv jupyter --open
  A shell:     $gpuenv ssh
  One command: $gpuenv run -- python -c 'import torch; print(torch.__version__)'
  More:        $gpuenv --help
TXT
