#!/usr/bin/env bash
# Tries check-on-gpu.sh without a GPU. First with programs that do nothing but end as they are told: what a check finds, what it leaves in the results and
# how the script ends, for every way in which a program can fail. Half a minute; the test suite runs this (tests/check_on_gpu.rs). With `whole` also each call
# with the real programs over the stand-in that shim/driver.cpp is, whose path TIEBREAK_CUDA_DRIVER gives: minutes.
#
#   cuda-bridge/check-on-gpu.sh rehearse [whole]
set -uo pipefail
cd "$(dirname "$0")/../.."
script=cuda-bridge/check-on-gpu.sh
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
wrong=0
mkdir "$place/programs" "$place/bin"

# A program that plays all of them: it ends as the line of $PLAN says that begins with its name and what it is called with.
cat > "$place/programs/one" <<'STUB'
#!/usr/bin/env bash
call="${0##*/} $*"
while IFS='|' read -r pattern what; do
  [[ $call == $pattern ]] || continue
  case $what in
    hang) echo "$call hangs"; [ -z "${MARK:-}" ] || : > "$MARK"; exec sleep 300 ;;
    crash) echo "$call says why it failed" >&2; kill -SEGV $$ ;;
    exit*) echo "$call says why it failed" >&2; exit "${what#exit }" ;;
    say*) echo "${what#say }" ;;
  esac
done <<< "${PLAN:-}"
case $call in
  *selftest*) echo '{ "engine": "cuda: played GPU (driver 0.1)", "matches": true }' ;;
  "tiebreak adapters --test") echo "cuda: played GPU"; echo "wgpu: NVIDIA played (Vulkan)" ;;
  nccl*) echo "NCCL 2.27.3 with 2 GPUs" ;;
  cuda*) echo '{"kind": "micro", "name": "played", "value": 1.0, "unit": "TOPS"}' ;;
esac
exit 0
STUB
chmod +x "$place/programs/one"
for name in tiebreak cuda adapters library device native near quantise tensor_core graphs copies nccl; do
  cp "$place/programs/one" "$place/programs/$name"
done
# Its tools: they run what they are given.
cat > "$place/bin/compute-sanitizer" <<'STUB'
#!/usr/bin/env bash
[ -n "${SANITIZER_SAYS:-}" ] && { echo "$SANITIZER_SAYS"; exit 1; }
while [[ $1 == --* ]]; do shift 2; done
exec "$@"
STUB
cat > "$place/bin/ncu" <<'STUB'
#!/usr/bin/env bash
while [ "$1" != --log-file ]; do shift; done
cat > "$2" <<'CSV'
==PROF== Connected to process 1
"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","k_main","(4, 1, 1)","Duration","us","12.5"
"0","k_main","(4, 1, 1)","Memory Throughput","%","61.0"
"0","k_main","(4, 1, 1)","Registers Per Thread","register/thread","32"
"1","k_product_2x2","(64, 1, 1)","Duration","ms","1.5"
CSV
shift 2
exec "$@"
STUB
chmod +x "$place/bin"/*

# call PART [VARIABLE=VALUE...]: runs a call; its status is in $status, and what it left in $found.
call() {
  local part=$1
  shift
  found=$place/found
  rm -rf "$found"
  status=0
  env TIEBREAK_CHECK_PROGRAMS="$place/programs" PATH="$place/bin:$PATH" "$@" "$script" "$part" "$found" > "$place/printed" 2>&1 || status=$?
}

# must NAME CONDITION...: says whether it holds.
must() {
  local name=$1
  shift
  if "$@"; then
    echo "as it should be: $name"
  else
    echo "WRONG: $name"
    sed 's/^/    /' "$place/printed" | tail -40
    wrong=1
  fi
}
reported() { grep -qE -- "$1" "$found"/*-check-"$part".md; }
kept() { tar -tzf "$found"/*-check-"$part".logs.tar.gz > "$place/logs" && grep -q "$1" "$place/logs"; }
few_files() { [ "$(find "$found" -mindepth 1 | wc -l)" -le 8 ] && [ -z "$(find "$found" -mindepth 1 | sed 's|.*/||' | tr -d 'a-zA-Z0-9._\n-')" ]; }
failed_with() { [ "$status" = "$1" ]; }

