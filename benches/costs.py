"""What the papers' experiments cost here, beside PyTorch in fp32 on the same cores in the same run.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install torch numpy safetensors transformers peft
    venv/bin/python benches/costs.py resnet50 --data DIR      (or vgg11, gpt2, logistic, sweep)
    venv/bin/python benches/costs.py distilbert               (or llama-135m, llama-1b-lora, llama-1b-inference)
    venv/bin/python benches/costs.py table

DIR holds CIFAR-10's records (any name that ends in .bin) for resnet50 and vgg11, and tinyshakespeare.txt and GPT-2's encoder.json and vocab.bpe
for gpt2 (sweep: the text alone); it is searched with its folders. logistic makes its samples, and the models of benches/text_models.py theirs. Each experiment
trains a few steps by `tiebreak train` in the exact profile and in the logged one, audits them by `tiebreak audit`, takes as many steps in PyTorch, and writes
benches/results/costs-NAME.json after each of these, so that what an interrupted one measured is kept; then it writes docs/COSTS.md, as `table` does. Models of
benches/text_models.py train in the exact profile alone, and PyTorch does so in bf16 too; llama-1b-inference answers a prompt. --small tries these on tiny models,
and prints what it measured. `sweep` trains a small GPT on the grids of 26 to 32 bits and says how far its weights and losses drift from
PyTorch's in fp64. `table` reads the results and writes docs/COSTS.md; sections of the page that other benches measured stay. Weights are random: what a step costs does not depend on them.
"""

import argparse
import contextlib
import io
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import text_models
from text_models import Failed

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches/results"
PROFILES = {
    "exact": "",
    "logged, binary32 grid": "[rounding]\nbits = 32\n",
    "logged, the paper's preset": '[rounding]\npreset = "paper"\n',
}
# Networks of convolutions have one more: each pixel is quantised once.
CONV2D_V2 = "exact, conv2d.v2"
# The grids of the paper; 31 bits are refused (docs/ROUNDING.md, section 1).
BITS = (32, 30, 29, 28, 27, 26)
# The heading of the sweep's section.
SWEEP = "## Grids of 26 to 32 bits, and drift"
SGD = '[optimizer]\nkind = "sgd"\nmomentum = 0.9\nweight_decay = 5e-4\ndecay = "coupled"\n[schedule]\npeak = 1e-3\n'
PAPER = "Srivastava, Arora, Boneh (NeurIPS 2024, arXiv 2403.09603)"
ADAMW = '[optimizer]\nkind = "adamw"\nbeta1 = 0.9\nbeta2 = 0.999\nepsilon = 1e-8\nweight_decay = 0.01\n[schedule]\npeak = 5e-5\n'


def networks():
    """The networks in PyTorch, which `table` does without."""
    import networks as module
    return module


