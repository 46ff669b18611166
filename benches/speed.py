#!/usr/bin/env python3
"""One table of all ratios of speed: exact steps beside PyTorch's, audits beside the training that they replay, and wgpu beside the CPU engine.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install torch numpy safetensors
    venv/bin/python benches/speed.py --data DIR [ROW ...] [--json] [--write]

ROW is the name of a row, or its beginning up to a dash: `gpt2 mlp`, `audit`, `audit-gpt2`, `wgpu`; all rows without one (--list names them). DIR is that of
benches/costs.py. Both sides of a ratio run in turn, --rounds times, and their medians count. A finished row is kept in target/speed, so that a killed command goes
on where it ended; a row is measured again with --again, and when the command, the processor or the rounds are others. Without --write the table is only printed; with
it, the rows go to docs/SPEED.md, and what they were made of to benches/results/speed.json, where other rows stay.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import costs
import logged_audits

KEPT = costs.ROOT / "target/speed"
PAGE = costs.ROOT / "docs/SPEED.md"
WRITTEN = costs.RESULTS / "speed.json"
FORMAT = 1
INTRODUCTION = """# Speed

`benches/speed.py` measures all ratios of this page in one command, and writes the page with `--write`. A ratio is our time
over that of the peer; both run in turn on the same machine.

- A step is forward, backward and update, here with commitments and log. The seconds of a step are the median over
  the steps after the first, and over rounds.
- PyTorch's bf16 is autocast: weights and optimizer stay in binary32, products are in bfloat16.
- An audit's step is the difference of audits of two lengths. The ratio is to the training that the audit replays.
- A wgpu row is a step on a software adapter beside the CPU engine's step. No GPU is in it.
- Weights are random, digits are the defaults, and networks of convolutions have `convolution = 2`.
- A load average above the number of cores says that other work ran beside the row. Real-time priority is named.
"""


class Gpt10m(costs.Gpt2):
    """The GPT of about 10 M parameters of benches/step.rs, on bytes."""

    TITLE, SAMPLES, CONTEXT, CLIP = "GPT of 10 M parameters, 8 x 128 tokens", 8, 128, 1.0
    VOCABULARY, SIZES = 256, (6, 8, 368)

    def prepare(self, folder, data, _tiebreak):
        shutil.copy(costs.ROOT / "assets/jobs/text/shakespeare.txt", folder / "text.txt")

    def job(self, profile):
        return "clip_norm = 1.0\n" + super().job(profile).replace('kind = "tokens"\ndtype = "u16"\npath = "tokens.npy"', 'kind = "bytes"\npath = "text.txt"')


class Gpt1m(Gpt10m):
    TITLE, SIZES = "GPT of 1 M parameters, 8 x 128 tokens", (4, 4, 144)


class Perceptron(costs.Pictures):
    """The perceptron of assets/jobs/cifar-mlp.toml, without dropout."""

    TITLE, SAMPLES = "MLP, 3072-256-128-10, 64 pictures", 64
    MODEL = '[model]\nkind = "mlp"\ninputs = 3072\nhidden = [256, 128]\nclasses = 10\n'

    def network(self):
        return costs.networks().Mlp([256, 128])

    def job(self, profile):
        return super().job(profile).replace("convolution = 1\n", "")


class SmallResnet(costs.Pictures):
    """The network of assets/jobs/cifar-resnet.toml, which has no peer here."""

    TITLE, SAMPLES = "Residual network of 8 layers, 32 pictures", 32
    MODEL = '[model]\nkind = "resnet"\nheight = 32\nwidth = 32\nplanes = 3\nstages = [16, 32, 64]\nblocks = 1\nclasses = 10\n'


# By name: the network, the profile of its exact job, and the steps of a run and of PyTorch.
NETWORKS = {
    "gpt": (Gpt10m, "exact", 12),
    "gpt2": (costs.Gpt2, "exact", 4),
    "resnet50": (costs.Resnet50, costs.CONV2D_V2, 3),
    "vgg11": (costs.Vgg11, costs.CONV2D_V2, 4),
    "mlp": (Perceptron, "exact", 200),
    "logistic": (costs.Logistic, "exact", 60),
    "gpt1m": (Gpt1m, "exact", 5),
    "resnet8": (SmallResnet, costs.CONV2D_V2, 5),
}
BESIDE_PYTORCH = ("gpt", "gpt2", "resnet50", "vgg11", "mlp", "logistic")
AUDITED = ("gpt2", "resnet50")
ON_WGPU = ("gpt1m", "resnet8")


def trained_seconds(options, it, folder, profile, steps, *more):
    """A step's seconds in a run of its own."""
    job, run = folder / "job.toml", folder / "run"
    job.write_text(f"steps = {steps}\n{it.job(profile)}")
    costs.measured([options.tiebreak, "train", job, "--out", run, "--quiet", *more])
    seconds = costs.train_seconds(run)
    shutil.rmtree(run)
    return seconds


