# Sourced by check-on-gpu.sh: what is here, in ten seconds, and whether the engine can be used at all.

# CUDA's tools need not be on the path.
for folder in /usr/local/cuda/bin /opt/nvidia/nsight-compute/*; do
  [ -d "$folder" ] && PATH=$PATH:$folder
done

# PyTorch brings an NVRTC, a cuBLAS and an NCCL that no loader's path names. Of several the first that works is taken.
wheels=$(python3 - 2> /dev/null <<'PY'
import pathlib, sys
print(":".join(dict.fromkeys(str(path) for root in sys.path for path in sorted(pathlib.Path(root or ".").glob("nvidia/*/lib")))))
PY
)
for library in nvrtc cublas nccl; do
  variable=TIEBREAK_${library^^}
  [ -n "${!variable:-}" ] && continue
  found=
  IFS=: read -ra folders <<< "$wheels:/usr/local/cuda/lib64"
  for folder in "${folders[@]}"; do
    ls "$folder/lib$library.so"* > /dev/null 2>&1 && found+=$folder:
  done
  # Then those that the loader finds by their names.
  [ -n "$found" ] && case $library in
    nccl) export "$variable=${found}libnccl.so.2" ;;
    *) export "$variable=${found}lib$library.so.13:lib$library.so.12" ;;
  esac
done

{
  printf '\n```\n'
  timeout 10 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit --format=csv 2>&1 | head -5
  for tool in nvcc ncu compute-sanitizer c++ python3; do printf '%s: %s\n' "$tool" "$(command -v "$tool" || echo none)"; done
  timeout 60 python3 -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda)' 2>&1 | tail -1
  printf 'NVRTC: %s\ncuBLAS: %s\nNCCL: %s\n' "${TIEBREAK_NVRTC:-by the loader}" "${TIEBREAK_CUBLAS:-by the loader}" "${TIEBREAK_NCCL:-by the loader}"
  uname -srm
  printf '```\n'
} > "$work/here" 2>&1
cat "$work/here"
cat "$work/here" >> "$report"
printf '\n' >> "$report"

export TIEBREAK_REQUIRE_GPU=1
selftest() { "$tiebreak" selftest --engine cuda --json > "$work/selftest.json"; }
export -f selftest
export tiebreak work
if ! check 120 "the engine's self-test" bash -c selftest || grep -q '"matches": false' "$work/selftest.json"; then
  check 60 "what a kernel does alone (\`device\`)" "$here/device" --nocapture
  check 100 "what the library does alone (\`library\`)" "$here/library"
  give_up "the engine cannot be used here"
fi
note "$(grep '"engine"' "$work/selftest.json" | cut -d'"' -f4)"
printf '\n' >> "$report"
