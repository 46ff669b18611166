"""A Llama-shaped decoder of 10^7, 10^8 or 10^9 parameters: one step trained, one micro-batch audited, each with time and memory.

    cargo build --release
    python3 benches/billion.py --parameters 10M --dir DIR
    python3 benches/billion.py --parameters 1B --dir DIR --offload --first-step-only

Writes the job and its run into a new folder in DIR, and removes that folder at the end. A step is two micro-batches of one sample; weights and
tokens are random, and what a step costs does not depend on them. Each command runs as a process of its own. Its peak memory is what the system
says was resident at most; bytes written are those that it handed to the system for a disk.

--audit audits the whole step as well. --offload trains, and audits the whole step, with `--offload`. --first-step-only ends the training once the
first of two steps is committed, so that neither its checkpoint nor the model is written: 12 bytes of disk a parameter in place of 28. docs/SCALE.md
has rows that this bench prints.
"""

import argparse
import array
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# layers, width, heads, heads of keys and values, channels of a feed-forward layer, vocabulary
SIZES = {
    "10M": (6, 256, 8, 2, 704, 10_000),
    "100M": (10, 704, 11, 1, 1_920, 32_000),
    "1B": (16, 2_048, 32, 8, 7_168, 32_000),
}
JOB = """steps = {steps}
clip_norm = 1.0
[model]
kind = "llama"
vocabulary = {vocabulary}
context = {tokens}
layers = {layers}
heads = {heads}
kv_heads = {kv_heads}
width = {width}
hidden = {hidden}
[data]
kind = "tokens"
path = "tokens.bin"
dtype = "u16"
[optimizer]
kind = "adamw"
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1
[schedule]
peak = 1e-4
[batch]
micro_batch = 1
micro_batches = {micro_batches}
[commit]
granularity = "{granularity}"
head_every = 1
[checkpoint]
every = 1000
"""


def machine():
    """The processor, its cores, the memory and the load, in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
        total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
        memory = f"{int(total.split()[1]) / 2**20:.0f} GiB"
    except (OSError, StopIteration):
        name, memory = platform.processor() or platform.machine(), "unknown memory"
    return f"{os.cpu_count()} cores, {name}, {memory}, load average {os.getloadavg()[0]:.1f}"


def measured(arguments, ended=None, fine=(0,)):
    """Runs a command, which has to end with one of these exit statuses: its seconds, processor seconds, peak resident bytes, bytes written and output.
    `ended` says when to end it."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as problems:
        child = subprocess.Popen([str(word) for word in arguments], stdout=output, stderr=problems)
        # `Popen.poll` would take the usage of a child that has ended.
        found = (0, 0, None)
        while ended is not None and not found[0] and not ended():
            time.sleep(0.02)
            found = os.wait4(child.pid, os.WNOHANG)
        if ended is not None and not found[0]:
            found = os.wait4(child.pid, os.WNOHANG)
        killed = ended is not None and not found[0]
        if killed:
            # What it wrote is asked for first: a process that has ended does not say.
            written = bytes_written(child.pid)
            child.send_signal(signal.SIGKILL)
        _, status, usage = found if found[0] else os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begun
        said, errors = (read_again(file) for file in (output, problems))
    if child.returncode not in fine and not killed:
        sys.exit(f"{' '.join(map(str, arguments))} ended with {child.returncode}:\n{said}{errors}")
    written = written if killed else usage.ru_oublock * 512
    return {
        "seconds": seconds,
        "processor": usage.ru_utime + usage.ru_stime,
        "memory": usage.ru_maxrss * (1024 if sys.platform == "linux" else 1),
        "written": written,
        "output": said,
    }


