# Sourced by check-on-gpu.sh: how a check is run and what is kept of it. A machine that is lent may be taken away at any moment, so every result
# is in the folder of results as soon as it is there.

# begin SECONDS: when the whole has to be over, and where everything goes.
begin() {
  deadline=$((SECONDS + $1))
  mkdir -p "$results" || exit 1
  stem=$results/$(date +%F)-check-$part
  report=$stem.md lines=$stem.jsonl
  work=$(mktemp -d)
  logs=$work/logs
  mkdir "$logs" "$work/running"
  : > "$lines"
  printf '# Check %s on a GPU, %s\n\nBy `cuda-bridge/check-on-gpu.sh %s`.\n' "$part" "$(date '+%F %T')" "$part" > "$report"
  trap finish EXIT
  trap 'stopped=SIGTERM; exit 143' TERM
  trap 'stopped=SIGINT; exit 130' INT
  trap 'stopped=SIGHUP; exit 129' HUP
}

# Says something, here and in the report.
note() {
  printf '%s\n' "$1"
  printf '\n%s\n' "$1" >> "$report"
}

# Ends the whole: nothing else can be checked.
give_up() {
  : > "$work/failed"
  note "**FAILED**: $1"
  exit 1
}

# On every way out: ends what still runs, says what was measured and how it ended, and keeps the logs.
finish() {
  local status=$? pid
  trap - EXIT TERM INT HUP
  local left=() tries=20
  for pid in "$work"/running/*; do
    pid=${pid##*/}
    [ "$pid" != '*' ] && kill -TERM "$pid" 2> /dev/null && left+=("$pid")
  done
  for pid in "${left[@]}"; do
    while kill -0 "$pid" 2> /dev/null && [ $((tries--)) -gt 0 ]; do sleep 0.1; done
    # `timeout` leads a group of its own.
    kill -0 "$pid" 2> /dev/null && kill -KILL -- "-$pid" 2> /dev/null
  done
  wait
  # What was measured, as tables, however little it is.
  if [ ! -s "$lines" ]; then
    rm -f "$lines"
  elif ! timeout 20 python3 benches/cuda_report.py "$lines" >> "$report"; then
    : > "$work/failed"
    note "**FAILED**: no tables; the measurements are in ${lines##*/}"
  fi
  if [ -n "${stopped:-}" ]; then
    note "**STOPPED** by $stopped after $SECONDS s: what is not above was not checked."
  elif [ -z "${finished:-}" ]; then
    note "**ENDED EARLY** after $SECONDS s: what is not above was not checked."
    [ "$status" = 0 ] && status=1
  elif [ -e "$work/failed" ]; then
    note "**SOMETHING FAILED**, after $SECONDS s: see above."
    status=1
  else
    note "Every check passed, after $SECONDS s."
  fi
  keep_logs
  rm -rf "$work"
  exit "$status"
}

keep_logs() { tar -czf "$stem.logs.tar.gz" -C "$work" logs; }

# said RESULT SECONDS NAME [LOG]: a line of the report; of a failure also the end of its log.
said() {
  local text="- $1, $2 s: $3"
  if [ -n "${4:-}" ]; then
    text+=$'\n\n'$(tail -n 25 "$4" | cut -c 1-400 | sed 's/^/      /')$'\n'
  fi
  printf '%s\n' "$text"
  printf '%s\n' "$text" >> "$report"
}

# not_checked NAME REASON: what a machine without some tool or part leaves out.
not_checked() { said "NOT CHECKED ($2)" 0 "$1"; }

# ran SECONDS LOG COMMAND...: runs it for so long at most, and never beyond the deadline.
ran() {
  local left=$((deadline - SECONDS)) log=$2 status=0 pid limit
  # The stand-in is slow.
  limit=$1
  [ -n "$small" ] && limit=$((10 * limit))
  [ "$limit" -lt "$left" ] && left=$limit
  shift 2
  [ "$left" -ge 1 ] || { echo "no time was left" > "$log"; return 124; }
  # In the background, since a shell that waits for a program in the foreground hears no signal.
  timeout -k 5 "$left" "$@" > "$log" 2>&1 < /dev/null &
  pid=$!
  : > "$work/running/$pid"
  wait "$pid" || status=$?
  rm -f "$work/running/$pid"
  return "$status"
}

log_of() { printf '%s/%s.log' "$logs" "$(printf '%s' "$1" | tr -cs 'a-zA-Z0-9\n' - | cut -c 1-60)"; }

# judged STATUS SECONDS NAME LOG: says what an exit status means.
judged() {
  case $1 in
    0) said passed "$2" "$3"; return ;;
    124 | 137) said "**NOT DONE** in time" "$2" "$3" "$4" ;;
    126 | 127) said "**FAILED** (exit $1: there is no such program)" "$2" "$3" "$4" ;;
    *) said "**FAILED** (exit $1)" "$2" "$3" "$4" ;;
  esac
  : > "$work/failed"
  return 1
}

# check SECONDS NAME COMMAND...
check() {
  local limit=$1 name=$2 start=$SECONDS log status=0
  shift 2
  log=$(log_of "$name")
  ran "$limit" "$log" "$@" || status=$?
  judged "$status" "$((SECONDS - start))" "$name" "$log"
}

# The same beside what follows, until `wait`.
beside() { check "$@" & }

# measure SECONDS NAME COMMAND...: what it prints are lines of measurements, which are kept as they come.
measure() {
  local limit=$1 name=$2
  shift 2
  check "$limit" "$name" sh -c 'lines=$1; shift; "$@" >> "$lines"' sh "$lines" "$@"
}