def peer_seconds(name, steps, precision):
    """A step's seconds of PyTorch, in a process of its own, and PyTorch's version."""
    text, _ = costs.measured([sys.executable, __file__, "--peer", name, precision, steps])
    peer = json.loads(text)
    return statistics.median(peer["seconds"]), peer["torch"]


def turns(options, sides):
    """By name: the median of what each side measures, in turn."""
    found = {}
    for _ in range(options.rounds):
        for name, measure in sides.items():
            found.setdefault(name, []).append(measure())
    return {name: statistics.median(values) for name, values in found.items()}


def step_row(options, name, folder):
    """An exact step beside PyTorch's two."""
    kind, profile, steps = NETWORKS[name]
    it, versions = kind(), set()
    it.prepare(folder, options.data, options.tiebreak)

    def peer(precision):
        seconds, version = peer_seconds(name, steps, precision)
        versions.add(version)
        return seconds

    seconds = turns(options, {"fp32": lambda: peer("fp32"), "bf16": lambda: peer("bf16"), "ours": lambda: trained_seconds(options, it, folder, profile, steps)})
    what = f"{it.TITLE}: exact step"
    ratios = [[what, seconds["ours"], f"PyTorch's step in {precision}", seconds[precision]] for precision in ("fp32", "bf16")]
    return {"torch": ", ".join(sorted(versions)), "ratios": ratios}


def audit_row(options, name, grid, folder):
    """An audit beside the training that it replays."""
    kind, _, _ = NETWORKS[name]
    it, (few, many) = kind(), options.audits
    it.prepare(folder, options.data, options.tiebreak)
    (_, short, _), (trained, long, result) = [logged_audits.measure(options.tiebreak, it, folder, grid, steps) for steps in (few, many)]
    ends = "" if result == "matches" else f" (ends: {result})"
    step = (long - short) / (many - few)
    return {"ratios": [
        [f"{it.TITLE}, {grid}: a step more of an audit{ends}", step, "a trained step", trained],
        [f"{it.TITLE}, {grid}: a whole audit of {few} steps", short, f"{few} trained steps", few * trained],
    ]}


def wgpu_row(options, name, folder):
    """A step through wgpu beside the CPU engine's."""
    kind, profile, steps = NETWORKS[name]
    it = kind()
    it.prepare(folder, options.data, options.tiebreak)
    sides = {
        "cpu": lambda: trained_seconds(options, it, folder, profile, steps),
        "wgpu": lambda: trained_seconds(options, it, folder, profile, steps, "--engine", "wgpu", "--adapter", options.adapter),
    }
    seconds = turns(options, sides)
    return {"ratios": [[f"{it.TITLE}: exact step through wgpu on {options.adapter}", seconds["wgpu"], "the CPU engine's step", seconds["cpu"]]]}


def all_rows():
    """By name, in the table's order: what measures the row."""
    rows = {name: lambda options, folder, name=name: step_row(options, name, folder) for name in BESIDE_PYTORCH}
    for name in AUDITED:
        for grid in logged_audits.GRIDS:
            short = grid.removeprefix("logged, ").removesuffix(" grid")
            rows[f"audit-{name}-{short}"] = lambda options, folder, name=name, grid=grid: audit_row(options, name, grid, folder)
    for name in ON_WGPU:
        rows[f"wgpu-{name}"] = lambda options, folder, name=name: wgpu_row(options, name, folder)
    return rows


