#!/usr/bin/env bash
# Measures the memory of two ranks with and without --shard-optimizer: the most that was resident in the process of each rank, and the
# tensors that `train` plans with. The training is two steps of a perceptron of 50 million parameters with AdamW, on drawn images, on the CPU
# engine with one thread a rank. Both runs must have the same states. Usage: [TIEBREAK=...] benches/sharded_optimizer.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${TIEBREAK:-}" ]; then
  cargo build --release --quiet
  TIEBREAK=target/release/tiebreak
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$work" <<'END'
import struct, sys
with open(sys.argv[1] + "/images", "wb") as f:
    f.write(struct.pack(">4I", 0x803, 40, 8, 8) + bytes(i * i % 251 for i in range(40 * 64)))
with open(sys.argv[1] + "/labels", "wb") as f:
    f.write(struct.pack(">2I", 0x801, 40) + bytes(i * 7 % 10 for i in range(40)))
END
cat >"$work/job.toml" <<'END'
steps = 2
clip_norm = 1.0
[model]
kind = "mlp"
inputs = 64
hidden = [5000, 5000, 5000]
classes = 10
[data]
kind = "idx"
images = "images"
labels = "labels"
[optimizer]
kind = "adamw"
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1
[schedule]
peak = 1e-3
[batch]
micro_batch = 1
micro_batches = 2
END
measured() { # name, command... : runs the command and prints the most that was resident in its process
  python3 -c 'import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
print(f"{sys.argv[1]}: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024} MiB resident at most")
sys.exit(code)' "$@"
}
port=29417
for option in "" --shard-optimizer; do
  run=$work/run$option
  at=127.0.0.1:$((port++))
  two=(--ranks 2 --coordinator "$at" --threads 1)
  measured "rank 1 ${option:-without the option}" "$TIEBREAK" train "${two[@]}" --rank 1 &
  # Two runs of a job have other identities, but the same states.
  measured "rank 0 ${option:-without the option}" "$TIEBREAK" train "$work/job.toml" --out "$run" "${two[@]}" --rank 0 $option 2>"$work/said"
  wait
  grep -E "tensors of a step|a rank holds" "$work/said"
done
"$TIEBREAK" -q compare "$work/run" "$work/run--shard-optimizer"
