#!/usr/bin/env bash
# The cost of a chip's agent: seconds of a training with snapshots and without, in turns, and what a thousand snapshots a day cost.
#
#   benches/agent.sh [STEPS [TURNS [RATE [ENGINE...]]]]      default: 60 steps, 5 turns, 200000 a day, --engine cpu
#
# A thousand a day is one in 86 s, too few to be told from the noise. So the training has a snapshot at every step or two, and the
# difference of the medians, divided by the snapshots, is the cost of one. ENGINE is a list of options, such as
# `--engine wgpu --adapter llvmpipe`. WIDTH is the model's width (default 256: a state of 38 MB).
# Needs `cargo build --release`, or TIEBREAK that names the command. Prints a line a turn, then the medians.
set -euo pipefail
steps=${1:-60} turns=${2:-5} rate=${3:-200000} width=${WIDTH:-256}
engine=("${@:4}")
((${#engine[@]})) || engine=(--engine cpu)
command=$(realpath "${TIEBREAK:-target/release/tiebreak}")
folder=$(mktemp -d)
trap '${agent:+kill "$agent"} 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"

head -c 65536 /dev/urandom | base64 -w 0 >text.txt
cat >job.toml <<JOB
steps = $steps
clip_norm = 1.0
model = { kind = "gpt", vocabulary = 128, context = 64, layers = 4, heads = 4, width = $width }
data = { kind = "bytes", path = "text.txt" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-3 }
batch = { micro_batch = 4 }
commit = { granularity = "step" }
checkpoint = { every = $steps }
JOB
"$command" key new chip.key --name chip.example --quiet >/dev/null
"$command" monitor agent --socket chip.sock --log chip.log --key chip.key --serial bench --rate "$rate" >said.txt &
agent=$!
until [ -S chip.sock ]; do sleep 0.05; done

train() { # NAME [OPTION...]: the seconds between the first step and the last, as the command measures them
  local name=$1
  shift
  "$command" train job.toml --out "$name" "${engine[@]}" --json "$@" 2>/dev/null |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["seconds"])'
}

for turn in $(seq "$turns"); do
  without=$(train "without-$turn")
  with=$(train "with-$turn" --agent chip.sock)
  echo "turn $turn: without $without s, with $with s" | tee -a times.txt
done
kill "$agent"
wait "$agent"
python3 - "$turns" "$(stat -c %s without-1/checkpoints/step-000000000.safetensors)" <<'REPORT'
import re
import sys
from statistics import median

turns, size = map(int, sys.argv[1:])
rows = [[float(number) for number in re.findall(r"([0-9.]+) s", line)] for line in open("times.txt")]
without, with_agent = (median(column) for column in zip(*rows))
snapshots = sum(" snapshot: " in line for line in open("said.txt")) / turns
print(f"median: without {without:.3f} s, with {with_agent:.3f} s, {snapshots:.1f} snapshots a training, of {size / 1e6:.1f} MB")
cost = (with_agent - without) / snapshots
most = (max(row[1] for row in rows) - min(row[0] for row in rows)) / snapshots
for what, cost in [("by the medians", cost), ("slowest turn with, fastest without", most)]:
    print(f"a snapshot, {what}: {1000 * cost:.1f} ms; a thousand a day: {100 * cost / 86.4:.4f} % of the time")
REPORT
