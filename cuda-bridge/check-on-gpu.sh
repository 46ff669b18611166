#!/usr/bin/env bash
# Everything that needs a real NVIDIA GPU, in three calls for a machine that is lent for minutes at a time:
#
#   cuda-bridge/check-on-gpu.sh 1 [FOLDER]     speed, at most 8 minutes: the GPU's own ceilings, a step of GPT-2, PyTorch beside it, launch by launch
#   cuda-bridge/check-on-gpu.sh 2 [FOLDER]     bits, at most 6 minutes: every kernel and operator, whole trainings on CPU, CUDA and Vulkan, logged, by NCCL
#   cuda-bridge/check-on-gpu.sh 3 [FOLDER]     tools, at most 6 minutes: compute-sanitizer, Nsight Compute on the largest kernels, variants
#   cuda-bridge/check-on-gpu.sh --pack         where there is cargo: leaves the programs in gpu-check.tar.xz, for a machine without
#   cuda-bridge/check-on-gpu.sh rehearse       tries all of this without a GPU, with failures; `rehearse whole` also runs the real programs over
#                                              the stand-in that shim/driver.cpp is
#
# Results go to FOLDER, else to the folder that OUT names, else to benches/results, as they come: DATE-check-N.md with a line for each check and the end of
# the log of each that failed, DATE-check-N.jsonl with what was measured, DATE-check-N.logs.tar.gz with all logs, written on every way out. The exit status is 0 if
# every check passed. What a missing tool leaves out is said, NOT CHECKED, and is no failure.
#
# Takes the programs that --pack left, or builds them with cargo. Needs the driver, NVRTC and cuBLAS (CUDA's, PyTorch's, or as TIEBREAK_NVRTC and TIEBREAK_CUBLAS
# say). TIEBREAK_CHECK_SMALL=1 makes everything small, for the stand-in. TIEBREAK_CHECK_PROGRAMS names a folder with the programs, instead of the pack,
# and TIEBREAK_CHECK_SECONDS another limit.
set -uo pipefail
cd "$(dirname "$0")/.."

programs="adapters library device native near quantise tensor_core graphs copies nccl"

# What cargo built: the programs under names without hashes, stripped, in gpu-check/.
build() {
  set -e
  rm -rf gpu-check && mkdir gpu-check
  local bridge=()
  for name in $programs; do
    [ "$name" = adapters ] || bridge+=(--test "$name")
  done
  executables=$(cargo test --no-run --locked --test adapters --message-format=json &&
    cargo test --no-run --locked -p cuda-bridge "${bridge[@]}" --message-format=json &&
    cargo bench --no-run --locked --bench cuda --bench step --message-format=json) 2> gpu-check/build.log || {
    cat gpu-check/build.log >&2
    exit 1
  }
  rm gpu-check/build.log
  # A benchmark's build makes the command too, in release: once, where a build of its own would have other features and all dependencies twice.
  cp "${CARGO_TARGET_DIR:-target}/release/tiebreak" gpu-check/
  for name in $programs cuda step; do
    path=$(printf '%s\n' "$executables" | grep -o "\"executable\":\"[^\"]*/$name-[0-9a-f]*\"" | tail -1 | cut -d'"' -f4)
    [ -n "$path" ] || { echo "cargo built no $name" >&2; exit 1; }
    cp "$path" "gpu-check/$name"
  done
  strip gpu-check/*
  set +e
}

case ${1:-} in
  1 | 2 | 3) ;;
  --pack)
    build
    # A window of 64 MiB: the programs have most of their code in common.
    XZ_OPT=-9 tar -cJf gpu-check.tar.xz gpu-check
    rm -rf gpu-check
    ls -l gpu-check.tar.xz
    exit
    ;;
  rehearse) exec cuda-bridge/check/rehearse.sh "${@:2}" ;;
  *)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' cuda-bridge/check-on-gpu.sh >&2
    exit 2
    ;;
esac
part=$1
results=${2:-${OUT:-benches/results}}
. cuda-bridge/check/frame.sh
case $part in
  1) seconds=465 ;;
  2) seconds=345 ;;
  3) seconds=345 ;;
esac
begin "${TIEBREAK_CHECK_SECONDS:-$seconds}"

here=${TIEBREAK_CHECK_PROGRAMS:-}
if [ -z "$here" ]; then
  here=$PWD/gpu-check
  if [ -f gpu-check.tar.xz ]; then
    note "The programs of gpu-check.tar.xz, packed $(date -r gpu-check.tar.xz)."
    # Some machines have no xz, and Python brings its own.
    tar -xJf gpu-check.tar.xz 2> /dev/null || python3 -m tarfile -e gpu-check.tar.xz . || give_up "gpu-check.tar.xz cannot be unpacked"
  elif command -v cargo > /dev/null; then
    build
  else
    give_up "there is no cargo here, and no gpu-check.tar.xz: run cuda-bridge/check-on-gpu.sh --pack where there is one"
  fi
fi
tiebreak=$here/tiebreak
small=${TIEBREAK_CHECK_SMALL:-}

. cuda-bridge/check/probe.sh
case $part in
  1) . cuda-bridge/check/speed.sh ;;
  2) . cuda-bridge/check/bits.sh ;;
  3) . cuda-bridge/check/tools.sh ;;
esac
finished=yes
