"""What the papers' experiments cost here, beside PyTorch in fp32 on the same cores in the same run.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install torch torchvision transformers numpy
    venv/bin/python benches/costs.py resnet50 --data DIR      (or vgg11, gpt2, logistic)
    venv/bin/python benches/costs.py table > docs/COSTS.md

DIR holds CIFAR-10's records (any name that ends in .bin) for resnet50 and vgg11, and tinyshakespeare.txt and GPT-2's encoder.json and vocab.bpe
for gpt2; it is searched with its folders. logistic makes its samples. Each experiment trains a few steps by `tiebreak train` in the exact profile and
in the logged one, audits them by `tiebreak audit`, takes the same steps in PyTorch, and writes benches/results/costs-NAME.json. `table` reads these
files and prints the page. Weights are random: what a step costs does not depend on them.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches/results"
PROFILES = {
    "exact": "",
    "logged, binary32 grid": "[rounding]\nbits = 32\n",
    "logged, the paper's preset": '[rounding]\npreset = "paper"\n',
}
SGD = '[optimizer]\nkind = "sgd"\nmomentum = 0.9\nweight_decay = 5e-4\n[schedule]\npeak = 1e-3\n'
ADAMW = '[optimizer]\nkind = "adamw"\nbeta1 = 0.9\nbeta2 = 0.999\nepsilon = 1e-8\nweight_decay = 0.01\n[schedule]\npeak = 5e-5\n'


def found(folder, fits):
    """The first file of a folder or a folder in it whose name fits."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and fits(path.name))
    return files[0] if files else sys.exit(f"{folder} has none of the files that this experiment needs; see --help")


class Pictures:
    """A classifier of 32 x 32 pictures, as the paper trains it on CIFAR-10."""

    def prepare(self, folder, data):
        source = found(data, lambda name: name.endswith(".bin"))
        (folder / "records.bin").write_bytes(source.read_bytes())

    def job(self):
        return f'{self.MODEL}[data]\nkind = "cifar10"\npath = "records.bin"\n{SGD}[batch]\nmicro_batch = {self.SAMPLES}\n'

    def peer(self):
        import torch
        network = self.network()
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
        images, labels = torch.rand(self.SAMPLES, 3, 32, 32), torch.randint(10, (self.SAMPLES,))

        def step():
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()

        return network, step


class Resnet50(Pictures):
    TITLE, SAMPLES = "ResNet-50 on CIFAR-10", 64
    MODEL = ('[model]\nkind = "resnet"\nheight = 32\nwidth = 32\nplanes = 3\nblock = "bottleneck"\norder = "post"\nstem = "cifar"\n'
             'norm = "batch"\nstages = [64, 128, 256, 512]\nblocks = [3, 4, 6, 3]\nclasses = 10\n')
    PUBLISHED = [
        ("Srivastava, Arora, Boneh (2024): log of a step", "up to 176 MB before compression: 8.79e8 roundings, 1.6 bit each",
         "derived from their table 3 and their packing; binary64 kernels on NVIDIA GPUs"),
    ]

    def network(self):
        import torch
        import torchvision
        network = torchvision.models.resnet50(num_classes=10)
        # The stem of a network for small pictures: one convolution of 3 x 3, no pooling.
        network.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        network.maxpool = torch.nn.Identity()
        return network


class Vgg11(Pictures):
    TITLE, SAMPLES = "VGG-11 on CIFAR-10", 16
    MODEL = '[model]\nkind = "vgg11"\nheight = 32\nwidth = 32\nplanes = 3\nclasses = 10\n'
    PUBLISHED = [
        ("Srivastava, Arora, Boneh (2024): training and audit of a step", "6 s, 1.2 MB", "their table 5, an NVIDIA GPU"),
        ("Kaizen (2024): proof of a step", "15 min (22 min in an earlier version), 1.63 MB",
         "a variant of 10 M parameters; the proof has one size for the whole run, and its check takes 130 ms"),
    ]

    def network(self):
        import torchvision
        return torchvision.models.vgg11(num_classes=10)


