# Sourced by check-on-gpu.sh: how fast, what informs most first. Alone on the machine: nothing runs beside it.

bench=$here/cuda
measure 120 "the target: a step with two digits (\`target\`)" "$bench" ${small:+--small} target
measure 40 "the GPU's ceilings (\`micro\`)" "$bench" ${small:+--small} micro
measure 100 "peers: cuBLASLt, PyTorch" python3 benches/cuda_peers.py ${small:+--small}
measure 60 "launch by launch (\`--nodes\`)" "$bench" ${small:+--small} --nodes
measure 100 "products, attention" "$bench" ${small:+--small} products attention
measure 90 "steps with other digits" "$bench" ${small:+--small} steps

through="steps through Vulkan, rows at once and node by node (\`step\`)"
if "$tiebreak" adapters 2> /dev/null | grep -q 'NVIDIA.*Vulkan'; then
  if check 90 "$through" "$here/step" d=2,3 --adapter=NVIDIA; then
    note "$(grep -E 'rows |per step' "$(log_of "$through")" | sed 's/^ */    /')"
  fi
else
  not_checked "$through" "no NVIDIA adapter: a loader, libvulkan1, may be missing"
fi

# Last, since a step of it takes most of a minute.
measure 180 "the logged step" "$bench" ${small:+--small} logged