def chosen(names):
    """The rows with these names, or whose names begin with one of them and a dash; all without a name."""
    rows = all_rows()
    for name in names:
        if not any(row == name or row.startswith(f"{name}-") for row in rows):
            sys.exit(f"there is no row {name}; there are {', '.join(rows)}")
    return {row: measure for row, measure in rows.items() if not names or any(row == name or row.startswith(f"{name}-") for name in names)}


def processor():
    """The processor's name, as Linux has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def settings(options):
    """What has to be the same for a kept row to count."""
    digest = hashlib.sha256(options.tiebreak.read_bytes()).hexdigest()
    return {"format": FORMAT, "command": digest, "processor": processor(), "cores": len(os.sched_getaffinity(0)), "rounds": options.rounds, "audits": options.audits,
            "adapter": options.adapter}


def replace(path, text):
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def measured_row(options, name, measure, like):
    """A row with where and when it was measured, from its file if one counts."""
    path = KEPT / f"{name}.json"
    if path.exists() and not options.again:
        kept = json.loads(path.read_text())
        if kept["settings"] == like:
            return kept
    begin, load = time.monotonic(), os.getloadavg()[0]
    print(f"{name} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    version = subprocess.run([options.tiebreak, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    found |= {
        "settings": like, "date": date.today().isoformat(), "version": version, "load": load, "took": time.monotonic() - begin,
        "real time": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
    }
    replace(path, json.dumps(found, indent=1) + "\n")
    return found


def table(rows):
    """The rows as Markdown."""
    lines = ["| what | seconds | beside | seconds | ratio | load, date |", "|---|---:|---|---:|---:|---|"]
    for row in rows.values():
        for what, ours, beside, theirs in row["ratios"]:
            first = ", real-time priority" if row["real time"] else ""
            lines.append(f"| {what} | {ours:.3g} | {beside} | {theirs:.3g} | **{ours / theirs:.2f}** | {row['load']:.1f}, {row['date']}{first} |")
    return "\n".join(lines)


def machines(rows):
    """The machines and versions of the rows, a sentence each."""
    found = []
    for row in rows.values():
        like, torch = row["settings"], f", PyTorch {row['torch']}" if "torch" in row else ""
        found.append(f"{row['version']}{torch}; {like['cores']} cores of {like['processor']}; {like['rounds']} rounds.")
    return "\n".join(f"- {line}" for line in sorted(set(found)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--data", type=Path, default=costs.ROOT)
    parser.add_argument("--tiebreak", type=Path, default=costs.ROOT / "target/release/tiebreak")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--audits", nargs=2, type=int, default=[2, 4], metavar=("FEW", "MANY"), help="the steps of the two audits of a row")
    parser.add_argument("--adapter", default="llvmpipe", help="for the rows of wgpu")
    parser.add_argument("--again", action="store_true", help="measure rows that are kept, too")
    parser.add_argument("--list", action="store_true", help="name the rows")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--write", action="store_true", help="write docs/SPEED.md and benches/results/speed.json; rows that are not measured stay there")
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        name, precision, steps = options.peer
        return costs.run_peer(NETWORKS[name][0](), int(steps), precision)
    if options.list:
        return print("\n".join(all_rows()))
    if options.rounds < 1 or not 1 < options.audits[0] < options.audits[1]:
        parser.error("--rounds is at least 1; --audits are two numbers above 1, the first one smaller")
    like = settings(options)
    rows = {}
    for name, measure in chosen(options.rows).items():
        try:
            rows[name] = measured_row(options, name, measure, like)
        except costs.Failed as error:
            sys.exit(f"{name}: {error}; the rows before are kept")
    print(json.dumps(rows, indent=1) if options.json else f"{machines(rows)}\n\n{table(rows)}")
    if options.write:
        before = json.loads(WRITTEN.read_text()) if WRITTEN.exists() else {}
        rows = {name: row for name in all_rows() if (row := rows.get(name, before.get(name)))}
        replace(WRITTEN, json.dumps(rows, indent=1) + "\n")
        replace(PAGE, f"{INTRODUCTION}\n{machines(rows)}\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