class Gpt2:
    TITLE, SAMPLES, CONTEXT = "Fine-tuning GPT-2 124M on tiny Shakespeare", 8, 64
    PUBLISHED = [
        ("Srivastava, Arora, Boneh (2024): training, audit of a step", "11 s, 13.5 s; a log of 18 MB", "512 tokens, binary64 kernels on NVIDIA GPUs"),
        ("SIGMA, adapted by the same", "983 s, 189 GB", "their estimate (the formula that they print gives twice the bytes)"),
        ("Proof-of-Learning, as the same count it", "2.78 GB", "binary64 weights and both moments after each step"),
    ]

    def prepare(self, folder, data):
        text, bpe = found(data, lambda name: name == "tinyshakespeare.txt"), found(data, lambda name: name == "vocab.bpe").parent
        importer = ROOT / "target/release/tiebreak-import"
        subprocess.run([importer, "text", "--tokenizer", bpe, "--output", folder / "tokens.npy", text], check=True, stdout=subprocess.DEVNULL)

    def job(self):
        model = f'[model]\nkind = "gpt"\nvocabulary = 50257\ncontext = {self.CONTEXT}\nlayers = 12\nheads = 12\nwidth = 768\n'
        return f'{model}[data]\nkind = "tokens"\ndtype = "u16"\npath = "tokens.npy"\n{ADAMW}[batch]\nmicro_batch = {self.SAMPLES}\n'

    def peer(self):
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        network = GPT2LMHeadModel(GPT2Config(n_positions=self.CONTEXT, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        optimizer = torch.optim.AdamW(network.parameters(), lr=5e-5, weight_decay=0.01)
        tokens = torch.randint(50257, (self.SAMPLES, self.CONTEXT))

        def step():
            optimizer.zero_grad(set_to_none=True)
            network(tokens, labels=tokens).loss.backward()
            optimizer.step()

        return network, step


class Logistic:
    TITLE, SAMPLES, ROWS, COLUMNS = "Logistic regression, 2^18 x 1024", 2014, 1 << 18, 1024
    PUBLISHED = [
        ("Srivastava, Arora, Boneh (2024): one pass, training and audit", "7 s, 106 KB", "an NVIDIA GPU"),
        ("Garg et al. (2023): one pass", "72 s, 350 MB", "the online phase alone"),
        ("Proof-of-Learning, as the first count it", "9.2 MB a step", ""),
    ]

    def prepare(self, folder, data):
        import numpy as np
        draw = np.random.default_rng(1)
        inputs = np.lib.format.open_memmap(folder / "inputs.npy", "w+", np.float16, (self.ROWS, self.COLUMNS))
        for first in range(0, self.ROWS, 1 << 14):
            inputs[first:first + (1 << 14)] = draw.standard_normal((1 << 14, self.COLUMNS), np.float32)
        inputs.flush()
        np.save(folder / "labels.npy", draw.integers(0, 2, self.ROWS, dtype=np.uint8))

    def job(self):
        data = '[data]\nkind = "arrays"\ninputs = "inputs.npy"\nlabels = "labels.npy"\ndtype = "f16"\n'
        model = f'[model]\nkind = "mlp"\ninputs = {self.COLUMNS}\nhidden = []\nclasses = 2\n'
        return f"{model}{data}{SGD}[batch]\nmicro_batch = {self.SAMPLES}\n"

    def peer(self):
        import torch
        network = torch.nn.Linear(self.COLUMNS, 2)
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
        inputs, labels = torch.randn(self.SAMPLES, self.COLUMNS), torch.randint(2, (self.SAMPLES,))

        def step():
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(network(inputs), labels).backward()
            optimizer.step()

        return network, step


EXPERIMENTS = {"resnet50": Resnet50, "vgg11": Vgg11, "gpt2": Gpt2, "logistic": Logistic}


def measured(command):
    """Runs a command; what it printed, and the most memory that it had, in MiB."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen([str(part) for part in command], stdout=output)
        _, status, usage = os.wait4(child.pid, 0)
        output.seek(0)
        text = output.read().decode()
    if status:
        sys.exit(f"{' '.join(str(part) for part in command)}: it failed\n{text}")
    return text, usage.ru_maxrss / 1024


def run_peer(name, steps):
    """What `--peer` prints: seconds of PyTorch's steps, and how many parameters it trains."""
    network, step = EXPERIMENTS[name]().peer()
    step()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "parameters": sum(p.numel() for p in network.parameters())}))


