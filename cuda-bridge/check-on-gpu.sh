#!/usr/bin/env bash
# Everything that needs a real NVIDIA GPU, in one call of under eight minutes: bits on CUDA and, if there is a Vulkan loader, on the
# same GPU through Vulkan; a training of 100 steps on CPU, CUDA and Vulkan; benchmarks beside PyTorch. Writes
# benches/results/DATE-GPU.md, or FOLDER/DATE-GPU.md, and says at the end whether every check passed (exit status 0).
#
#   cuda-bridge/check-on-gpu.sh [FOLDER]       on the GPU's machine; takes what --pack left, or builds with cargo
#   cuda-bridge/check-on-gpu.sh --pack         where there is cargo: leaves the programs in gpu-check.tar.xz, for a machine without
#
# Needs the driver, NVRTC and cuBLAS (CUDA's, PyTorch's, or as TIEBREAK_NVRTC and TIEBREAK_CUBLAS say) and, for the golden vectors, a C++ compiler.
# NCCL (likewise, TIEBREAK_NCCL) is checked if it is there: with one GPU that it loads, with two or more a training over it.
# TIEBREAK_CHECK_SMALL=1 tries the script itself where there is no GPU, over the stand-in that shim/driver.cpp is: every check, with 3 steps in place
# of 100 and small benchmarks.
set -uo pipefail
cd "$(dirname "$0")/.."

programs="adapters cuda_attention library device native near quantise graphs copies nccl"

# What cargo built: the programs under names without hashes, stripped, in gpu-check/.
build() {
  set -e
  rm -rf gpu-check && mkdir gpu-check
  cargo build --release --locked
  cp target/release/tiebreak gpu-check/
  executables=$(cargo test --no-run --locked --test adapters --test cuda_attention --message-format=json &&
    cargo test --no-run --locked -p cuda-bridge --test library --test device --test native --test near --test quantise --test graphs --test copies --test nccl --message-format=json &&
    cargo bench --no-run --locked --bench cuda --message-format=json) 2> gpu-check/build.log || {
    cat gpu-check/build.log >&2
    exit 1
  }
  rm gpu-check/build.log
  for name in $programs cuda; do
    path=$(printf '%s\n' "$executables" | grep -o "\"executable\":\"[^\"]*/$name-[0-9a-f]*\"" | tail -1 | cut -d'"' -f4)
    [ -n "$path" ] || { echo "cargo built no $name" >&2; exit 1; }
    cp "$path" "gpu-check/$name"
  done
  strip gpu-check/*
  set +e
}

if [ "${1:-}" = --pack ]; then
  build
  tar -cJf gpu-check.tar.xz gpu-check
  rm -rf gpu-check
  ls -l gpu-check.tar.xz
  exit
fi

if [ -f gpu-check.tar.xz ]; then
  echo "the programs of gpu-check.tar.xz, packed $(date -r gpu-check.tar.xz)"
  tar -xJf gpu-check.tar.xz
elif command -v cargo >/dev/null; then
  build
else
  echo "there is no cargo here, and no gpu-check.tar.xz: run cuda-bridge/check-on-gpu.sh --pack where there is one" >&2
  exit 1
fi

results=${1:-benches/results}
mkdir -p "$results"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiebreak=$PWD/gpu-check/tiebreak
small=${TIEBREAK_CHECK_SMALL:-}
number=100
# When the whole has to be over, in seconds from its start.
deadline=465
fail() { touch "$work/failed"; }
# row TEXT: a line of the report's table, in the order in which checks were begun.
row() { printf '%s\n' "$1" > "$work/row-$number"; }

# PyTorch brings an NVRTC, a cuBLAS and an NCCL that no loader's path names.
for library in nvrtc cublas nccl; do
  variable=TIEBREAK_${library^^}
  [ -n "${!variable:-}" ] && continue
  version='1[0-9]'
  [ "$library" = nccl ] && version=2
  found=$(python3 - "lib$library.so.$version" 2>/dev/null <<'PY'
import pathlib, sys
for root in sys.path:
    for path in sorted(pathlib.Path(root or ".").glob("nvidia/*/lib/" + sys.argv[1])):
        print(path)
PY
)
  found=$(printf '%s\n' "$found" | tail -1)
  [ -n "$found" ] && export "$variable=$found"