def found(folder, fits):
    """The first file of a folder or a folder in it whose name fits."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and fits(path.name))
    return files[0] if files else sys.exit(f"{folder} has none of the files that this experiment needs; see --help")


class Pictures:
    """A classifier of 32 x 32 pictures, as the paper trains it on CIFAR-10."""

    PROFILES = {"exact": PROFILES["exact"], CONV2D_V2: "", **PROFILES}

    def prepare(self, folder, data, _tiebreak):
        source = found(data, lambda name: name.endswith(".bin"))
        (folder / "records.bin").write_bytes(source.read_bytes())

    def job(self, profile):
        version = 2 if profile == CONV2D_V2 else 1
        return f'{self.MODEL}convolution = {version}\n[data]\nkind = "cifar10"\npath = "records.bin"\n{SGD}[batch]\nmicro_batch = {self.SAMPLES}\n'

    def peer(self):
        import torch
        network = self.network()
        weights, leaves = networks().trained_weights(network)
        images, labels = torch.rand(self.SAMPLES, 3, 32, 32), torch.randint(10, (self.SAMPLES,))
        loss = lambda: torch.nn.functional.cross_entropy(network.forward(weights, images), labels)
        return loss, leaves, torch.optim.SGD(leaves, lr=1e-3, momentum=0.9, weight_decay=5e-4)


class Resnet50(Pictures):
    TITLE, SAMPLES = "ResNet-50 on CIFAR-10", 64
    MODEL = ('[model]\nkind = "resnet"\nheight = 32\nwidth = 32\nplanes = 3\nblock = "bottleneck"\norder = "post"\nstem = "cifar"\n'
             'norm = "batch"\nstages = [64, 128, 256, 512]\nblocks = [3, 4, 6, 3]\nclasses = 10\n')
    PUBLISHED = [
        (f"{PAPER}: log of a step", "up to 176 MB before compression", "derived from their code: 8.79e8 rounded values, 1.6 bit each; binary64 kernels on NVIDIA GPUs"),
    ]

    def network(self):
        return networks().Resnet50()


class Vgg11(Pictures):
    TITLE, SAMPLES = "VGG-11 on CIFAR-10", 16
    MODEL = '[model]\nkind = "vgg11"\nheight = 32\nwidth = 32\nplanes = 3\nclasses = 10\n'
    PUBLISHED = [
        (f"{PAPER}: a step", "6 s, a log of 1.2 MB", "their comparison with Kaizen; binary64 kernels on an NVIDIA GPU"),
        ("Kaizen (IACR ePrint 2024/162, abstract): proof of a step", "15 min, 1.63 MB",
         "a variant of 10 M parameters; the comparison above has 22 min and 1.36 MB from an earlier version; the proof has one size for the whole run, and its check takes 130 ms"),
    ]

    def network(self):
        return networks().Vgg11(4096, False)


class Gpt2:
    TITLE, SAMPLES, CONTEXT = "Fine-tuning GPT-2 124M on tiny Shakespeare", 8, 64
    VOCABULARY, SIZES = 50257, (12, 12, 768)  # layers, heads, width
    PUBLISHED = [
        (f"{PAPER}, appendix J: training, audit of a step", "11 s, 13.5 s; a log of 18 MB", "8 x 64 tokens, binary64 kernels on NVIDIA GPUs; the log after zip"),
        ("SIGMA, as the same estimate it for a step of training", "983 s, 189 GB", "appendix J; the formula that they print gives twice the bytes"),
        ("Proof-of-Learning (Jia et al. 2021, arXiv 2103.05633), as the same count it", "2.78 GB a step", "binary64 weights and both moments after every step: k = 1"),
    ]

    def prepare(self, folder, data, tiebreak):
        text, bpe = found(data, lambda name: name == "tinyshakespeare.txt"), found(data, lambda name: name == "vocab.bpe").parent
        subprocess.run([tiebreak.with_name("tiebreak-import"), "text", "--tokenizer", bpe, "--output", folder / "tokens.npy", text], check=True, stdout=subprocess.DEVNULL)

    def job(self, profile):
        layers, heads, width = self.SIZES
        model = f'[model]\nkind = "gpt"\nvocabulary = {self.VOCABULARY}\ncontext = {self.CONTEXT}\nlayers = {layers}\nheads = {heads}\nwidth = {width}\n'
        return f'{model}[data]\nkind = "tokens"\ndtype = "u16"\npath = "tokens.npy"\n{ADAMW}[batch]\nmicro_batch = {self.SAMPLES}\n'

    def peer(self):
        import torch
        import loss_curve
        network = loss_curve.Gpt()
        network.SAMPLES, network.CONTEXT, network.VOCABULARY = self.SAMPLES, self.CONTEXT, self.VOCABULARY
        network.LAYERS, network.HEADS, network.WIDTH = self.SIZES
        weights, leaves = networks().trained_weights(network)
        tokens = torch.randint(self.VOCABULARY, (self.SAMPLES, self.CONTEXT + 1))
        labels = tokens[:, 1:].flatten()
        loss = lambda: torch.nn.functional.cross_entropy(network.forward(weights, tokens[:, :-1]), labels)
        return loss, leaves, torch.optim.AdamW(leaves, lr=5e-5, weight_decay=0.01)


class Logistic:
    TITLE, SAMPLES, ROWS, COLUMNS = "Logistic regression, 2^18 x 1024", 2014, 1 << 18, 1024
    PASS = -(-ROWS // SAMPLES)
    PUBLISHED = [
        (f"{PAPER}: one pass, training and audit", "7 s, 106 KB", "their comparison with Garg et al.; an NVIDIA GPU"),
        ("Garg et al. (IACR ePrint 2023/1345), as the same quote it: one pass", "72 s, 350 MB", "the online phase alone, without about an hour before it that depends on the data"),
        ("Proof-of-Learning, as the same count it", "9.2 MB a step", "k = 1"),
    ]

    def prepare(self, folder, data, _tiebreak):
        import numpy as np
        draw = np.random.default_rng(1)
        inputs = np.lib.format.open_memmap(folder / "inputs.npy", "w+", np.float16, (self.ROWS, self.COLUMNS))
        for first in range(0, self.ROWS, 1 << 14):
            inputs[first:first + (1 << 14)] = draw.standard_normal((1 << 14, self.COLUMNS), np.float32)
        inputs.flush()
        np.save(folder / "labels.npy", draw.integers(0, 2, self.ROWS, dtype=np.uint8))

    def job(self, profile):
        data = '[data]\nkind = "arrays"\ninputs = "inputs.npy"\nlabels = "labels.npy"\ndtype = "f16"\n'
        model = f'[model]\nkind = "mlp"\ninputs = {self.COLUMNS}\nhidden = []\nclasses = 2\n'
        return f"{model}{data}{SGD}[batch]\nmicro_batch = {self.SAMPLES}\n"

    def peer(self):
        import torch
        network = networks().Mlp([], self.COLUMNS, 2)
        weights, leaves = networks().trained_weights(network)
        inputs, labels = torch.randn(self.SAMPLES, self.COLUMNS), torch.randint(2, (self.SAMPLES,))
        loss = lambda: torch.nn.functional.cross_entropy(network.forward(weights, inputs), labels)
        return loss, leaves, torch.optim.SGD(leaves, lr=1e-3, momentum=0.9, weight_decay=5e-4)


EXPERIMENTS = {"resnet50": Resnet50, "vgg11": Vgg11, "gpt2": Gpt2, "logistic": Logistic, **text_models.TRAINED}


def measured(command, fine=(0,)):
    """Runs a command, which has to end with one of these exit statuses; what it printed, and the most memory that it had, in MiB."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen([str(part) for part in command], stdout=output, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        output.seek(0)
        errors.seek(0)
        text, said = output.read().decode(), errors.read().decode().strip()
    status = os.waitstatus_to_exitcode(status)
    if status not in fine:
        raise Failed(said.splitlines()[-1].removeprefix("error: ") if said else f"status {status}")
    return text, usage.ru_maxrss / 1024


