#!/usr/bin/env bash
# Measures the cost of dividing a training over processes of one machine: seconds, and seconds of all processors. The training is 12
# steps of assets/jobs/shakespeare.toml with six micro-batches of two samples, by one process and by 2 and 3 ranks on the CPU engine, in
# turn. All must reach the same states. The start of processes is included. Usage: benches/ranks.sh [REPEATS]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet
tiebreak=target/release/tiebreak
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -e 's/^steps = .*/steps = 12/' -e 's/^micro_batch = .*/micro_batch = 2/' -e 's/^micro_batches = .*/micro_batches = 6/' \
    -e "s|^path = \"|path = \"$PWD/assets/jobs/|" assets/jobs/shakespeare.toml > "$work/job.toml"
TIMEFORMAT='%R s, %U user and %S system'
for repeat in $(seq "${1:-3}"); do
    for ranks in 1 2 3; do
        run=$work/run-$repeat-$ranks
        { time $tiebreak -q train "$work/job.toml" --data-root assets/jobs --out "$run" --ranks $ranks > /dev/null; } 2> "$work/time"
        echo "$ranks ranks: $(tail -1 "$work/time")"
        $tiebreak -q compare "$work/run-1-1" "$run" > "$work/compared" || { cat "$work/compared"; exit 1; }
    done
done