done

# checked NAME COMMAND...: runs it until the deadline at most, and keeps its output in the results' folder if it fails.
checked() {
  local name=$1 begin=$SECONDS log=$work/log-$number status=0
  shift
  timeout $((deadline > SECONDS ? deadline - SECONDS : 1)) "$@" > "$log" 2>&1 || status=$?
  local result=passed
  if [ "$status" != 0 ]; then
    result="**FAILED** (exit $status)"
    [ "$status" = 124 ] && result="**NOT DONE** in time"
    fail
    cp "$log" "$results/failed-$number.log"
    tail -15 "$log"
  fi
  echo "$name: $result, $((SECONDS - begin)) s"
  row "| $name | $result | $((SECONDS - begin)) |"
}
check() { number=$((number + 1)); checked "$@"; }
# The same beside what follows, until `wait`.
beside() { number=$((number + 1)); checked "$@" & }

echo "== what is here"
timeout 120 "$tiebreak" selftest --engine cuda --json > "$work/selftest.json" 2> "$work/selftest.txt"
name=$(grep '"engine"' "$work/selftest.json" | cut -d'"' -f4)
if [ -z "$name" ] || grep -q '"matches": false' "$work/selftest.json"; then
  cat "$work/selftest.txt"
  echo "the engine is not usable here; what its kernels and the library do alone:"
  TIEBREAK_REQUIRE_GPU=1 timeout 60 gpu-check/device 2>&1 | tail -20
  TIEBREAK_REQUIRE_GPU=1 timeout 200 gpu-check/library 2>&1 | tail -60
  exit 1
fi
echo "$name; NVRTC: ${TIEBREAK_NVRTC:-as the loader finds it}"
timeout 120 "$tiebreak" adapters 2>/dev/null | tee "$results/adapters.txt"
require="cuda"
vulkan=$(grep -o 'wgpu: NVIDIA[^(]*' "$results/adapters.txt" | head -1 | sed 's/^wgpu: //; s/ *$//')
if [ -n "$vulkan" ]; then
  require="cuda,(Vulkan)"
else
  echo "NOT CHECKED: no NVIDIA adapter through Vulkan here (a loader, libvulkan1, may be missing)"
  row "| the same GPU through Vulkan | not here | |"
fi
export TIEBREAK_REQUIRE_ADAPTERS=$require TIEBREAK_REQUIRE_GPU=1

echo "== bits"
beside "one fingerprint on every engine (\`tiebreak adapters\`)" "$tiebreak" adapters
beside "a kernel of the library, driver and NVRTC (\`device\`)" gpu-check/device
beside "the kernels about cuBLAS, and the search for near ties (\`native\`, \`near\`)" sh -c "gpu-check/native && gpu-check/near"
beside "launches that come back as graphs (\`graphs\`)" gpu-check/graphs on_a_gpu
beside "copies that return at once (\`copies\`)" gpu-check/copies on_a_gpu
beside "attention and the like by one kernel (\`cuda_attention\`)" gpu-check/cuda_attention --ignored
beside "digitising by hand (\`quantise\`)" gpu-check/quantise --skip every_kernel
beside "golden vectors and the scalar library (\`library\`)" gpu-check/library
beside "operand pairs, elementary functions, products, reductions, 50 steps, every operator and gradient (\`adapters\`)" \
  gpu-check/adapters primitives operators::every_operator

wait

echo "== a training of 100 steps"
steps=100
[ -n "$small" ] && steps=3
cat > "$work/job.toml" <<JOB
steps = $steps
clip_norm = 1.0
model = { kind = "gpt", context = 64, layers = 2, heads = 4, width = 64, dropout = 0.1 }
data = { kind = "bytes", path = "$PWD/assets/text/shakespeare.txt" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 2e-3, warmup = 2, floor = 2e-4 }
batch = { micro_batch = 4, micro_batches = 2 }
checkpoint = { every = $steps }
JOB
check "$steps steps on the CPU" "$tiebreak" -q train "$work/job.toml" --out "$work/cpu"
check "$steps steps on CUDA" "$tiebreak" -q train "$work/job.toml" --out "$work/cuda" --engine cuda
check "their states are equal" "$tiebreak" compare "$work/cpu" "$work/cuda"
check "$steps steps by two ranks on one GPU" "$tiebreak" -q train "$work/job.toml" --out "$work/ranks" --engine cuda --ranks 2
check "their states are equal too" "$tiebreak" compare "$work/cpu" "$work/ranks"
# What the library says of itself and of the GPUs here, and whether bytes go among them.
number=$((number + 1))
if timeout 120 gpu-check/nccl on_gpus --nocapture > "$work/nccl.txt" 2>&1; then
  said=$(grep -oE 'NCCL [0-9.]+ with .*|NOT CHECKED: .*' "$work/nccl.txt" | head -1 | cut -c 1-150)