def run_peer(it, steps, precision="fp32"):
    """The output of `--peer`: seconds of PyTorch's steps, and how many parameters it trains. In bf16 as users have it, by autocast."""
    import torch
    loss, leaves, optimizer = it.peer()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            value = loss()
        value.backward()
        if hasattr(it, "CLIP"):
            torch.nn.utils.clip_grad_norm_(leaves, it.CLIP)
        optimizer.step()

    step()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    trained = sum(leaf.numel() for leaf in leaves)
    print(json.dumps({"seconds": seconds, "trained": trained, "parameters": getattr(it, "parameters", trained), "torch": torch.__version__}))


def size(path):
    """The bytes of a file, or of all files of a folder; 0 if it is not there."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def audited(tiebreak, run, native):
    """The report of an audit of the whole run, and the audit's peak memory in MiB."""
    # The paper's preset is audited by the kernels of another order of summation, as the paper's auditors do; the others by the exact engine.
    # It may end undecided (3): the preset's thresholds miss a value in some 10^8 (docs/ROUNDING.md, section 6).
    text, memory = measured([tiebreak, "audit", run, "--json", *(["--native", "interleaved"] if native else [])], fine=(0, 3))
    return json.loads(text), memory


def train_seconds(run):
    """The median of a run's steps after the first, which makes what the others use again."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["seconds"] for line in lines[1:])


def profile(tiebreak, experiment, folder, name, rounding, steps):
    """Trains and audits in one profile."""
    job, run = folder / "job.toml", folder / "run"
    job.write_text(f"steps = {steps}\n{experiment.job(name)}{rounding}")
    _, memory = measured([tiebreak, "train", job, "--out", run, "--quiet"])
    report, audit_memory = audited(tiebreak, run, "preset" in rounding)
    return {
        "steps": steps,
        "train seconds": train_seconds(run),
        "train MiB": memory,
        # An audit ends with the step that differs.
        "audit seconds": report["seconds"] / report["outcome"].get("step", steps),
        "audit MiB": audit_memory,
        "audit result": report["outcome"]["result"],
        "commitment bytes": (size(run / "transcript") + size(run / "gradients") + size(run / "heads")) / steps,
        "log bytes": size(run / "logs") / steps,
        "state bytes": size(run / f"checkpoints/step-{steps:09}.safetensors"),
    }


def widest():
    """The widest instructions of this machine that have products of their own (`Path` of crates/engine), as a phrase; nothing elsewhere."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return ""
    names = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX-VNNI", "avx2": "AVX2"}
    return next((f" with {name}" for flag, name in names.items() if flag in flags), "")


