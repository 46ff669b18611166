"""The loss curves of the exact profile beside PyTorch in fp32, from the same initial weights and batches.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install torch numpy safetensors
    venv/bin/python benches/loss_curve.py gpt [--data FILE] [--steps 600] [--seeds 3] [--only "d = 2"]
    venv/bin/python benches/loss_curve.py gpt-small [--data FILE]
    venv/bin/python benches/loss_curve.py resnet --data FILE [--steps 600] [--seeds 3]
    venv/bin/python benches/loss_curve.py mlp --data FILE

Trains assets/jobs/shakespeare.toml (gpt-small: with fewer and narrower layers, from three seeds), or cifar-resnet.toml or cifar-mlp.toml (without
dropout, from three seeds) on records in CIFAR-10's binary format, with several numbers of digits by `tiebreak train`, then the same model written in PyTorch; writes the model's part of
docs/LOSS-CURVES.md, and docs/loss-curves-MODEL.csv and .svg. With --only, the model's other curves are what the csv file holds. With --most, the
mean loss of the last 50 steps may be so far from PyTorch's fp32 for every number of digits but d = 2, else the exit status is 1.

Shares no code with the engines: initial weights and batch order are drawn here again by docs/ARITHMETIC.md, section 6, and
the weights are compared with the run's first checkpoint.
"""

import argparse
import csv
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "venv/bin/python benches/loss_curve.py"
CLASSES = ["linear", "linear_dx", "linear_dw", "head", "head_dx", "head_dw", "scores", "scores_dq", "scores_dk", "values", "values_dp",
           "values_dv"]


def classes(digits):
    """A job's keys for some classes of products: digits of the two operands, and the block."""
    return "".join(f"[digits.class.{c}]\ndigits_a = {a}\ndigits_b = {b}\nblock = {block}\n" for c, (a, b, block) in digits.items())


# Two digits, and three where rows are wide in range: the loss's gradient, attention's probabilities and their gradients.
WIDE = ["head_dx", "head_dw", "scores_dq", "scores_dk", "values", "values_dv"]
TWO_AND_THREE = {name: (3 if name in WIDE else 2, 2, 0) for name in CLASSES}
# What a job says of its products.
DIGITS = {
    "d = 3": "[digits]\nall = 3\n",
    "d = 2": "[digits]\nall = 2\n",
    "d = 2, blocks of 64": classes({c: (2, 2, 64) for c in CLASSES}),
    "2 and 3 digits": "[digits]\nall = 2\n" + classes({name: TWO_AND_THREE[name] for name in WIDE}),
    "2 and 3, weights 3": classes(TWO_AND_THREE | {"linear": (2, 3, 0), "linear_dx": (2, 3, 0), "head_dx": (3, 3, 0)}),
    "2 and 3, linear and its gradients 3": classes(TWO_AND_THREE | dict.fromkeys(("linear", "linear_dx", "linear_dw", "head_dx"), (3, 3, 0))),
}
try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from safetensors.numpy import load_file

    import networks
except ImportError as error:
    sys.exit(f"{error}: run it in an environment with `pip install torch numpy safetensors`")

EPSILON, CLIP = 1e-5, 1.0
# Curves have to stay so near to PyTorch's fp32 in the steps in which fp32 is so near to fp64.
BAR, CERTAIN = 1e-3, 1e-4


def philox(key, counter):
    """Philox4x32-10 (Salmon et al. 2011) on arrays of counters, uint64 holding 32-bit words."""
    mask = np.uint64(0xFFFFFFFF)
    c = [np.asarray(x, np.uint64) for x in counter]
    k = list(key)
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (second >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), second & mask,
            (first >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), first & mask,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


