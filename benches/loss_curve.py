"""The loss curves of the exact profile beside PyTorch in fp32, from the same initial weights and batches.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install torch numpy safetensors
    venv/bin/python benches/loss_curve.py [--data FILE] [--steps 600] [--only "d = 2"]

Trains assets/jobs/shakespeare.toml with 3 digits, 2 digits, 2 digits in blocks of 64 and the default preset by `tiebreak
train`, then the same model written in PyTorch; writes docs/loss-curves.csv, docs/loss-curves.svg and docs/LOSS-CURVES.md.
With --only, the other curves are what these files hold.

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
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "venv/bin/python benches/loss_curve.py"
CLASSES = ["linear", "linear_dx", "linear_dw", "head", "head_dx", "head_dw", "scores", "scores_dq", "scores_dk", "values", "values_dp",
           "values_dv"]
# What a job says of its products.
DIGITS = {
    "d = 3": "[digits]\nall = 3\n",
    "d = 2": "[digits]\nall = 2\n",
    "d = 2, blocks of 64": "".join(f"[digits.class.{c}]\ndigits_a = 2\ndigits_b = 2\nblock = 64\n" for c in CLASSES),
    "default digits": "",
}
try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from safetensors.numpy import load_file
except ImportError as error:
    sys.exit(f"{error}: run it in an environment with `pip install torch numpy safetensors`")

CONTEXT, LAYERS, HEADS, WIDTH, VOCABULARY = 128, 4, 4, 144, 256
SAMPLES, EPSILON, STD = 8, 1e-5, 0.02
PEAK, FLOOR, WARMUP, CLIP = 2e-3, 2e-4, 50, 1.0


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


def initial_weights(key):
    """Section 6 of the contract, parameters in the model's order."""
    f32 = np.float32
    table = [("token_embedding", (VOCABULARY, WIDTH), STD), ("position_embedding", (CONTEXT, WIDTH), STD)]
    projection = f32(STD) / np.sqrt(f32(2.0) * f32(LAYERS))
    for layer in range(LAYERS):
        name = lambda rest: f"block{layer}.{rest}"
        table += [(name("norm1.gain"), (WIDTH,), 1), (name("norm1.bias"), (WIDTH,), 0)]
        linears = [("query", WIDTH, WIDTH, STD), ("key", WIDTH, WIDTH, STD), ("value", WIDTH, WIDTH, STD),
                   ("attention_out", WIDTH, WIDTH, projection)]
        tail = [("mlp_in", 4 * WIDTH, WIDTH, STD), ("mlp_out", WIDTH, 4 * WIDTH, projection)]
        for part in (linears, tail):
            if part is tail:
                table += [(name("norm2.gain"), (WIDTH,), 1), (name("norm2.bias"), (WIDTH,), 0)]
            for rest, outputs, inputs, std in part:
                table += [(name(f"{rest}.weight"), (outputs, inputs), std), (name(f"{rest}.bias"), (outputs,), 0)]
    table += [("final_norm.gain", (WIDTH,), 1), ("final_norm.bias", (WIDTH,), 0)]
    weights = {}
    for number, (name, shape, std) in enumerate(table):
        if len(shape) == 1:
            weights[name] = np.full(shape, std, f32)
            continue
        count = shape[0] * shape[1]
        zero = np.zeros(count, np.uint64)
        words = philox(key, (np.arange(count, dtype=np.uint64), zero, zero + np.uint64(number), zero + np.uint64(0xFFFFFFFE)))
        total = sum((w & np.uint64(0xFFFF)) + (w >> np.uint64(16)) for w in words).astype(np.int64)
        c = f32(std) * np.sqrt(f32(1.5)) / f32(131072)
        weights[name] = ((2 * total - 8 * 65535).astype(f32) * c).reshape(shape)
    return weights