for part in 1 2 3; do
  call "$part"
  must "call $part passes where everything passes" failed_with 0
  must "call $part says so" reported '^Every check passed'
  must "call $part leaves no failure" eval '! reported FAILED'
  must "call $part leaves at most eight files with plain names" few_files
  must "call $part keeps its logs" kept self-test

  call "$part" PLAN='tiebreak selftest*|exit 3'
  must "call $part ends where the engine cannot be used" failed_with 1
  must "call $part keeps what the engine said" reported 'tiebreak selftest .* says why it failed'
  must "call $part says that it ended early" reported 'ENDED EARLY'

  # In the middle, by the signal of whoever lends the machine.
  rm -rf "$place/found"
  found=$place/found
  rm -f "$place/mark"
  env TIEBREAK_CHECK_PROGRAMS="$place/programs" PATH="$place/bin:$PATH" MARK="$place/mark" PLAN=$'cuda micro*|hang\nlibrary*|hang\ncuda profile*|hang' \
    "$script" "$part" "$found" > "$place/printed" 2>&1 &
  pid=$!
  for _ in $(seq 600); do
    [ -e "$place/mark" ] && break
    sleep 0.1
  done
  kill -TERM "$pid"
  status=0
  wait "$pid" || status=$?
  must "call $part ends on SIGTERM" failed_with 143
  must "call $part says that it was stopped" reported 'STOPPED.*SIGTERM'
  must "call $part keeps what was checked before" reported 'passed, .* self-test'
  [ "$part" = 1 ] && must "what was measured before is in the tables" reported '\| played \| 1.00 \| TOPS \|'
  must "call $part keeps the logs of what ran" kept self-test
done

part=1
call 1 PLAN='cuda --nodes|exit 7'
must "a measurement that fails fails the call" failed_with 1
must "it is reported with its log" reported 'cuda --nodes says why it failed'
must "the measurements after it are made" reported 'passed, .* the logged step'
must "those before it are in the tables" reported '\| played \| 1.00 \| TOPS \|'
call 1 PLAN='cuda products*|crash'
must "a crash fails the call" failed_with 1
must "the crash is reported" reported 'FAILED.*exit 139'

part=2
call 2 PLAN='near*|exit 101'
must "a check that fails fails the call" failed_with 1
must "it is reported with its log" reported 'near .*says why it failed'
must "its log is kept" kept near-ties
mv "$place/programs/quantise" "$place/quantise"
call 2
mv "$place/quantise" "$place/programs/quantise"
must "a program that is missing fails the call" failed_with 1
must "it is reported as missing" reported 'no such program.*quantise'
call 2 TIEBREAK_CHECK_SECONDS=6 PLAN='library*|hang'
must "a program that hangs fails the call" failed_with 1
must "it is reported" reported 'NOT DONE.* in time.*library'
must "so is what there was no time for" reported 'no time was left'
call 2 PLAN='tiebreak compare*|exit 1'
must "states that differ fail the call" failed_with 1
call 2 PLAN='tiebreak adapters*|exit 0'
must "without Vulkan the call passes, and says what it left out" reported 'NOT CHECKED .*Vulkan'
call 2 PLAN='nccl*|say NOT CHECKED: no NCCL here'

part=3
call 3 SANITIZER_SAYS='========= Error: Device not supported'
must "a tool that cannot look is no failure" failed_with 0
must "it is said" reported 'NOT CHECKED .compute-sanitizer: Device not supported'
call 3 SANITIZER_SAYS='========= ERROR SUMMARY: 3 errors'
must "errors that a tool finds fail the call" failed_with 1
must "they are reported" reported 'ERROR SUMMARY: 3 errors'
must "the largest kernels are a table" reported 'k_product_2x2.*1500.0'
mv "$place/bin" "$place/hidden"
call 3
mv "$place/hidden" "$place/bin"
must "missing tools are no failure" failed_with 0
must "each is said" reported 'NOT CHECKED .there is no ncu here'

# What the call's own lines say of use.
status=0
"$script" 4 > "$place/printed" 2>&1 || status=$?
must "another number is refused" failed_with 2

if [ "${1:-}" = whole ]; then
  for part in 1 2 3; do
    call "$part" TIEBREAK_CHECK_PROGRAMS="${TIEBREAK_CHECK_PROGRAMS:-}" TIEBREAK_CHECK_SMALL=1 TIEBREAK_CHECK_SECONDS=3000
    cat "$found"/*.md
    must "call $part passes over the stand-in" failed_with 0
  done
  part=2
  call 2 TIEBREAK_CHECK_PROGRAMS="${TIEBREAK_CHECK_PROGRAMS:-}" TIEBREAK_NVRTC=/nowhere/libnvrtc.so.13
  must "without NVRTC the call ends" failed_with 1
  must "with NVRTC's absence in the report" reported 'there is no such file.*pip install nvidia-cuda-nvrtc'
fi
[ "$wrong" = 0 ] && echo "the rehearsal went as it should"
exit "$wrong"