class Gpt:
    NAME, JOB, TITLE, STEPS, SEEDS = "gpt", "shakespeare.toml", "A GPT on text", 600, 1
    DIGITS = ["d = 3", "d = 2", "d = 2, blocks of 64", "2 and 3 digits", "2 and 3, weights 3", "2 and 3, linear and its gradients 3"]
    DATA = ROOT / "assets/jobs/text/shakespeare.txt"
    MORE_DIGITS = ("*Weights 3* are three digits for the weights in `linear` (2 x 3 digits), `linear_dx` (2 x 3) and `head_dx` (3 x 3).\n"
                   "*Linear and its gradients 3* are 3 x 3 digits there and in `linear_dw`.")
    ABOUT = "4 layers, width 144, 1.06 M parameters, 8 x 128 tokens a step, AdamW, clipping, warm-up and cosine;\n%d bytes of text.\n" + MORE_DIGITS
    CONTEXT, LAYERS, HEADS, WIDTH, VOCABULARY, SAMPLES, STD = 128, 4, 4, 144, 256, 8, 0.02
    PEAK, FLOOR, WARMUP = 2e-3, 2e-4, 50

    def table(self):
        """Parameters in the model's order: name, shape, standard deviation or, of vectors, the value."""
        f32, width = np.float32, self.WIDTH
        table = [("token_embedding", (self.VOCABULARY, width), self.STD), ("position_embedding", (self.CONTEXT, width), self.STD)]
        projection = f32(self.STD) / np.sqrt(f32(2.0) * f32(self.LAYERS))
        for layer in range(self.LAYERS):
            name = lambda rest: f"block{layer}.{rest}"
            table += [(name("norm1.gain"), (width,), 1), (name("norm1.bias"), (width,), 0)]
            linears = [("query", width, width, self.STD), ("key", width, width, self.STD), ("value", width, width, self.STD),
                       ("attention_out", width, width, projection)]
            tail = [("mlp_in", 4 * width, width, self.STD), ("mlp_out", width, 4 * width, projection)]
            for part in (linears, tail):
                if part is tail:
                    table += [(name("norm2.gain"), (width,), 1), (name("norm2.bias"), (width,), 0)]
                for rest, outputs, inputs, std in part:
                    table += [(name(f"{rest}.weight"), (outputs, inputs), std), (name(f"{rest}.bias"), (outputs,), 0)]
        return table + [("final_norm.gain", (width,), 1), ("final_norm.bias", (width,), 0)]

    def batch(self, key, step, data, dtype):
        starts = drawn(key, step, self.SAMPLES, len(data) - self.CONTEXT)
        windows = torch.tensor(np.stack([data[s:s + self.CONTEXT + 1] for s in starts]).astype(np.int64))
        return windows[:, :-1], windows[:, 1:].reshape(-1)

    def optimizer(self, decayed, others):
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)

    def forward(self, w, tokens):
        width, shape = self.WIDTH, (self.SAMPLES, self.CONTEXT, self.HEADS, self.WIDTH // self.HEADS)
        norm = lambda x, name: F.layer_norm(x, (width,), w[f"{name}.gain"], w[f"{name}.bias"], EPSILON)
        linear = lambda x, name: F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])
        x = w["token_embedding"][tokens] + w["position_embedding"]
        for layer in range(self.LAYERS):
            block = f"block{layer}"
            y = norm(x, f"{block}.norm1")
            q, k, v = (linear(y, f"{block}.{name}").view(shape).transpose(1, 2) for name in ("query", "key", "value"))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(y.transpose(1, 2).reshape(self.SAMPLES, self.CONTEXT, width), f"{block}.attention_out")
            y = F.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp_in"), approximate="tanh")
            x = x + linear(y, f"{block}.mlp_out")
        return F.linear(norm(x, "final_norm"), w["token_embedding"]).reshape(-1, self.VOCABULARY)


class SmallGpt(Gpt):
    """So small that several seeds take minutes."""

    NAME, TITLE, SEEDS = "gpt-small", "A small GPT on text", 3
    DIGITS = ["d = 3", "2 and 3 digits", "2 and 3, weights 3", "2 and 3, linear and its gradients 3"]
    ABOUT = "2 layers, width 64, context 64, 0.12 M parameters, 8 x 64 tokens a step, else as the file has it;\n%d bytes of text.\n" + Gpt.MORE_DIGITS
    CONTEXT, LAYERS, WIDTH = 64, 2, 64

    def job(self):
        text = (ROOT / "assets/jobs" / self.JOB).read_text()
        for key in ("context", "layers", "width"):
            text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {getattr(self, key.upper())}", text)
        return text


class DecayedSgd(torch.optim.SGD):
    """SGD with momentum whose weight decay is no part of the momentum, as sgd.v1 has it."""

    def __init__(self, decayed, others, momentum, decay):
        super().__init__([{"params": decayed}, {"params": others}], lr=1.0, momentum=momentum)
        self.decay = decay

    @torch.no_grad()
    def step(self):
        for x in self.param_groups[0]["params"]:
            x.mul_(1 - self.param_groups[0]["lr"] * self.decay)
        super().step()


