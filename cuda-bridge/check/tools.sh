# Sourced by check-on-gpu.sh: what NVIDIA's tools say of the kernels, then variants of the target's step.

# What a tool says when it cannot look at this GPU, or may not.
cannot='Device not supported|LibraryNotLoaded|ERR_NVGPUCTRPERM|Failed to initialize the profiler|is not supported on this'

# by_tool SECONDS TOOL NAME COMMAND...: a check by a tool, which may be missing or not work here.
by_tool() {
  local limit=$1 tool=$2 name=$3 start=$SECONDS log status=0 reason
  shift 3
  command -v "$tool" > /dev/null || { not_checked "$name" "there is no $tool here"; return 1; }
  log=$(log_of "$name")
  ran "$limit" "$log" "$@" || status=$?
  reason=$(grep -hoE "$cannot" "$log" "$work"/ncu.csv 2> /dev/null | head -1)
  if [ "$status" != 0 ] && [ -n "$reason" ]; then
    not_checked "$name" "$tool: $reason"
    return 1
  fi
  judged "$status" "$((SECONDS - start))" "$name" "$log"
}

for tool in memcheck racecheck; do
  by_tool 90 compute-sanitizer "$tool on the self-test" compute-sanitizer --tool "$tool" --error-exitcode 9 "$tiebreak" selftest --engine cuda
done

if by_tool 130 ncu "Nsight Compute on a step of one layer" ncu --profile-from-start off --clock-control none --section SpeedOfLight \
  --section LaunchStats --section Occupancy --csv --page details --log-file "$work/ncu.csv" "$here/cuda" ${small:+--small} profile; then
  cp "$work/ncu.csv" "$logs/"
  python3 - "$work/ncu.csv" >> "$report" <<'PY' || { : > "$work/failed"; note "**FAILED**: no table of ncu.csv, which is among the logs"; }
import csv, sys
UNITS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
WANTED = ["Compute (SM) Throughput", "Memory Throughput", "DRAM Throughput", "Registers Per Thread", "Achieved Occupancy"]
text = [line for line in open(sys.argv[1]) if line.startswith('"')]
launches = {}
for row in csv.DictReader(text):
    launch = launches.setdefault(row["ID"], {"name": row["Kernel Name"], "grid": row.get("Grid Size", "")})
    value = row["Metric Value"].replace(",", "")
    if row["Metric Name"] == "Duration":
        launch["us"] = float(value) * UNITS[row["Metric Unit"]]
    elif row["Metric Name"] in WANTED and "%" in row["Metric Unit"] + ("%" if "Registers" in row["Metric Name"] else ""):
        launch[row["Metric Name"]] = value
largest = sorted((launch for launch in launches.values() if "us" in launch), key=lambda launch: -launch["us"])
print("\n## The ten largest kernels of a step of one layer, by Nsight Compute\n")
print("| kernel | grid | us |", " | ".join(WANTED), "|")
print("| --- | --- | --- |", " | ".join("---" for _ in WANTED), "|")
for launch in largest[:10]:
    print(f"| `{launch['name'][:60]}` | {launch['grid']} | {launch['us']:.1f} |", " | ".join(launch.get(name, "-") for name in WANTED), "|")
print(f"\n{len(largest)} launches, {sum(launch['us'] for launch in largest) / 1e3:.2f} ms.")
PY
fi

measure 120 "variants of the target's step" "$here/cuda" ${small:+--small} target variants