def batch(key, step, data):
    """Tokens and labels of a step: section 6, batch order."""
    places = np.arange(SAMPLES, dtype=np.uint64)
    zero = np.zeros(SAMPLES, np.uint64)
    words = philox(key, (zero + np.uint64(step), places, zero + np.uint64(0xFFFFFFFF), zero))
    samples = len(data) - CONTEXT
    starts = [((int(words[0][i]) | int(words[1][i]) << 32) * samples) >> 64 for i in range(SAMPLES)]
    windows = torch.tensor(np.stack([data[s:s + CONTEXT + 1] for s in starts]).astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


def learning_rate(step, steps):
    if step <= WARMUP:
        return PEAK * step / WARMUP
    return FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def forward(w, tokens):
    norm = lambda x, name: F.layer_norm(x, (WIDTH,), w[f"{name}.gain"], w[f"{name}.bias"], EPSILON)
    linear = lambda x, name: F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])
    x = w["token_embedding"][tokens] + w["position_embedding"]
    for layer in range(LAYERS):
        block = f"block{layer}"
        y = norm(x, f"{block}.norm1")
        heads = lambda t: t.view(SAMPLES, CONTEXT, HEADS, WIDTH // HEADS).transpose(1, 2)
        q, k, v = (heads(linear(y, f"{block}.{name}")) for name in ("query", "key", "value"))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(SAMPLES, CONTEXT, WIDTH), f"{block}.attention_out")
        y = F.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp_in"), approximate="tanh")
        x = x + linear(y, f"{block}.mlp_out")
    return F.linear(norm(x, "final_norm"), w["token_embedding"])