def size(path):
    """The bytes of a file, or of all files of a folder; 0 if it is not there."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def profile(tiebreak, experiment, folder, name, steps):
    """Trains and audits in one profile."""
    job, run = folder / "job.toml", folder / "run"
    job.write_text(f"steps = {steps}\n{experiment.job()}{PROFILES[name]}")
    _, memory = measured([tiebreak, "train", job, "--out", run, "--quiet"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # The first step makes what the others use again.
    train = statistics.median(line["seconds"] for line in lines[1:])
    # The paper's preset is audited by the kernels of another order of summation, as the paper's auditors do; the others by the exact engine.
    engine = ["--native", "interleaved"] if "preset" in PROFILES[name] else []
    text, audit_memory = measured([tiebreak, "audit", run, "--json", *engine])
    report = json.loads(text)
    found = {
        "train seconds": train,
        "train MiB": memory,
        "audit seconds": report["seconds"] / steps,
        "audit MiB": audit_memory,
        "audit result": report["outcome"]["result"],
        "commitment bytes": (size(run / "transcript") + size(run / "gradients") + size(run / "heads")) / steps,
        "log bytes": size(run / "logs") / steps,
        "state bytes": size(run / f"checkpoints/step-{steps:09}.safetensors"),
    }
    subprocess.run(["rm", "-rf", run], check=True)
    return found


def experiment(name, data, steps, tiebreak):
    """Measures all of an experiment."""
    it = EXPERIMENTS[name]()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        it.prepare(folder, data)
        profiles = {}
        for each in PROFILES:
            print(f"{name}: {each}", file=sys.stderr)
            profiles[each] = profile(tiebreak, it, folder, each, steps)
        print(f"{name}: PyTorch", file=sys.stderr)
        text, memory = measured([sys.executable, __file__, "peer", "--peer", name, "--steps", steps])
    peer = json.loads(text)
    result = {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "steps": steps,
        "profiles": profiles,
        "peer": {"seconds": statistics.median(peer["seconds"]), "MiB": memory, "parameters": peer["parameters"]},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"costs-{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def amount(number):
    """Bytes as people write them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f} B"


INTRODUCTION = """# What the papers' experiments cost

`benches/costs.py` measures the experiments of the papers whose schemes this project builds on, and prints this page. Every row says whether it was **measured** here or
**published** by others. Published figures are from other machines, mostly NVIDIA GPUs, and their assumptions stand beside them: they show orders of magnitude, no ratio.
Weights are random, and pictures are 32 x 32. Seconds are medians over the steps after the first; an audit's are those of a whole audit from the first checkpoint, reading and checking
included, divided by the steps. Commitments are records, gradient roots and signed heads. In the logged profile the trainer's products are the CPU engine's native kernels; an auditor replays them by exact products, but
in the paper's preset by native kernels of another order of summation.

*Proof-of-Learning* (Jia et al. 2021) keeps the state itself: the row says the bytes of one state in this run, binary32 weights and the optimizer's tensors, which it needs after every k-th step.
"""


def table():
    """Prints the page."""
    print(INTRODUCTION)
    for name, kind in EXPERIMENTS.items():
        path = RESULTS / f"costs-{name}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        peer = result["peer"]
        print(f"## {kind.TITLE}\n")
        print(f"`benches/costs.py {name}`, {result['date']}, {result['machine']}, {result['steps']} steps of {kind.SAMPLES} samples; {peer['parameters']:,} parameters.\n")
        print("| | a training step | an audited step | commitment, a step | log, a step | memory: training, audit |\n|---|---|---|---|---|---|")
        print(f"| PyTorch fp32, **measured** | {peer['seconds']:.3g} s | | | | {peer['MiB']:.0f} MiB |")
        for profile, x in result["profiles"].items():
            log = amount(x["log bytes"]) if x["log bytes"] else "none"
            ratios = [f"{x[key]:.3g} s ({x[key] / peer['seconds']:.2f} of PyTorch)" for key in ("train seconds", "audit seconds")]
            memory = f"{x['train MiB']:.0f}, {x['audit MiB']:.0f} MiB"
            ends = "" if x["audit result"] == "matches" else f" (the audit ends: {x['audit result']})"
            print(f"| {profile}, **measured** | {ratios[0]} | {ratios[1]}{ends} | {amount(x['commitment bytes'])} | {log} | {memory} |")
        state = amount(result["profiles"]["exact"]["state bytes"])
        print(f"| Proof-of-Learning for this run, **measured** | | | | {state} every k-th step | |")
        print("\n| **published** | figure | assumptions |\n|---|---|---|")
        for who, figure, why in kind.PUBLISHED:
            print(f"| {who} | {figure} | {why} |")
        print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "table", "peer"])
    parser.add_argument("--data", type=Path, default=ROOT)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tiebreak", type=Path, default=ROOT / "target/release/tiebreak")
    parser.add_argument("--peer", choices=EXPERIMENTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.experiment == "table":
        table()
    elif arguments.experiment == "peer":
        run_peer(arguments.peer, arguments.steps)
    else:
        experiment(arguments.experiment, arguments.data, arguments.steps, arguments.tiebreak)


if __name__ == "__main__":
    main()
