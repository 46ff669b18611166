#!/usr/bin/env python3
"""Wall time of an audit that is divided into shards, beside the whole audit, on one machine.

    cargo build --release
    benches/audit_shards.py [--rounds N]

A run of 160 steps with 32 segments is trained from the demo's job. An audit of the first segment alone, the whole audit, and each shard of plan
files of 2, 4 and 8 shards run one after another, each by itself on all cores, as each machine of an array has a shard by itself. The wall time of an array is
that of its slowest shard. The start-up S (reading and checking, which every shard does) is what is left of the audit of one segment: with W for
the whole audit and F for the audit of the first of the 32 segments, S = (32 F - W) / 31. Beyond it, n shards should take (W - S) / n. Times are medians
of the rounds. The exit status is 1 if a shard does not match, or the reports of a plan's shards do not merge to a match.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEGMENTS, STEPS = 32, 160


def main():
    """Prints a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiebreak", default=ROOT / "target/release/tiebreak", type=Path)
    arguments = parser.parse_args()

    def tiebreak(*words):
        begin = time.perf_counter()
        ended = subprocess.run([str(word) for word in (arguments.tiebreak, *words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if ended.returncode:
            sys.exit(f"tiebreak {words[0]} ends with {ended.returncode}: {ended.stderr}")
        return time.perf_counter() - begin

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        job = (ROOT / "assets/jobs/demo.toml").read_text()
        for old, new in (("steps = 40", f"steps = {STEPS}"), ("[checkpoint]\nevery = 10", f"[checkpoint]\nevery = {STEPS // SEGMENTS}")):
            if job.count(old) != 1:
                sys.exit(f"assets/jobs/demo.toml has no line {old!r}")
            job = job.replace(old, new)
        (folder / "job.toml").write_text(job)
        run = folder / "run"
        shutil.copytree(ROOT / "assets/jobs/text", folder / "text")
        tiebreak("train", folder / "job.toml", "--out", run, "--quiet")
        times = {}
        for _ in range(arguments.rounds):
            times.setdefault("first", []).append(tiebreak("audit", run, "--steps", f"1..{STEPS // SEGMENTS}", "--quiet"))
            times.setdefault("whole", []).append(tiebreak("audit", run, "--quiet"))
            for shards in (2, 4, 8):
                plan = folder / f"plan-{shards}.json"
                tiebreak("audit", run, "--plan", "--plan-out", plan, "--shards", shards)
                reports = [folder / f"report-{shards}-{shard}.json" for shard in range(1, shards + 1)]
                for shard, report in enumerate(reports, 1):
                    report.unlink(missing_ok=True)
                    seconds = tiebreak("audit", run, "--plan-file", plan, "--shard", f"{shard}/{shards}", "--report", report, "--quiet")
                    times.setdefault((shards, shard), []).append(seconds)
                tiebreak("audit", "merge", "--unsigned", *reports)
    median = {what: statistics.median(of) for what, of in times.items()}
    start = (SEGMENTS * median["first"] - median["whole"]) / (SEGMENTS - 1)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {arguments.rounds} rounds; the whole audit {median['whole']:.2f} s, "
          f"the start-up {start:.2f} s\n")
    print("| shards | slowest shard | beyond the start-up | a fair share | ratio |\n|---:|---:|---:|---:|---:|")
    for shards in (2, 4, 8):
        slowest = max(seconds for what, seconds in median.items() if what[0] == shards)
        beyond, fair = slowest - start, (median["whole"] - start) / shards
        print(f"| {shards} | {slowest:.2f} s | {beyond:.2f} s | {fair:.2f} s | {beyond / fair:.2f} |")


if __name__ == "__main__":
    main()