def keep(name, result):
    RESULTS.mkdir(exist_ok=True)
    first = ", at real-time priority" if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR) else ""
    head = {"date": date.today().isoformat(), "machine": f"{os.cpu_count()} cores, {platform.machine()}{widest()}, load average {os.getloadavg()[0]:.1f}{first}"}
    (RESULTS / f"costs-{name}.json").write_text(json.dumps(head | result, indent=1) + "\n")


def peers(name, precisions, *more):
    """By precision: what `--peer` prints of PyTorch, and its most MiB; each in a process of its own, one after the other."""
    found = {}
    for precision in precisions:
        print(f"{name}: PyTorch {precision}", file=sys.stderr)
        text, memory = measured([sys.executable, __file__, "peer", "--peer", name, "--precision", precision, *more])
        found[precision] = json.loads(text) | {"MiB": memory}
    return found


def experiment(name, it, data, steps, tiebreak, keep, small):
    """Measures all of an experiment. PyTorch comes first: without it nothing has a ratio."""
    found = peers(name, getattr(it, "PRECISIONS", ("fp32",)), "--steps", steps, *small)
    sides = {precision: side | {"seconds": statistics.median(side["seconds"]), "steps": steps} for precision, side in found.items()}
    result = {"peer": sides.pop("fp32"), **sides, "profiles": {}}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        it.prepare(folder, data, tiebreak)
        for each, rounding in getattr(it, "PROFILES", PROFILES).items():
            print(f"{name}: {each}", file=sys.stderr)
            # Logged steps take several times as long, and their audits more.
            try:
                result["profiles"][each] = profile(tiebreak, it, folder, each, rounding, 2 if rounding else steps)
            except Failed as error:
                print(f"{name}: {each}: {error}", file=sys.stderr)
                result["profiles"][each] = {"error": str(error)}
            shutil.rmtree(folder / "run", ignore_errors=True)
            keep(name, result)


