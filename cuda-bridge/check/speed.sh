# Sourced by check-on-gpu.sh: how fast, what informs most first. Alone on the machine: nothing runs beside it.

bench=$here/cuda
measure 120 "the target: a step with two digits (\`target\`)" "$bench" ${small:+--small} target
measure 40 "the GPU's ceilings (\`micro\`)" "$bench" ${small:+--small} micro
measure 100 "peers: cuBLASLt, PyTorch" python3 benches/cuda_peers.py ${small:+--small}
measure 60 "launch by launch (\`--nodes\`)" "$bench" ${small:+--small} --nodes
measure 60 "products, attention" "$bench" ${small:+--small} products attention
measure 90 "steps with other digits" "$bench" ${small:+--small} steps
measure 90 "the logged step" "$bench" ${small:+--small} logged
