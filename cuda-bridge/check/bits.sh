# Sourced by check-on-gpu.sh: whether the bits are those of every other engine.

adapters=$logs/adapters.txt
timeout 60 "$tiebreak" adapters > "$adapters" 2> /dev/null
require="cuda"
vulkan=$(grep -o 'wgpu: NVIDIA[^(]*' "$adapters" | head -1 | sed 's/^wgpu: //; s/ *$//')
if [ -n "$vulkan" ]; then
  require="cuda,(Vulkan)"
else
  not_checked "the same GPU through Vulkan" "no NVIDIA adapter: a loader, libvulkan1, may be missing"
fi
export TIEBREAK_REQUIRE_ADAPTERS=$require

beside 200 "a kernel of the library, driver and NVRTC (\`device\`)" "$here/device"
beside 300 "golden vectors and the scalar library (\`library\`)" "$here/library"
beside 300 "products on tensor cores (\`tensor_core\`)" "$here/tensor_core" --skip every_completion --skip whole_steps
beside 300 "digitising by hand (\`quantise\`)" "$here/quantise" --skip every_kernel
beside 300 "attention and the like by one kernel (\`cuda_attention\`)" "$here/cuda_attention" --ignored
beside 300 "the kernels about cuBLAS (\`native\`)" "$here/native" --skip nvrtc
beside 300 "the search for near ties (\`near\`)" "$here/near" --skip nvrtc
beside 200 "launches that come back as graphs (\`graphs\`)" "$here/graphs" on_a_gpu
beside 200 "copies that return at once (\`copies\`)" "$here/copies" on_a_gpu
beside 200 "one fingerprint on every engine (\`tiebreak adapters\`)" "$tiebreak" adapters
beside 300 "operand pairs, elementary functions, products, reductions, 50 steps, every operator and gradient (\`adapters\`)" \
  "$here/adapters" primitives operators::every_operator
wait
keep_logs

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
{ cat "$work/job.toml"; printf '[rounding]\nbits = 32\n'; } > "$work/job64.toml"

# trained NAME RUN OPTION...: a training into $work/RUN.
trained() { check 120 "$steps steps $1" "$tiebreak" -q train "$work/job.toml" --out "$work/$2" "${@:3}"; }
equal() { check 30 "the states of $1 and $2 are equal" "$tiebreak" compare "$work/$1" "$work/$2"; }
# logged NAME JOB RUN OPTION...: a training with a log, and its audit by the CPU.
logged() {
  check 120 "logged profile: $1" "$tiebreak" -q train "$work/$2.toml" --out "$work/$3" --engine cuda "${@:4}" &&
    check 120 "the CPU audits it" "$tiebreak" -q audit "$work/$3"
}

trained "on the CPU" cpu
trained "on CUDA" cuda --engine cuda
equal cpu cuda
check 60 "CUDA audits the CPU's run" "$tiebreak" -q audit "$work/cpu" --engine cuda
logged "plain f32 kernels on CUDA" job logged --profile logged
for kernels in cublas cublas-tf32 cublas-binary32; do
  logged "\`--native $kernels\`" job "$kernels" --profile logged --native "$kernels"
done
logged "binary64 by cuBLAS on the binary32 grid" job64 binary64 --native cublas
if [ -n "$vulkan" ]; then
  trained "on the GPU through Vulkan" vulkan --engine wgpu --adapter "$vulkan"
  equal cpu vulkan
fi
trained "by two ranks on one GPU" ranks --engine cuda --ranks 2
equal cpu ranks

# What the library says of itself and of the GPUs here, and whether bytes go among them.
nccl="NVIDIA's NCCL (\`nccl\`)"
gpus=0
if check 60 "$nccl" "$here/nccl" on_gpus --nocapture; then
  log=$(log_of "$nccl")
  note "$(grep -oE 'NCCL [0-9.]+ with .*|NOT CHECKED: .*' "$log" | head -1 | cut -c 1-300)"
  gpus=$(sed -nE 's/.*NCCL [0-9.]+ with ([0-9]+) GPUs.*/\1/p' "$log")
fi
if [ "${gpus:-0}" -ge 2 ]; then
  trained "by two ranks over NCCL" nccl --engine cuda --ranks 2 --transport nccl
  equal cpu nccl
else
  not_checked "two ranks over NCCL" "it takes two GPUs here and the library"
fi