def answers(name, it, tiebreak, keep, small):
    """Measures answers of a model: PyTorch's in each precision, then ours, with the same released weights."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        measured([sys.executable, __file__, "peer", "--peer", name, "--precision", "release", "--weights", folder, *small])
        measured([tiebreak, "import", folder])
        result = peers(name, ("fp32", "bf16"), "--weights", folder, *small)
        print(f"{name}: tiebreak", file=sys.stderr)
        try:
            result["exact"] = it.answer(tiebreak, folder)
        except Failed as error:
            result["exact"] = {"error": str(error)}
        keep(name, result)


def sweep_rows():
    """By name: what a job of the sweep says, and whether native kernels audit it."""
    yield "exact, d = 3", "", False
    yield "exact, d = 4", "[digits]\nall = 4\n", False
    for bits in BITS:
        yield f"logged, {bits} bits", f"[rounding]\nbits = {bits}\n", False
    for bits in BITS:
        yield f"the paper's preset, {bits} bits", f'[rounding]\npreset = "paper"\nbits = {bits}\n', True


def sweep(data, steps, tiebreak):
    """Trains and audits a small GPT on each grid, and PyTorch in fp64 from the same weights and batches."""
    import numpy as np
    import torch
    from safetensors.numpy import load_file
    import loss_curve
    model, path = loss_curve.SmallGpt(), found(data, lambda name: name == "tinyshakespeare.txt").resolve()
    text = np.frombuffer(path.read_bytes(), np.uint8)

    def drift(key, weights, losses, exact):
        """The drift of weights from fp64, relative to the distance that training moved them, and the largest difference of a loss."""
        first = loss_curve.initial_weights(model, key)
        norm = lambda parts: float(np.sqrt(sum(np.sum(np.square(part)) for part in parts)))
        last = {name: x.detach().numpy() for name, x in exact[1].items()}
        apart = norm(weights[name].astype(np.float64) - x for name, x in last.items())
        return {"drift": apart / norm(x - first[name] for name, x in last.items()), "loss drift": max(abs(a - b) for a, b in zip(losses, exact[0]))}

    rows = {}
    for name, job, native in sweep_rows():
        print(f"sweep: {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            losses, key = loss_curve.train_tiebreak(model, tiebreak, Path(folder), "run", job, path, steps)
            report, _ = audited(tiebreak, run, native)
            last = load_file(run / f"checkpoints/step-{steps:09}.safetensors")
            exact = loss_curve.train_torch(model, key, text, steps, torch.float64)
            if not rows:
                peer, weights = loss_curve.train_torch(model, key, text, steps, torch.float32)
                rows["PyTorch fp32"] = drift(key, {each: x.detach().numpy() for each, x in weights.items()}, peer, exact)
            rows[name] = drift(key, {each: last[f"param/{each}"] for each in exact[1]}, losses, exact) | {
                "train seconds": train_seconds(run), "audit seconds": report["seconds"] / steps,
                "audit result": report["outcome"]["result"], "log bytes": size(run / "logs") / steps}
        keep("sweep", {"steps": steps, "rows": rows})


def amount(number):
    """Bytes as people write them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f} B"


INTRODUCTION = """# What the papers' experiments cost

`benches/costs.py` measures the experiments of the papers whose schemes this project builds on, and models of the size
that *Verde* (Arun and others 2025, arXiv 2502.19405) was measured on. The bench writes this page. Sections that name
another bench stay as they are.

- Every row is **measured** here or **published** by others. Published figures are from other machines, mostly NVIDIA
  GPUs, with their assumptions beside them, and show orders of magnitude, no ratio.
- Weights are random, and pictures are 32 x 32.
- A training step is forward, backward and update, here with commitments and log. A step's seconds are the median
  over the steps after the first.
- An audit runs from the first checkpoint over all steps, reading and checking included. The audit's seconds are divided
  by the steps.
- Commitments are records, gradient roots and heads. In so short a run, their bytes are divided by the steps.
- Memory is the most that the process had resident.
- PyTorch and this project use all cores. Both have the same model, batch size and optimizer, not the same weights and
  batches.
- PyTorch's bf16 is autocast in training: weights and optimizer stay in binary32. Answers have bfloat16 weights there.
- Ratios are to PyTorch in fp32.
- A load average above the number of cores says that other work ran beside it. The seconds are then too long, unless
  this work had real-time priority.
- Digits are the defaults of each profile.
- In the logged profile the trainer's products are the CPU engine's native binary64 kernels. The audits of these rows
  formed the exact product of every element. Audits on fine grids do so no more: see the section *Audits beside the
  training that they replay*. In the paper's preset native kernels of another order of summation audit.

*Proof-of-Learning* (Jia et al. 2021, arXiv 2103.05633) keeps a checkpoint after every k-th step, and which samples
each step took. Nobody can replay without both. This page assumes:

- a checkpoint is the state of this run: binary32 weights and the optimizer's tensors;
- an index takes 4 bytes, so that a step of B samples takes state / k + 4 B bytes;
- nothing is compressed.

An auditor who checks a run of this project by parts needs the same checkpoints. Commitments come on top.
"""