class Cifar:
    """Images of 32 x 32 pixels, SGD with momentum."""

    DIGITS = ["d = 3", "2 and 3 digits"]
    DATA = None
    SAMPLES, RECORD = 64, networks.RECORD

    def batch(self, key, step, data, dtype):
        records = data[:len(data) // self.RECORD * self.RECORD].reshape(-1, self.RECORD)
        records = records[drawn(key, step, self.SAMPLES, len(records))]
        images = torch.tensor(records[:, 1:].reshape(-1, 3, 32, 32)).to(dtype) / 255
        return images, torch.tensor(records[:, 0].astype(np.int64))

    def optimizer(self, decayed, others):
        return DecayedSgd(decayed, others, 0.9, 5e-4)


class Perceptron(Cifar, networks.Mlp):
    """With clipping, as all networks here, and without dropout, of which PyTorch draws another."""

    NAME, JOB, TITLE, STEPS, SEEDS = "mlp", "cifar-mlp.toml", "A perceptron on CIFAR-10", 600, 3
    ABOUT = ("hidden layers of 256 and 128 channels, 0.82 M parameters, no dropout, 2 x 32 images a step, SGD with momentum,\nclipping, warm-up "
             "and cosine; %d bytes of records.")
    PEAK, FLOOR, WARMUP = 0.02, 0.0, 20

    def __init__(self):
        super().__init__([256, 128])

    def job(self):
        text = (ROOT / "assets/jobs" / self.JOB).read_text()
        return f"clip_norm = {CLIP}\n" + re.sub(r"(?m)^dropout = .*$", "dropout = 0.0", text)


class Resnet(Cifar):
    NAME, JOB, TITLE, STEPS, SEEDS = "resnet", "cifar-resnet.toml", "A residual network on CIFAR-10", 600, 3
    ABOUT = ("stages of 16, 32 and 64 channels, one block each, 78 k parameters, 2 x 32 images a step, SGD with momentum,\nclipping, warm-up and "
             "cosine; %d bytes of records.")
    STAGES = [16, 32, 64]
    PEAK, FLOOR, WARMUP = 0.1, 0.0, 40

    def blocks(self):
        before = self.STAGES[0]
        for stage, channels in enumerate(self.STAGES):
            yield f"stage{stage}.block0", before, channels, 2 if stage else 1
            before = channels

    def table(self):
        f32 = np.float32
        conv = lambda name, outputs, kernel, inputs: (
            f"{name}.weight", (outputs, kernel, kernel, inputs), np.sqrt(f32(2.0) / f32(kernel * kernel * inputs)))
        norm = lambda name, channels: [(f"{name}.gain", (channels,), 1), (f"{name}.bias", (channels,), 0)]
        table = [conv("stem", self.STAGES[0], 3, 3)]
        for name, inputs, outputs, stride in self.blocks():
            table += norm(f"{name}.norm0", inputs)
            if stride > 1:
                table.append(conv(f"{name}.shortcut", outputs, 1, inputs))
            table.append(conv(f"{name}.conv0", outputs, 3, inputs))
            table += norm(f"{name}.norm1", outputs)
            table.append(conv(f"{name}.conv1", outputs, 3, outputs))
        last = self.STAGES[-1]
        return table + norm("norm", last) + [("head.weight", (10, last), np.sqrt(f32(1.0) / f32(last))), ("head.bias", (10,), 0)]

    def normed(self, w, x, name):
        """Over the channels of each pixel."""
        y = x.permute(0, 2, 3, 1)
        return F.layer_norm(y, (y.shape[-1],), w[f"{name}.gain"], w[f"{name}.bias"], EPSILON).permute(0, 3, 1, 2)

    def forward(self, w, x):
        conv = lambda x, name, stride=1, padding=1: F.conv2d(x, w[f"{name}.weight"].permute(0, 3, 1, 2), None, stride, padding)
        norm_relu = lambda x, name: F.relu(self.normed(w, x, name))

        x = conv(x, "stem")
        for name, _, _, stride in self.blocks():
            y = norm_relu(x, f"{name}.norm0")
            shortcut = conv(y, f"{name}.shortcut", stride, 0) if stride > 1 else x
            y = norm_relu(conv(y, f"{name}.conv0", stride), f"{name}.norm1")
            x = shortcut + conv(y, f"{name}.conv1")
        return F.linear(norm_relu(x, "norm").mean((2, 3)), w["head.weight"], w["head.bias"])


def initial_weights(model, key):
    """Section 6 of the contract."""
    f32 = np.float32
    weights = {}
    for number, (name, shape, std) in enumerate(model.table()):
        if len(shape) == 1:
            weights[name] = np.full(shape, std, f32)
            continue
        count = math.prod(shape)
        zero = np.zeros(count, np.uint64)
        words = philox(key, (np.arange(count, dtype=np.uint64), zero, zero + np.uint64(number), zero + np.uint64(0xFFFFFFFE)))
        total = sum((w & np.uint64(0xFFFF)) + (w >> np.uint64(16)) for w in words).astype(np.int64)
        c = f32(std) * np.sqrt(f32(1.5)) / f32(131072)
        weights[name] = ((2 * total - 8 * 65535).astype(f32) * c).reshape(shape)
    return weights


def drawn(key, step, count, samples):
    """The samples of a step: section 6, batch order."""
    zero = np.zeros(count, np.uint64)
    words = philox(key, (zero + np.uint64(step), np.arange(count, dtype=np.uint64), zero + np.uint64(0xFFFFFFFF), zero))
    return [((int(words[0][i]) | int(words[1][i]) << 32) * samples) >> 64 for i in range(count)]


def learning_rate(model, step, steps):
    if step <= model.WARMUP:
        return model.PEAK * step / model.WARMUP
    cosine = math.cos(math.pi * (step - model.WARMUP) / max(1, steps - model.WARMUP))
    return model.FLOOR + (model.PEAK - model.FLOOR) * 0.5 * (1 + cosine)


def train_torch(model, key, data, steps, dtype):
    """The losses of a PyTorch training in `dtype`, and the weights after it."""
    weights = {n: torch.tensor(x).to(dtype).requires_grad_() for n, x in initial_weights(model, key).items()}
    decayed = [x for x in weights.values() if x.dim() > 1]
    others = [x for x in weights.values() if x.dim() == 1]
    optimizer = model.optimizer(decayed, others)
    losses = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(model, step, steps)
        inputs, labels = model.batch(key, step, data, dtype)
        optimizer.zero_grad()
        loss = F.cross_entropy(model.forward(weights, inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses, weights


def job_of(model, data, steps, seed):
    """The model's job on a file of data, with the batches that `drawn` draws and a checkpoint at the end."""
    text = model.job() if hasattr(model, "job") else (ROOT / "assets/jobs" / model.JOB).read_text()
    text = re.sub(r"(?m)^steps = .*$", f"steps = {steps}\nseed = {seed}", text)
    text = re.sub(r"(?m)^path = .*$", f"path = {json.dumps(str(data))}", text)
    text = re.sub(r"(?m)^\[data\]$", '[data]\nsampling = "with_replacement"', text)
    # Heads and checkpoints do not enter the arithmetic.
    return re.sub(r"(?m)^every = .*$", f"every = {steps}", text)


def train_tiebreak(model, binary, folder, name, digits, data, steps, seed=0):
    """The losses of an exact run in the folder `name`, and its key for Philox. Its first checkpoint is compared with the contract."""
    job, run = folder / f"{name}.toml", folder / name
    job.write_text(job_of(model, data, steps, seed) + "\n" + digits)
    # A challenge, as a client would give; the seed depends on the job too, so each job has its own.
    challenge = ["--challenge", "00" * 32]
    subprocess.run([binary, "train", job, "--data-root", Path(data).parent, "--out", run, *challenge], check=True)
    inspected = json.loads(subprocess.run([binary, "inspect", run, "--json"], check=True, capture_output=True).stdout)
    seed = bytes.fromhex(inspected["seed"])
    key = (int.from_bytes(seed[:4], "little"), int.from_bytes(seed[4:8], "little"))
    first = load_file(run / "checkpoints/step-000000000.safetensors")
    for parameter, expected in initial_weights(model, key).items():
        if first["param/" + parameter].tobytes() != expected.tobytes():
            sys.exit(f"{name}: the initial {parameter} is not what the contract says")
    return inspected["losses"], key


def section(page, title):
    """A page's section under a heading, with the heading."""
    found = re.search(rf"(?ms)^## {re.escape(title)}\n.*?(?=^## |\Z)", page)
    return found[0].strip() if found else ""


def train_all(model, options, data, steps):
    """The model's curves by name, for each number of digits and seed: this project's, and PyTorch's in fp32 and fp64. Each row is kept when it is there."""
    kept = options.docs / f"loss-curves-{model.NAME}.csv"
    table = kept.read_text().splitlines() if options.only and kept.exists() else []
    curves = {header: [float(x) for x in column] for header, *column in zip(*csv.reader(table)) if header != "step"}
    for name, seed in labels(model):
        if options.only not in (None, name):
            continue
        label = title(name, seed)
        with tempfile.TemporaryDirectory() as folder:
            losses, key = train_tiebreak(model, options.binary, Path(folder), "run", DIGITS[name], options.data.resolve(), steps, seed)
        curves[label] = losses
        for end, dtype in ((": PyTorch fp32", torch.float32), (": PyTorch fp64", torch.float64)):
            curves[label + end], _ = train_torch(model, key, data, steps, dtype)
        print(row(label, curves), flush=True)
        with open(kept, "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["step", *curves])
            writer.writerows([i + 1, *(f"{curve[i]:.7f}" for curve in curves.values())] for i in range(steps))
    return curves


def labels(model, curves=None):
    """Digits and seed of each of the model's rows; only of those that have curves, if these are given."""
    rows = [(name, seed) for name in model.DIGITS for seed in range(model.SEEDS)]
    return [each for each in rows if curves is None or title(*each) + ": PyTorch fp32" in curves]


def title(name, seed):
    return f"{name}, seed {seed}" if seed else name


def mean(curve):
    """The mean over the last 50 steps."""
    return sum(curve[-50:]) / len(curve[-50:])


def row(label, curves):
    """The line of the page's table. Curves in fp64 were not always kept."""
    ours, peer = curves[label], curves[f"{label}: PyTorch fp32"]
    exact = curves.get(f"{label}: PyTorch fp64")
    apart = [abs(x - y) for x, y in zip(ours, peer)]
    certain = [x for x, y, z in zip(apart, peer, exact or peer) if abs(y - z) < CERTAIN]
    left = next((i for i, (y, z) in enumerate(zip(peer, exact or peer)) if abs(y - z) >= CERTAIN), len(peer))
    before = f"{max(apart[:left], default=0):.1e} in {left}{'' if exact else ', fp64 not kept'} ({sum(x > BAR for x in apart[:left])} above)"
    growth = ", ".join(f"{max(apart[:first]):.1e}" for first in (5, 20, 50))
    held = f"{max(certain, default=0):.1e} in {len(certain)} ({sum(x > BAR for x in certain)} above)"
    fp64 = f"{mean(exact):.6f}" if exact else ""
    error = f"{mean(peer) - mean(exact):+.1e}" if exact else ""
    return f"| {label} | {mean(ours):.6f} | {mean(peer):.6f} | {fp64} | {growth} | {before} | {held} | {mean(ours) - mean(peer):+.1e} | {error} |"


def svg(model, curves):
    """|tiebreak - PyTorch fp32| of each step on a logarithmic axis, the greatest of all seeds, and of 10 steps; the bar is dashed."""
    width, height, left, top, bottom, least, most = 800, 420, 60, 20, 380, -7, 0
    colors = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"]
    up = lambda value: bottom - (bottom - top) * (min(max(math.log10(max(value, 1e-9)), least), most) - least) / (most - least)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
             '<rect width="100%" height="100%" fill="white"/>']
    for power in range(least, most + 1):
        y, dashed = up(10.0**power), ' stroke-dasharray="6 4"' if 10.0**power == BAR else ""
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="{"#000" if dashed else "#ddd"}"{dashed}/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
    for i, name in enumerate(model.DIGITS):
        rows = [title(*each) for each in labels(model, curves) if each[0] == name]
        worst = [max(step) for step in zip(*([abs(x - y) for x, y in zip(curves[label], curves[f"{label}: PyTorch fp32"])] for label in rows))]
        if not rows:
            continue
        tops = [max(worst[first:first + 10]) for first in range(0, len(worst), 10)]
        points = " ".join(f"{left + (width - left - 20) * x / max(1, len(tops) - 1):.1f},{up(y):.1f}" for x, y in enumerate(tops))
        parts.append(f'<polyline fill="none" stroke="{colors[i]}" stroke-width="1.3" points="{points}"/>')
        parts.append(f'<text x="{left + 10}" y="{top + 16 + 18 * i}" fill="{colors[i]}">{name}</text>')
    steps = len(next(iter(curves.values())))
    parts.append(f'<text x="{left}" y="{height - 12}">|loss - PyTorch fp32\'s| over {steps} steps, the greatest of every 10</text></svg>\n')
    return "\n".join(parts)


PAGE = """# The exact profile beside PyTorch

In a row this project and PyTorch begin with the same weights and take the same batches; each row has others.

- **The fp64 column** says how far fp32 itself is from arithmetic without its roundings. Rounding errors grow
  chaotically over training, so two right fp32 trainings differ by about as much. The first steps show how fast.
- **The bar** is 1e-3 from fp32 in every step in which fp32 is within 1e-4 of fp64.
- **Two columns count steps.** Once fp32 has left fp64, the trainings go separate ways. Two of their curves may cross
  later by chance, and such steps say nothing of the third curve. So one column counts the steps before fp32 first
  leaves, and the other all steps.
- **Digits**: d = 3 is the default. *2 and 3 digits* are two, and three where rows are wide in range
  ([NUMERICS.md](NUMERICS.md)).

"""


def made_part(model, curves, bytes_of_data, steps, made_on):
    """The model's part of the page."""
    table = "\n".join(row(title(name, seed), curves) for name, seed in labels(model, curves))
    return f"""## {model.TITLE}

![distance from PyTorch](loss-curves-{model.NAME}.svg)

Losses are means of the last 50 of {steps} steps. The model of `assets/jobs/{model.JOB}`:
{model.ABOUT % bytes_of_data}

| digits of the products | tiebreak | PyTorch fp32 | PyTorch fp64 | greatest difference from fp32 in the first 5, 20, 50 steps | before fp32 is first 1e-4 from fp64: in so many steps (above 1e-3) | wherever it is nearer | tiebreak - fp32 | fp32 - fp64 |
|---|---|---|---|---|---|---|---|---|
{table}

Made on {made_on} on {platform.machine()}, {os.cpu_count()} cores, with PyTorch {torch.__version__.split("+")[0]}, by
`{COMMAND} {model.NAME} --data FILE --steps {steps} --seeds {model.SEEDS}`.
Every step of every curve: `loss-curves-{model.NAME}.csv`."""


def main():
    models = {model.NAME: model for model in (Gpt(), SmallGpt(), Resnet(), Perceptron())}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=models)
    parser.add_argument("--data", type=Path, help="a text, whose bytes are the tokens; or CIFAR-10 records")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, help="trainings with each number of digits; 3 without it, 1 of gpt")
    parser.add_argument("--binary", default=ROOT / "target/release/tiebreak")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of LOSS-CURVES.md and the curves")
    parser.add_argument("--most", type=float, help="fail if a mean loss is further from PyTorch's than this")
    parser.add_argument("--only", choices=[*DIGITS, "none"], help="train this one; none: write the page again")
    options = parser.parse_args()
    model = models[options.model]
    model.SEEDS = options.seeds or model.SEEDS
    steps, options.data = options.steps or model.STEPS, options.data or model.DATA
    if options.data is None:
        parser.error("--data is needed: a file in CIFAR-10's binary format")
    data = np.frombuffer(options.data.read_bytes(), np.uint8)
    curves = train_all(model, options, data, steps)
    (options.docs / f"loss-curves-{model.NAME}.svg").write_text(svg(model, curves))
    path = options.docs / "LOSS-CURVES.md"
    page = path.read_text()
    made_on = re.search(r"Made on (\S+)", section(page, model.TITLE))[1] if options.only == "none" else date.today()
    parts = [made_part(model, curves, len(data), steps, made_on) if other is model else section(page, other.TITLE) for other in models.values()]
    path.write_text(PAGE + "\n\n".join(part for part in parts if part) + "\n")
    far = []
    for name, seed in labels(model, curves):
        label = title(name, seed)
        apart = mean(curves[label]) - mean(curves[f"{label}: PyTorch fp32"])
        if options.most is not None and name != "d = 2" and not abs(apart) <= options.most:
            far.append(label)
            print(f"{label}: {apart:+.1e} from PyTorch fp32, more than {options.most}")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