def read_again(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def bytes_written(pid):
    """What a process handed to the system for a disk, if the system says it."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return int(next(line.split(":")[1] for line in lines if line.startswith("write_bytes")))
    except (OSError, StopIteration):
        return 0


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", choices=SIZES, required=True)
    parser.add_argument("--dir", type=Path, required=True, help="folder for the run: 28 bytes a parameter, or 12 with --first-step-only")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--granularity", choices=("microbatch", "operator"), default="microbatch")
    parser.add_argument("--offload", action="store_true", help="train, and audit the step, with --offload")
    parser.add_argument("--audit", action="store_true", help="audit the whole step as well")
    parser.add_argument("--first-step-only", action="store_true", help="end the training after its first step")
    parser.add_argument("--tiebreak", type=Path, default=ROOT / "target/release/tiebreak", help="the command")
    return parser.parse_args()


def make_job(folder, args):
    layers, width, heads, kv_heads, hidden, vocabulary = SIZES[args.parameters]
    path = folder / "job.toml"
    path.write_text(JOB.format(
        steps=2 if args.first_step_only else 1, vocabulary=vocabulary, tokens=args.tokens, layers=layers, heads=heads, kv_heads=kv_heads,
        width=width, hidden=hidden, micro_batches=args.micro_batches, granularity=args.granularity,
    ))
    drawn = random.Random(1)
    tokens = array.array("H", (drawn.randrange(vocabulary) for _ in range(64 * args.tokens)))
    if sys.byteorder == "big":
        tokens.byteswap()
    with open(folder / "tokens.bin", "wb") as file:
        tokens.tofile(file)
    return path


def row(phase, planned, found, parameters):
    plan = "" if planned is None else f"{planned / 1e9:.3g}"
    print(
        f"| {phase} | {found['seconds']:.1f} | {found['processor']:.1f} | {found['memory'] / 1e9:.3g} | {plan} "
        f"| {found['memory'] / parameters:.1f} | {found['written'] / 1e9:.3g} |"
    )


def main():
    args = parsed()
    args.tiebreak, args.dir = args.tiebreak.resolve(), args.dir.resolve()
    folder = Path(tempfile.mkdtemp(prefix="billion-", dir=args.dir))
    try:
        job, run = make_job(folder, args), folder / "run"
        checked = measured([args.tiebreak, "job", "check", job, "--json"])
        plan = json.loads(checked["output"])
        parameters = plan["parameters"]
        free = shutil.disk_usage(folder).free
        # Slots, twice for an audit, and waiting gradients.
        away = (16 if args.audit else 8) + 4 * (args.micro_batches.bit_length() - 1)
        needed = parameters * ((12 if args.first_step_only else 28) + (away if args.offload else 0))
        if needed > free:
            sys.exit(f"the run needs about {needed / 1e9:.0f} GB in {args.dir}, {free / 1e9:.0f} GB are free; --first-step-only needs less")
        print(f"{parameters:,} parameters, {args.micro_batches} micro-batches of {args.tokens} tokens; {machine()}\n")
        print("| phase | s | processor, s | peak memory, GB | planned, GB | bytes a parameter | written, GB |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        row("`job check`", None, checked, parameters)
        offload = ["--offload", folder] if args.offload else []
        options = " --offload" if args.offload else ""
        # A head over two records covers the first step.
        committed = (lambda: any(head.name.lstrip("0") == "2" for head in (run / "heads").glob("*"))) if args.first_step_only else None
        trained = measured([args.tiebreak, "train", job, "--out", run, *offload], committed)
        row(f"`train{options}`", plan["offloaded_step_bytes" if args.offload else "step_bytes"], trained, parameters)
        gradient = measured([args.tiebreak, "replay", run, "--step", 1, "--microbatch", 0])
        row("`replay --microbatch 0`", plan["microbatch_bytes"], gradient, parameters)
        if args.audit:
            # A run without its end is incomplete (3), also if each replayed step matches.
            audited = measured([args.tiebreak, "audit", run, "--steps", "1..1", *offload], fine=(3 if args.first_step_only else 0,))
            if "ok: replayed steps 1..1" not in audited["output"]:
                sys.exit(f"the audit replayed no step:\n{audited['output']}")
            row(f"`audit{options}`", plan["offloaded_audit_bytes" if args.offload else "audit_bytes"], audited, parameters)
        step = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
        held = {name: sum(file.stat().st_size for file in run.rglob(name)) for name in ("transcript", "gradients", "*.trace")}
        trace = sum(file.stat().st_size for file in (run / "traces").glob("*"))
        print(f"\nThe step itself took {step['seconds']:.1f} s. Committed: {held['transcript']} B of records, {held['gradients']} B of")
        print(f"gradients' roots, {trace} B of traces.")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
