#!/bin/sh
# Trains a small GPT for STEPS steps (default 1000) with every native CPU kernel and every adapter. The CPU engine audits each run as a
# whole: a missing decision would end an audit. Usage: benches/rounding_misses.sh [STEPS [ADAPTER...]]. The variable TIEBREAK names a
# command to use instead of a release build.
set -eu
steps=${1:-1000}
[ $# -gt 0 ] && shift
cd "$(dirname "$0")/.."
tiebreak=${TIEBREAK:-$PWD/target/release/tiebreak}
[ -n "${TIEBREAK:-}" ] || cargo build --release --locked --quiet
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for bits in 16 32; do
    cat > "$work/job-$bits.toml" <<JOB
steps = $steps
clip_norm = 1.0
model = { kind = "gpt", context = 64, layers = 2, heads = 4, width = 64, dropout = 0.1 }
data = { kind = "bytes", path = "$PWD/assets/jobs/text/shakespeare.txt" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 2e-3, warmup = 50, floor = 2e-4 }
batch = { micro_batch = 8 }
checkpoint = { every = 250 }
rounding = { bits = $bits }
JOB
done
pair() { # name bits, then arguments of train
    name=$1 bits=$2
    shift 2
    "$tiebreak" -q train "$work/job-$bits.toml" --data-root assets/jobs/text --out "$work/run" "$@" > "$work/train.txt"
    "$tiebreak" audit "$work/run" --verdict "$work/verdict.json" > "$work/audit.txt" 2> "$work/audit.log" || { cat "$work/audit.txt"; exit 1; }
    echo "$bits bits, $name: $(head -1 "$work/audit.txt" | cut -d: -f1), $(grep 'rounding log' "$work/audit.txt")"
    rm -r "$work/run"
}
for native in gemm sequential sequential-fma interleaved interleaved-fma; do
    pair "cpu $native" 16 --native $native
    pair "cpu $native" 32 --native $native
done
for adapter in "$@"; do
    pair "wgpu $adapter" 16 --engine wgpu --adapter "$adapter"
done
