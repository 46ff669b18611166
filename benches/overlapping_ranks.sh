#!/usr/bin/env bash
# Measures what ranks gain by exchanging gradients while they compute: seconds of a step of two ranks over a slow link, with the exchange
# beside the computation and behind it (TIEBREAK_RANKS_BUCKET=0), in turn. The link is a relay on loopback that passes so many bytes a second
# in each direction. Steps are those of assets/jobs/shakespeare.toml with micro-batches of two samples: two of them, so one for each rank,
# and eight. A step's time is that of ten further steps, so without the start of processes. All runs of a job must have the same states.
# Usage: [TIEBREAK=...] benches/overlapping_ranks.sh [REPEATS] [BYTES_A_SECOND]
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${TIEBREAK:-}" ]; then
  cargo build --release --quiet
  TIEBREAK=target/release/tiebreak
fi
repeats=${1:-3} rate=${2:-4000000}
work=$(mktemp -d)
relay=
trap '[ -z "$relay" ] || kill "$relay"; rm -rf "$work"' EXIT
cat >"$work/relay.py" <<'END'
import socket, sys, threading, time

rate = int(sys.argv[1])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
listener.bind(("127.0.0.1", 0))
listener.listen(1)
print(listener.getsockname()[1], flush=True)
target = ("127.0.0.1", int(sys.argv[2]))

def carry(source, sink):
    free = time.monotonic()
    try:
        while data := source.recv(1 << 14):
            free = max(free, time.monotonic()) + len(data) / rate
            time.sleep(max(0, free - time.monotonic()))
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass

worker, _ = listener.accept()
while True:
    try:
        first = socket.create_connection(target)
        break
    except OSError:
        time.sleep(0.01)
first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
for end in worker, first:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
back = threading.Thread(target=carry, args=(first, worker))
back.start()
carry(worker, first)
back.join()
END
now() { python3 -c 'import time; print(time.monotonic())'; }
port=29430
trained() { # run, steps, micro-batches, environment... : trains over the link; sets `took`
  local run=$1 steps=$2 micro=$3 at=$((port++))
  shift 3
  sed -e "s/^steps = .*/steps = $steps/" -e 's/^micro_batch = .*/micro_batch = 2/' -e "s/^micro_batches = .*/micro_batches = $micro/" \
    -e "s|^path = \"|path = \"$PWD/assets/jobs/|" assets/jobs/shakespeare.toml >"$work/job.toml"
  rm -f "$work/port"
  python3 "$work/relay.py" "$rate" "$at" >"$work/port" &
  relay=$!
  until [ -s "$work/port" ]; do sleep 0.02; done
  local begin
  begin=$(now)
  "$TIEBREAK" -q train --ranks 2 --threads 1 --rank 1 --coordinator "127.0.0.1:$(cat "$work/port")" >/dev/null &
  env "$@" "$TIEBREAK" -q train "$work/job.toml" --data-root assets/jobs --out "$run" --ranks 2 --threads 1 --rank 0 \
    --coordinator "127.0.0.1:$at" >/dev/null
  took=$(python3 -c "print($(now) - $begin)")
  wait
  relay=
}
echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), $rate bytes a second each way"
for micro in 2 8; do
  for repeat in $(seq "$repeats"); do
    for way in beside behind; do
      variable=$([ $way = behind ] && echo TIEBREAK_RANKS_BUCKET=0 || echo _=_)
      run=$work/$micro-$repeat-$way
      trained "$run-short" 2 "$micro" "$variable"
      short=$took
      trained "$run" 12 "$micro" "$variable"
      python3 -c "print(f'$micro micro-batches, exchange $way the computation: {($took - $short) / 10:.3f} s a step')"
      "$TIEBREAK" -q compare "$work/$micro-1-beside" "$run" >"$work/compared" || { cat "$work/compared"; exit 1; }
    done
  done
done
