# Sourced by check-on-gpu.sh: whether the bits are those of every other engine. What is short and tells most comes first: the kernels that are written by
# hand, then a training on CUDA against one on the CPU.

steps=100
[ -n "$small" ] && steps=3
cat > "$work/job.toml" <<JOB
steps = $steps
clip_norm = 1.0
model = { kind = "gpt", context = 64, layers = 2, heads = 4, width = 64, dropout = 0.1 }
data = { kind = "bytes", path = "$PWD/assets/jobs/text/shakespeare.txt" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 2e-3, warmup = 2, floor = 2e-4 }
batch = { micro_batch = 4, micro_batches = 2 }
checkpoint = { every = $steps }
JOB
{ cat "$work/job.toml"; printf '[rounding]\nbits = 32\n'; } > "$work/job64.toml"

# trained NAME RUN OPTION...: a training into $work/RUN.
trained() { check 120 "$steps steps $1" "$tiebreak" -q train "$work/job.toml" --data-root assets/jobs/text --out "$work/$2" "${@:3}"; }
equal() { check 30 "the states of $1 and $2 are equal" "$tiebreak" compare "$work/$1" "$work/$2"; }
# logged NAME JOB RUN OPTION...: a training with a log, and its audit by the CPU.
logged() {
  check 120 "logged profile: $1" "$tiebreak" -q train "$work/$2.toml" --data-root assets/jobs/text --out "$work/$3" --engine cuda "${@:4}" &&
    check 120 "the CPU audits it" "$tiebreak" -q audit "$work/$3"
}

beside 100 "a kernel of the library, driver and NVRTC (\`device\`)" "$here/device"
beside 150 "golden vectors and the scalar library (\`library\`)" "$here/library"
beside 150 "products on tensor cores (\`tensor_core\`)" "$here/tensor_core" --skip every_completion --skip whole_steps
beside 150 "the kernels about cuBLAS (\`native\`)" "$here/native" --skip nvrtc
trained "on the CPU" cpu &
wait
keep_logs
trained "on CUDA" cuda --engine cuda
equal cpu cuda
check 60 "CUDA audits the CPU's run" "$tiebreak" -q audit "$work/cpu" --engine cuda
keep_logs

# Beside the trainings below, until the end.
beside 300 "digitising by hand (\`quantise\`)" "$here/quantise" --skip every_kernel
beside 300 "attention and the like by one kernel (\`cuda_attention\`)" "$here/adapters" cuda_attention:: --ignored
beside 300 "the search for near ties (\`near\`)" "$here/near" --skip nvrtc
beside 200 "launches that come back as graphs (\`graphs\`)" "$here/graphs" on_a_gpu
beside 200 "copies that return at once (\`copies\`)" "$here/copies" on_a_gpu
fingerprint="one fingerprint on every engine (\`tiebreak adapters --test\`)"
check 200 "$fingerprint" "$tiebreak" adapters --test
require="cuda"
vulkan=$(grep -o 'wgpu: NVIDIA[^(]*' "$(log_of "$fingerprint")" | head -1 | sed 's/^wgpu: //; s/ *$//')
if [ -n "$vulkan" ]; then
  require="cuda,(Vulkan)"
else
  not_checked "the same GPU through Vulkan" "no NVIDIA adapter: a loader, libvulkan1, may be missing"
fi
TIEBREAK_REQUIRE_ADAPTERS=$require beside 300 "operand pairs, elementary functions, products, reductions, 50 steps, every operator and gradient (\`adapters\`)" \
  "$here/adapters" primitives:: operators::every_operator

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
wait