else
  said="**FAILED**"
  fail
  cp "$work/nccl.txt" "$results/failed-$number.log"
  tail -15 "$work/nccl.txt"
fi
echo "NVIDIA's NCCL: $said"
row "| NVIDIA's NCCL (\`nccl\`) | $said | |"
gpus=$(sed -nE 's/.*NCCL [0-9.]+ with ([0-9]+) GPUs.*/\1/p' "$work/nccl.txt")
if [ "${gpus:-0}" -ge 2 ]; then
  check "$steps steps by two ranks over NCCL" "$tiebreak" -q train "$work/job.toml" --out "$work/nccl" --engine cuda --ranks 2 --transport nccl
  check "their states are equal too" "$tiebreak" compare "$work/cpu" "$work/nccl"
else
  number=$((number + 1))
  echo "NOT CHECKED: two ranks over NCCL, which takes two GPUs here and the library"
  row "| $steps steps by two ranks over NCCL | not here: it takes two GPUs and the library | |"
fi
check "CUDA audits the CPU's run" "$tiebreak" -q audit "$work/cpu" --engine cuda
if [ -n "$vulkan" ]; then
  check "$steps steps on the GPU through Vulkan" "$tiebreak" -q train "$work/job.toml" --out "$work/vulkan" --engine wgpu --adapter "$vulkan"
  check "its states are equal too" "$tiebreak" compare "$work/cpu" "$work/vulkan"
fi
for kernels in cublas cublas-tf32 cublas-binary32; do
  check "logged profile: \`--native $kernels\`, audited by the CPU" sh -c "'$tiebreak' -q train '$work/job.toml' --out '$work/$kernels' --profile logged --engine cuda --native $kernels && '$tiebreak' -q audit '$work/$kernels'"
done
{ cat "$work/job.toml"; printf '[rounding]\nbits = 32\n'; } > "$work/job64.toml"
check "logged profile: binary64 by cuBLAS on the binary32 grid, audited by the CPU" sh -c "'$tiebreak' -q train '$work/job64.toml' --out '$work/binary64' --engine cuda --native cublas && '$tiebreak' -q audit '$work/binary64'"
check "logged profile: plain f32 kernels on CUDA, audited by the CPU" sh -c "'$tiebreak' -q train '$work/job.toml' --out '$work/logged' --profile logged --engine cuda && '$tiebreak' -q audit '$work/logged'"

echo "== benchmarks"
# Alone on the machine: nothing runs beside it.
check "benchmark of the CUDA engine" sh -c "gpu-check/cuda ${small:+--small} > '$work/ours.jsonl'"
checks=$work/checks.md
{ printf '## Checks\n\n| check | result | s |\n| --- | --- | --- |\n'; cat "$work"/row-*; } > "$checks"
gpu=$(printf '%s' "$name" | sed 's/^cuda: //; s/ (.*//' | tr -c 'a-zA-Z0-9\n' -)
timeout $((deadline + 15 > SECONDS ? deadline + 15 - SECONDS : 1)) python3 benches/cuda_report.py --ours "$work/ours.jsonl" --checks "$checks" --out "$results/$(date +%F)-$gpu.md" || {
  fail
  cp "$checks" "$results/$(date +%F)-$gpu.md" # what was checked, at least
}
cp "$work/ours.jsonl" "$results/$(date +%F)-$gpu.jsonl"
rm -f "$results/adapters.txt"
if [ -e "$work/failed" ]; then
  echo "SOMETHING FAILED: see above, and $results/failed-*.log"
  exit 1
fi
echo "every check passed"