def print_published(kind):
    print("| **published** | figure | assumptions |\n|---|---|---|")
    for who, figure, why in kind.PUBLISHED:
        print(f"| {who} | {figure} | {why} |")
    print()


def print_bar(kind, ratio, what):
    """The ratio beside the one that was aimed at, and the reason if it is above that."""
    reached = "reached" if ratio <= kind.BAR else "missed"
    print(f"\nThe aim was {kind.BAR} of PyTorch fp32 for {what}: {reached}.")


def answer_table(kind, result):
    print("| | the prompt | a token of the answer | tokens a second: prompt, answer | memory |\n|---|---|---|---|---|")
    peer, exact = result["fp32"], result["exact"]
    for name, x in (("PyTorch fp32", peer), ("PyTorch bf16", result["bf16"]), ("exact", exact)):
        if "error" in x:
            print(f"| {name} | none: it stops with \"{x['error']}\" | | | |")
            continue
        times = [f"{x[key]:.3g} s" + ("" if x is peer else f" ({x[key] / peer[key]:.2f} of fp32)") for key in ("prompt seconds", "token seconds")]
        print(f"| {name}, **measured** | {times[0]} | {times[1]} | {kind.PROMPT / x['prompt seconds']:.3g}, {1 / x['token seconds']:.3g} | {x['MiB']:.0f} MiB |")
    if "error" not in exact:
        length = len(exact["tokens"])
        same = next((at for at, (a, b) in enumerate(zip(exact["tokens"], peer["tokens"])) if a != b), length)
        some = f"All {length}" if same == length else f"The first {same} of {length}"
        print(f"\n{some} tokens are those of PyTorch fp32." + ("" if same == length else " A near tie of two tokens ends the agreement."))
        print_bar(kind, exact["token seconds"] / peer["token seconds"], "a token of the answer")
    print()
    print_published(kind)


