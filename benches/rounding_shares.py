#!/usr/bin/env python3
"""How honest kernels decide: the first row of the table in docs/ROUNDING.md, section 8, and its paragraph on long products.

    benches/rounding_shares.py [--tiebreak COMMAND] [--native KERNEL ...] [--largest SAMPLES]

Trains a small GPT (micro-batches of 64, 2048 and 8192 tokens) and a perceptron (1024, 8192 and 65,536 images) for a few steps with native kernels of
the CPU on the bfloat16 grid, audits each run, and prints of its products: the most values that were the trainer's to choose, and the share of decisions that
are not the nearest value.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPT = """steps = {steps}
clip_norm = 1.0
model = {{ kind = "gpt", context = {context}, layers = 1, heads = 4, width = 64, dropout = 0.1 }}
data = {{ kind = "bytes", path = "shakespeare.txt" }}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }}
schedule = {{ peak = 2e-3, warmup = 50, floor = 2e-4 }}
batch = {{ micro_batch = {samples} }}
rounding = {{ bits = 16 }}
"""
MLP = """steps = {steps}
clip_norm = 1.0
model = {{ kind = "mlp", inputs = 64, hidden = [32, 16], classes = 10 }}
data = {{ kind = "idx", images = "images", labels = "labels" }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }}
schedule = {{ peak = 0.05 }}
batch = {{ micro_batch = {samples} }}
rounding = {{ bits = 16 }}
"""
JOBS = {
    "gpt 64": (64, GPT.format(steps=8, context=32, samples=2)),
    "gpt 2048": (2048, GPT.format(steps=8, context=32, samples=64)),
    "gpt 8192": (8192, GPT.format(steps=3, context=64, samples=128)),
    "mlp 1024": (1024, MLP.format(steps=8, samples=1024)),
    "mlp 8192": (8192, MLP.format(steps=3, samples=8192)),
    "mlp 65536": (65536, MLP.format(steps=3, samples=65536)),
}


def write_images(folder, count=70_000):
    """IDX files: classes are bright bands, with noise."""
    random.seed(1)
    labels = bytes(random.randrange(10) for _ in range(count))
    noise = random.randbytes(64 * count)
    pixels = bytearray(n // 2 for n in noise)
    for image, label in enumerate(labels):
        for row in range(6 * label, 6 * label + 8):
            pixels[64 * image + row] += 96
    (folder / "images").write_bytes(struct.pack(">IIII", 0x803, count, 8, 8) + pixels)
    (folder / "labels").write_bytes(struct.pack(">II", 0x801, count) + labels)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tiebreak", help="a command in place of a release build")
    arguments.add_argument("--native", nargs="*", default=["sequential", "interleaved", "interleaved-fma"])
    arguments.add_argument("--largest", type=int, default=1 << 20, help="leave out jobs of more samples or tokens")
    given = arguments.parse_args()
    if not given.tiebreak:
        subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=ROOT, check=True)
    tiebreak = str(pathlib.Path(given.tiebreak or ROOT / "target/release/tiebreak").resolve())
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        write_images(work)
        (work / "shakespeare.txt").write_bytes((ROOT / "assets/jobs/text/shakespeare.txt").read_bytes())
        for name, (samples, job) in JOBS.items():
            for native in given.native if samples <= given.largest else []:
                run, report = work / f"{name}-{native}".replace(" ", "-"), work / "report.json"
                report.unlink(missing_ok=True)
                path = work / "job.toml"
                path.write_text(job)
                subprocess.run([tiebreak, "-q", "train", path, "--out", run, "--native", native], check=True, capture_output=True)
                # Exit code 3 says that it could not be decided, which the outcome names.
                subprocess.run([tiebreak, "-q", "audit", run, "--report", report], capture_output=True)
                told = json.loads(report.read_text())
                products = [product for product in told["rounding"]["products"] if product["elements"]]
                freest = max(products, key=lambda product: product["free"] / product["elements"])
                taken = sum(sum(product["taken"]) for product in products)
                values = sum(product["values"] for product in products)
                worst = max((product["worst"]["nats"] for product in products if product["worst"]), default=0.0)
                print(
                    f"{name:9} {native:15} {told['outcome']['result']:21} free: {100 * freest['free'] / freest['elements']:5.2f} % of {freest['class']}; "
                    f"not the nearest: {taken} of {values} ({100 * taken / max(values, 1):.2f} %), away from zero "
                    f"{sum(product['taken'][1] for product in products)}; worst look {worst:.1f} nats",
                    flush=True,
                )


main()
