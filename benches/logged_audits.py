#!/usr/bin/env python3
"""What an audit costs beside the training that it replays, for the exact profile and both grids of the logged one.

    cargo build --release
    python3 benches/logged_audits.py --data DIR [gpt2] [resnet50] [vgg11] [--steps 2 6]

Each run is trained and audited twice, by `tiebreak train` and `tiebreak audit`, with two numbers of steps. The difference of the two gives a step's seconds; what is
left of the shorter audit is its start: reading, checking, the first state. The table is printed as docs/COSTS.md has it. DIR is that of benches/costs.py.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import costs

GRIDS = {"exact": "", "logged, binary32 grid": "[rounding]\nbits = 32\n", "logged, bfloat16 grid": "[rounding]\n"}


def measure(tiebreak, experiment, folder, profile, steps):
    """Trains and audits a run of so many steps: a trained step's seconds, the seconds of the whole audit, and its result."""
    job, run = folder / "job.toml", folder / "run"
    job.write_text(f"steps = {steps}\n{experiment.job(profile)}{GRIDS[profile]}[checkpoint]\nevery = {steps}\n")
    costs.measured([tiebreak, "train", job, "--out", run, "--quiet"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    begin = time.perf_counter()
    report, _ = costs.audited(tiebreak, run, False)
    seconds = time.perf_counter() - begin
    shutil.rmtree(run)
    return statistics.median(line["seconds"] for line in lines[1:]), seconds, report["outcome"]["result"]


def rows(tiebreak, name, data, few, many):
    """The table's rows of one experiment."""
    experiment = costs.EXPERIMENTS[name]()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        experiment.prepare(folder, data, tiebreak)
        for profile in GRIDS:
            print(f"{name}: {profile}", file=sys.stderr)
            (_, short, _), (trained, long, result) = [measure(tiebreak, experiment, folder, profile, steps) for steps in (few, many)]
            step = (long - short) / (many - few)
            ends = "" if result == "matches" else f" ({result})"
            yield f"| {experiment.TITLE}, {profile} | {trained:.3g} s | {step:.3g} s{ends} | {step / trained:.2f} | {short - few * step:.2g} s | {short / few / trained:.2f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", default=["gpt2", "resnet50"], choices=["gpt2", "resnet50", "vgg11"])
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--steps", nargs=2, type=int, default=[2, 6], metavar=("FEW", "MANY"))
    parser.add_argument("--tiebreak", type=Path, default=costs.ROOT / "target/release/tiebreak")
    options = parser.parse_args()
    few, many = options.steps
    if not 1 < few < many:
        parser.error("--steps are two numbers above 1, the first one smaller")
    first = ", at real-time priority" if os.sched_getscheduler(0) != os.SCHED_OTHER else ""
    print(f"`benches/logged_audits.py --steps {few} {many}`, {date.today().isoformat()}, {os.cpu_count()} cores, {platform.machine()}, "
          f"load average {os.getloadavg()[0]:.1f}{first}.\n")
    print("| | a trained step | a step more of an audit | ratio | start of an audit | ratio of an audit of "
          f"{few} steps |\n|---|---|---|---|---|---|")
    for name in options.experiments:
        for row in rows(options.tiebreak, name, options.data, few, many):
            print(row, flush=True)


if __name__ == "__main__":
    main()