def profile_table(kind, result):
    peer = result["peer"]
    print("| | a training step | an audited step | commitment, a step | log, a step | memory: training, audit |\n|---|---|---|---|---|---|")
    print(f"| PyTorch fp32, {peer['steps']} steps, **measured** | {peer['seconds']:.3g} s | | | | {peer['MiB']:.0f} MiB |")
    if half := result.get("bf16"):
        ratio = half["seconds"] / peer["seconds"]
        print(f"| PyTorch bf16, {half['steps']} steps, **measured** | {half['seconds']:.3g} s ({ratio:.2f} of fp32) | | | | {half['MiB']:.0f} MiB |")
    for profile, x in result["profiles"].items():
        if "error" in x:
            print(f"| {profile} | none: it stops with \"{x['error']}\" | | | | |")
            continue
        if "train seconds" not in x:
            print(f"| {profile}, {x['steps']} steps, **measured** | not timed: {x['why']} | | | {amount(x['log bytes'])} | |")
            continue
        log = amount(x["log bytes"]) if x["log bytes"] else "none"
        ratios = [f"{x[key]:.3g} s ({x[key] / peer['seconds']:.2f} of PyTorch)" for key in ("train seconds", "audit seconds")]
        memory = f"{x['train MiB']:.0f}, {x['audit MiB']:.0f} MiB"
        ends = "" if x["audit result"] == "matches" else f" (the audit ends: {x['audit result']})"
        print(f"| {profile}, {x['steps']} steps, **measured** | {ratios[0]} | {ratios[1]}{ends} | {amount(x['commitment bytes'])} | {log} | {memory} |")
    exact = result["profiles"]["exact"]
    if "error" in exact:
        sys.exit(f"the exact profile failed: {exact['error']}")
    state = exact["state bytes"]
    stored = "; ".join(f"k = {k}: {amount(state / k + 4 * kind.SAMPLES)}" for k in (1, 10, 100))
    # Nobody keeps frozen weights at each checkpoint.
    if peer.get("trained", peer["parameters"]) == peer["parameters"]:
        print(f"| Proof-of-Learning for this run, by the formula above from the **measured** state of {amount(state)} | | | {stored} | | |")
    if hasattr(kind, "BAR"):
        print_bar(kind, exact["train seconds"] / peer["seconds"], "a training step")
    if hasattr(kind, "PASS"):
        x, n = exact, kind.PASS
        print(f"\nOne pass is {n} steps. In the exact profile {n} times the **measured** step is {n * x['train seconds']:.3g} s of training, "
              f"{n * x['audit seconds']:.3g} s of audit\nand {amount(n * x['commitment bytes'])} of commitments.")
    print()
    print_published(kind)


def sweep_table(result):
    print(f"{SWEEP}\n")
    print(f"`benches/costs.py sweep`, {result['date']}, {result['machine']}, {result['steps']} steps of the small\n"
          "GPT of [LOSS-CURVES.md](LOSS-CURVES.md). All rows are **measured**.\n")
    print("*Drift* is the distance from PyTorch's training in fp64, which rounds and logs nothing. Both trainings begin with the\n"
          "same weights and take the same batches; each row has others. The weights' drift is ||w - w64|| / ||w64 - w0|| after the\n"
          "last step. The loss's drift is the most of any step. A trainer and an auditor whose audit matches have no drift from\n"
          "each other.\n")
    print("31 bits are refused ([ROUNDING.md](ROUNDING.md), section 1). *Logged* rows log near ties by the norms of rows and\n"
          "columns. Rows of the preset log near ties within a quarter of the grid's step, which are half of all values on every\n"
          "grid.\n")
    print("| | drift of weights | drift of the loss | log, a step | a training step | an audited step | the audit |\n|---|---|---|---|---|---|---|")
    for name, x in result["rows"].items():
        cells = [f"{x['drift']:.1e}", f"{x['loss drift']:.1e}"]
        if "log bytes" in x:
            cells += [amount(x["log bytes"]) if x["log bytes"] else "none", f"{x['train seconds']:.3g} s", f"{x['audit seconds']:.3g} s", x["audit result"]]
        print(f"| {name} | {' | '.join(cells + [''] * (6 - len(cells)))} |")
    print("\nThe paper (**published**, section 6) has no change of accuracy down to 26 bits. The paper's logs are 5 to\n"
          "20 % smaller at 26 bits after zip, with 20 to 25 corrections a step at 32 bits, and none at 27.")


def other_sections(page):
    """The sections of a page whose figures other benches measured, from the first of them on."""
    own = {*(f"## {kind.TITLE}" for kind in (EXPERIMENTS | text_models.ANSWERING).values()), SWEEP}
    sections = re.split(r"(?m)^(?=## )", page)[1:]
    return [section.rstrip("\n") for section in sections if section.split("\n", 1)[0] not in own]


def write_page():
    """Writes the page, and keeps the sections of others. Whoever sends the output to the page would empty it before it is read."""
    page = ROOT / "docs/COSTS.md"
    with contextlib.redirect_stdout(io.StringIO()) as text:
        table()
    parts = [text.getvalue().rstrip("\n"), *other_sections(page.read_text())]
    new = page.with_suffix(".new")
    new.write_text("\n\n".join(parts) + "\n")
    new.replace(page)