def train_torch(key, data, steps, dtype):
    """The losses of a PyTorch training in `dtype`."""
    weights = {n: torch.tensor(x).to(dtype).requires_grad_() for n, x in initial_weights(key).items()}
    decayed = [x for x in weights.values() if x.dim() == 2]
    others = [x for x in weights.values() if x.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        tokens, labels = batch(key, step, data)
        optimizer.zero_grad()
        logits = forward(weights, tokens)
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_tiebreak(binary, folder, name, digits, data, steps):
    """The losses of an exact run, its key for Philox, and its first checkpoint."""
    text = (ROOT / "assets/jobs/shakespeare.toml").read_text()
    text = re.sub(r"(?m)^steps = .*$", f"steps = {steps}", text)
    text = re.sub(r"(?m)^path = .*$", f"path = {json.dumps(str(data))}", text)
    # Heads and checkpoints do not enter the arithmetic.
    text = re.sub(r"(?m)^every = .*$", f"every = {steps}", text)
    job, run = folder / f"{name}.toml", folder / name
    job.write_text(text + "\n" + digits)
    # A challenge, as a client would give; the seed depends on the job too, so each job has its own.
    challenge = ["--challenge", "00" * 32]
    subprocess.run([binary, "train", job, "--out", run, *challenge], check=True)
    inspected = json.loads(subprocess.run([binary, "inspect", run, "--json"], check=True, capture_output=True).stdout)
    seed = bytes.fromhex(inspected["seed"])
    key = (int.from_bytes(seed[:4], "little"), int.from_bytes(seed[4:8], "little"))
    first = load_file(run / "checkpoints/step-000000000.safetensors")
    for parameter, expected in initial_weights(key).items():
        if first["param/" + parameter].tobytes() != expected.tobytes():
            sys.exit(f"{name}: the initial {parameter} is not what the contract says")
    return inspected["losses"], key


def svg(curves):
    """Smoothed curves as a picture."""
    width, height, left, bottom = 800, 420, 50, 370
    colors = ["#000000", "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2"]
    smooth = {n: np.convolve(c, np.ones(10) / 10, "valid") for n, c in curves.items()}
    low, high = min(c.min() for c in smooth.values()), max(c.max() for c in smooth.values())
    steps = max(len(c) for c in smooth.values())
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
             '<rect width="100%" height="100%" fill="white"/>']
    for i, (name, c) in enumerate(smooth.items()):
        points = " ".join(f"{left + (width - left - 20) * x / (steps - 1):.1f},{30 + (bottom - 30) * (high - y) / (high - low):.1f}"
                          for x, y in list(enumerate(c))[::3])
        parts.append(f'<polyline fill="none" stroke="{colors[i % 8]}" stroke-width="1.3" points="{points}"/>')
        parts.append(f'<text x="{width - 260}" y="{50 + 18 * i}" fill="{colors[i % 8]}">{name}</text>')
    parts.append(f'<text x="5" y="35">{high:.2f}</text><text x="5" y="{bottom}">{low:.2f}</text>')
    parts.append(f'<text x="{left}" y="{height - 20}">loss (mean of 10 steps) over {steps + 9} steps</text></svg>\n')
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "assets/text/shakespeare.txt", help="a text; its bytes are the tokens")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--binary", default=ROOT / "target/release/tiebreak")
    parser.add_argument("--only", choices=DIGITS, help="train this one")
    options = parser.parse_args()
    data = np.frombuffer(options.data.read_bytes(), np.uint8)
    curves, rows = {}, []
    table, page = (ROOT / "docs/loss-curves.csv").read_text(), (ROOT / "docs/LOSS-CURVES.md").read_text()
    known = {header: [float(x) for x in column] for header, *column in zip(*csv.reader(table.splitlines()))}
    with tempfile.TemporaryDirectory() as folder:
        for name, digits in DIGITS.items():
            if options.only not in (None, name):
                cells = re.search(rf"(?m)^\| {re.escape(name)} \|(.*)\|$", page)[1].split("|")
                rows.append((name, *map(float, cells)))
                curves |= {curve: known[curve] for curve in (name, f"{name}: PyTorch fp32")}
                continue
            losses, key = train_tiebreak(options.binary, Path(folder), re.sub(r"\W", "", name), digits, options.data.resolve(), options.steps)
            begin = time.time()
            peer = train_torch(key, data, options.steps, torch.float32)
            exact = train_torch(key, data, options.steps, torch.float64)
            print(f"{name}: PyTorch took {time.time() - begin:.0f} s in fp32 and fp64")
            curves[name], curves[f"{name}: PyTorch fp32"] = losses, peer
            tail = lambda x: sum(x[-50:]) / 50
            worst = max(abs(a - b) for a, b in zip(losses[:50], peer[:50]))
            rows.append((name, tail(losses), tail(peer), tail(exact), tail(losses) - tail(peer), tail(peer) - tail(exact), worst))
            print(rows[-1])
    with open(ROOT / "docs/loss-curves.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *curves])
        writer.writerows([i + 1, *(f"{curve[i]:.6f}" for curve in curves.values())] for i in range(options.steps))
    (ROOT / "docs/loss-curves.svg").write_text(svg(curves))
    table = "\n".join(
        f"| {n} | {a:.6f} | {b:.6f} | {c:.6f} | {d:+.1e} | {e:+.1e} | {w:.1e} |" for n, a, b, c, d, e, w in rows)
    (ROOT / "docs/LOSS-CURVES.md").write_text(f"""# The exact profile beside PyTorch fp32

![loss curves](loss-curves.svg)

Mean loss of the last 50 of {options.steps} steps; the model of `assets/jobs/shakespeare.toml` (4 layers, width 144, 1.06 M parameters,
8 x 128 tokens a step, AdamW, clipping, warm-up and cosine), {len(data)} bytes of text. Each row has its own seed; within a row initial
weights and batches are the same. The fp64 column says how far fp32 itself is from arithmetic without its roundings: rounding
errors grow chaotically over training, so two right fp32 trainings differ by about as much.

| digits of the products | tiebreak | PyTorch fp32 | PyTorch fp64 | tiebreak - fp32 | fp32 - fp64 | greatest difference in the first 50 steps |
|---|---|---|---|---|---|---|
{table}

Made on {date.today()} by `{COMMAND} --data TEXT --steps {options.steps}` with tiny Shakespeare as the text, {platform.machine()}, {os.cpu_count()} cores,
PyTorch {torch.__version__.split("+")[0]}; every step of every curve: `loss-curves.csv`.
""")


main()
