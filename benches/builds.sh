#!/usr/bin/env bash
# Measures how long people wait for Cargo, and the processor time: medians of RUNS runs (default 3), each in a clean clone of the last commit.
#
#   benches/builds.sh [RUNS]    all of it: a quarter of an hour and more for each run, on two cores that do nothing else
#   benches/builds.sh --quick   one rebuild of the command, in this checkout
#
# The clone is in a temporary folder, which is removed. Crates are fetched before. Cargo settings of the environment apply, except for the target folder.
set -euo pipefail
cd "$(dirname "$0")/.."
unset CARGO_TARGET_DIR
quick='' runs=3
case ${1:-} in
  '') ;;
  --quick) quick=yes ;;
  *[!0-9]* | 0)
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
  *) runs=$1 ;;
esac
work=$(mktemp -d)
# The folder of the build.
place=$work/clone
trap 'rm -rf "$work"' EXIT
cargo fetch --locked --quiet

# The seconds of a command, and those of processor time, go to $work/NAME; its output is shown if it fails.
timed() { # NAME COMMAND...
  local name=$1 TIMEFORMAT='%R %U %S'
  shift
  { time (cd "$place" && "$@" >"$work/printed" 2>"$work/errors"); } 2>"$work/time" || { cat "$work/errors" "$work/printed" >&2; return 1; }
  tail -1 "$work/time" | awk '{ printf "%.1f %.1f\n", $1, $2 + $3 }' >>"$work/$name"
}
row() { # NAME WORDS
  [ -f "$work/$1" ] || return 0
  awk -v words="$2" '
    function median(s, n, i, j, t) {
      for (i = 2; i <= n; i++) for (j = i; j > 1 && s[j - 1] > s[j]; j--) { t = s[j]; s[j] = s[j - 1]; s[j - 1] = t }
      return n % 2 ? s[(n + 1) / 2] : (s[n / 2] + s[n / 2 + 1]) / 2
    }
    { time[NR] = $1; processors[NR] = $2; all = all " " $1 }
    END { printf "%8.1f  %10.1f  %s (%s)\n", median(time, NR), median(processors, NR), words, substr(all, 2) }' "$work/$1"
}
clone() {
  rm -rf "$work/clone"
  git clone --quiet . "$work/clone"
}
rebuild() {
  timed build cargo build --locked
  # A file of the command that no other file imports.
  touch "$place/src/cli/command/key.rs"
  timed rebuild cargo build --locked
}

if [ -n "$quick" ]; then
  place=$PWD runs=0
  rebuild
fi
for _ in $(seq "$runs"); do
  clone
  timed demo cargo run --release --locked -- demo
  clone
  timed test-build cargo test --locked --no-run --message-format=json
  # Programs have a path; libraries have none.
  programs() { grep "\"test\":$1}" "$work/printed" | grep -o '"executable":"[^"]*"' | cut -d'"' -f4; }
  programs true >"$work/tests"
  programs false >"$work/others"
  timed test-run cargo test --locked
  rebuild
done

printf 'Commit %s, %s, %s cores, %s; load average now %s.\n\n' "$(git rev-parse --short HEAD)" "$(uname -m)" "$(nproc)" "$(rustc --version)" "$(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo unknown)"
echo " seconds  processors  what (seconds of each run)"
row demo 'first `cargo run --release -- demo`'
row test-build '`cargo test` from a clean clone: building'
row test-run 'the same: running'
row rebuild '`cargo build` after one file of the command was touched'
if [ -f "$work/tests" ]; then
  echo
  for kind in tests others; do
    xargs stat -c %s <"$work/$kind" | awk -v kind="$kind" '{ n++; bytes += $1 } END { printf "%d programs linked (%s), %.0f MB\n", n, kind, bytes / 1e6 }'
  done
fi
