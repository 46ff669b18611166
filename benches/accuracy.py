"""The accuracy of trained models beside PyTorch's in fp32, from the same weights and the same order of samples.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install torch numpy safetensors
    venv/bin/python benches/accuracy.py mnist --data DIR [--seeds 5] [--steps N]
    venv/bin/python benches/accuracy.py cifar --data DIR

DIR is searched with its folders: mnist takes t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz and trains on the first 8,000 of these images; cifar takes records in
CIFAR-10's binary format, train*.bin and test*.bin. For each seed `tiebreak train` and PyTorch train from the weights and the batches of that seed; `tiebreak eval` and PyTorch
classify the images that were kept back. Writes the model's part of docs/ACCURACY.md. The exit status is 1 if the means are more than two standard errors
of their difference apart.
"""

import argparse
import gzip
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import torch

import loss_curve
import networks

ROOT = Path(__file__).resolve().parent.parent
PAGE = """# Accuracy beside PyTorch

Means over several seeds of the part of test images that are classified rightly. Each seed has its own initial weights and batches, the same here and in PyTorch (fp32, CPU).
"""


def found(folder, pattern):
    files = sorted(folder.rglob(pattern))
    return files[0] if files else sys.exit(f"{folder} has no {pattern}")


class Mnist(networks.Mlp):
    """A perceptron."""

    NAME, TITLE, STEPS, TRAINED, SAMPLES = "mnist", "A perceptron on MNIST", 1000, 8000, 64
    ABOUT = "One hidden layer of 128 channels, SGD with momentum, 64 images a step; the first 8,000 of the test images train, the other 2,000 test."
    PEAK, FLOOR, WARMUP = 0.05, 0.0, 50

    def __init__(self):
        super().__init__([128], 784)

    def job(self):
        return (f'steps = 1\nclip_norm = 1.0\n[model]\nkind = "mlp"\ninputs = 784\nhidden = [128]\nclasses = 10\n[data]\nkind = "idx"\n'
                f'images = {json.dumps(str(self.files[0]))}\nlabels = {json.dumps(str(self.files[1]))}\n[optimizer]\nkind = "sgd"\nmomentum = 0.9\n'
                f"weight_decay = 5e-4\n[schedule]\npeak = {self.PEAK}\nwarmup = {self.WARMUP}\nfloor = {self.FLOOR}\n[batch]\nmicro_batch = {self.SAMPLES}\n")

    def split(self, data, folder):
        """The training data as PyTorch takes it, the test data, and the files of either."""
        images, labels = (gzip.decompress(found(data, f"t10k-{name}.gz").read_bytes()) for name in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        kept, count = self.TRAINED, len(labels) - 8
        cut = lambda raw, head, size, first, last: (
            raw[:4] + (last - first).to_bytes(4, "big") + raw[8:head] + raw[head + first * size:head + last * size])
        files = {}
        for part, first, last in (("train", 0, kept), ("test", kept, count)):
            files[part] = [folder / f"{part}-images", folder / f"{part}-labels"]
            files[part][0].write_bytes(cut(images, 16, 784, first, last))
            files[part][1].write_bytes(cut(labels, 8, 1, first, last))
        self.files = files["train"]
        pixels = torch.tensor(np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784).astype(np.float32)) / 255
        classes = torch.tensor(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64))
        return (pixels[:kept], classes[:kept]), (pixels[kept:], classes[kept:]), files

    def batch(self, key, step, data, dtype):
        chosen = loss_curve.drawn(key, step, self.SAMPLES, len(data[1]))
        return data[0][chosen].to(dtype), data[1][chosen]

    def optimizer(self, decayed, others):
        return loss_curve.DecayedSgd(decayed, others, 0.9, 5e-4)


class Cifar(loss_curve.Resnet):
    """The residual network of assets/jobs/cifar-resnet.toml."""

    NAME, TITLE, STEPS = "cifar", "A residual network on CIFAR-10", 600
    ABOUT = "The job of `assets/jobs/cifar-resnet.toml`: 78 k parameters, 64 images a step; 5,000 records train, 1,000 test."

    def split(self, data, folder):
        files = {part: [found(data, f"{part}*.bin")] for part in ("train", "test")}
        self.files = files["train"]
        test = np.frombuffer(files["test"][0].read_bytes(), np.uint8).reshape(-1, self.RECORD)
        pixels = torch.tensor(test[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32)) / 255
        return np.frombuffer(self.files[0].read_bytes(), np.uint8), (pixels, torch.tensor(test[:, 0].astype(np.int64))), files


def accuracies(model, binary, folder, seed, train, test, files, steps):
    """The accuracy of `tiebreak` and of PyTorch from one seed."""
    name = f"seed{seed}"
    _, key = loss_curve.train_tiebreak(model, binary, folder, name, "", files["train"][0], steps, seed)
    held = [part for path in files["test"] for part in ("--data", path)]
    text = subprocess.run([binary, "eval", folder / name, *held, "--json"], check=True, capture_output=True).stdout
    report = json.loads(text)
    _, weights = loss_curve.train_torch(model, key, train, steps, torch.float32)
    with torch.no_grad():
        hits = (model.forward(weights, test[0]).argmax(1) == test[1]).sum().item()
    return report["hits"] / report["labels"], hits / len(test[1])


def main():
    models = {model.NAME: model for model in (Mnist(), Cifar())}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=models)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tiebreak")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of ACCURACY.md")
    options = parser.parse_args()
    model = models[options.model]
    steps, rows = options.steps or model.STEPS, []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        train, test, files = model.split(options.data.resolve(), folder)
        for seed in range(1, options.seeds + 1):
            rows.append(accuracies(model, options.binary.resolve(), folder, seed, train, test, files, steps))
            print(f"seed {seed}: {rows[-1]}")
    ours, theirs = ([row[i] for row in rows] for i in (0, 1))
    error = math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / len(rows))
    apart = statistics.mean(ours) - statistics.mean(theirs)
    percent = lambda values: f"{100 * statistics.mean(values):.2f} % (from {100 * min(values):.1f} to {100 * max(values):.1f})"
    section = "\n\n".join([
        f"## {model.TITLE}", model.ABOUT,
        f"| | mean over {len(rows)} seeds |\n|---|---|\n| tiebreak, default digits | {percent(ours)} |\n| PyTorch fp32 | {percent(theirs)} |\n"
        f"| difference of the means | {100 * apart:+.2f} %, standard error {100 * error:.2f} % |",
        f"Made on {date.today()} by `venv/bin/python benches/accuracy.py {model.NAME} --data DIR`, {steps} steps, {platform.machine()}, {os.cpu_count()} cores, PyTorch "
        f"{torch.__version__.split('+')[0]}."])
    page = options.docs / "ACCURACY.md"
    text = page.read_text() if page.exists() else PAGE
    kept = loss_curve.section(text, model.TITLE)
    page.write_text(text.replace(kept, section) if kept else f"{text.strip()}\n\n{section}\n")
    return 1 if abs(apart) > 2 * error else 0


if __name__ == "__main__":
    sys.exit(main())