def table():
    """Prints the sections whose figures are in the results."""
    print(INTRODUCTION)
    for name, kind in (EXPERIMENTS | text_models.ANSWERING).items():
        path = RESULTS / f"costs-{name}.json"
        print(f"## {kind.TITLE}\n")
        if not path.exists():
            print(f"`benches/costs.py {name}` has not been run.\n")
            print_published(kind)
            continue
        result = json.loads(path.read_text())
        measured_by = f"`benches/costs.py {name}`, {result['date']}, {result['machine']}"
        if name in text_models.ANSWERING:
            print(f"{measured_by},\na prompt of {kind.PROMPT} tokens, an answer of {kind.ANSWER}, a context of {kind.CONTEXT}, {result['fp32']['parameters']:,} parameters.\n"
                  "Each time is from the printing of one token to that of the next. Reading and checking the weights comes before.\nPyTorch's "
                  "is the second answer of its process, ours the only one.\n")
            answer_table(kind, result)
            continue
        peer = result["peer"]
        trained = f", of which {peer['trained']:,} are trained" if peer.get("trained", peer["parameters"]) < peer["parameters"] else ""
        print(f"{measured_by},\n{kind.SAMPLES} samples a step, {peer['parameters']:,} parameters{trained}.\n")
        profile_table(kind, result)
    path = RESULTS / "costs-sweep.json"
    if path.exists():
        sweep_table(json.loads(path.read_text()))


def peer(arguments, steps):
    """PyTorch's side of an experiment, in this process; `release` writes the weights that both sides read."""
    name = arguments.peer
    kind = (EXPERIMENTS | text_models.ANSWERING)[name]
    it = kind(True) if arguments.small else kind()
    if arguments.precision == "release":
        it.release(arguments.weights)
    elif name in text_models.ANSWERING:
        print(json.dumps(it.peer_answer(arguments.weights, arguments.precision)))
    else:
        run_peer(it, steps, arguments.precision)


def measure(arguments, steps):
    """Runs an experiment, and writes the page. A small one prints what would be kept."""
    name, small = arguments.experiment, ["--small"] if arguments.small else []
    kind = (EXPERIMENTS | text_models.ANSWERING)[name]
    it = kind(True) if small else kind()
    to = (lambda _, result: print(json.dumps(result, indent=1))) if small else keep
    if name in text_models.ANSWERING:
        answers(name, it, arguments.tiebreak, to, small)
    else:
        experiment(name, it, arguments.data, steps, arguments.tiebreak, to, small)
    if not small:
        write_page()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=[*EXPERIMENTS, *text_models.ANSWERING, "sweep", "table", "peer"])
    parser.add_argument("--data", type=Path, default=ROOT)
    parser.add_argument("--steps", type=int, help="of each run and of PyTorch, at least 2; 3 without it, 50 of the sweep")
    parser.add_argument("--tiebreak", type=Path, default=ROOT / "target/release/tiebreak")
    parser.add_argument("--small", action="store_true", help="a tiny model of the same form; only for models of benches/text_models.py")
    parser.add_argument("--peer", choices=[*EXPERIMENTS, *text_models.ANSWERING], help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "release"], help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    steps = arguments.steps or (50 if arguments.experiment == "sweep" else 3)
    if steps < 2:
        parser.error("--steps has to be at least 2: the first step is not measured")
    if arguments.small and (arguments.peer or arguments.experiment) not in text_models.TRAINED | text_models.ANSWERING:
        parser.error(f"--small is for {', '.join(text_models.TRAINED | text_models.ANSWERING)}")
    if arguments.experiment == "table":
        write_page()
    elif arguments.experiment == "sweep":
        sweep(arguments.data, steps, arguments.tiebreak)
        write_page()
    elif arguments.experiment == "peer":
        peer(arguments, steps)
    else:
        measure(arguments, steps)


if __name__ == "__main__":
    main()
