"""Which operand's digits make the error of a GPT's gradient, one product at a time.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install torch numpy safetensors
    venv/bin/python benches/digit_shares.py --data tinyshakespeare.txt [--after 60]

Trains the model of assets/jobs/shakespeare.toml for some steps in PyTorch's fp32, then takes one gradient by `tiebreak train`, as gradient_error.py does, for each product and
operand: two digits there, four everywhere else; and for some settings of all products. Writes a section of docs/NUMERICS.md: ||g - g64|| / ||g64|| of all
tensors together. Errors of independent roundings add up in squares, so that the table says what a setting's error will be.
"""

import argparse
import os
import platform
import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

import gradient_error
import loss_curve

ROOT = Path(__file__).resolve().parent.parent
TITLE = "Digits of a GPT's products, one by one"
LINEAR = ["linear", "linear_dx", "linear_dw"]
HEAD = ["head", "head_dx", "head_dw"]


def with_three(table, names):
    """A table of digits with three for both operands of some products."""
    return loss_curve.classes(table | dict.fromkeys(names, (3, 3, 0)))


SETTINGS = {
    **{name: loss_curve.DIGITS[name] for name in loss_curve.Gpt.DIGITS},
    "2 and 3 digits in blocks of 64": loss_curve.classes({name: (a, b, 64) for name, (a, b, _) in loss_curve.TWO_AND_THREE.items()}),
    "2 and 3, head, linear and their gradients 3": with_three(loss_curve.TWO_AND_THREE, [*HEAD, *LINEAR]),
    "the same, values_dv too": with_three(loss_curve.TWO_AND_THREE, [*HEAD, *LINEAR, "values_dv"]),
    "the same, the rest of attention 2": with_three(dict.fromkeys(loss_curve.CLASSES, (2, 2, 0)), [*HEAD, *LINEAR, "values_dv"]),
}


class Measure:
    """Gradients of one batch at one set of weights."""

    def __init__(self, options, folder):
        self.network, self.folder, self.binary = loss_curve.Gpt(), folder, options.binary.resolve()
        text = np.frombuffer(options.data.read_bytes(), np.uint8)
        _, weights = loss_curve.train_torch(self.network, gradient_error.KEY, text, options.after, torch.float32)
        self.weights = {name: x.detach().numpy() for name, x in weights.items()}
        save_file(self.weights, folder / "weights.safetensors")
        self.batch, self.data = gradient_error.windows(self.network, options.data, folder)
        self.exact = gradient_error.of_torch(self.network, self.weights, self.batch, torch.float64)
        [(_, _, self.jobs)] = gradient_error.Gpt().variants()
        self.runs = 0

    def error(self, gradients):
        return gradient_error.errors(gradients, self.exact)["all together"]

    def fp32(self):
        return self.error(gradient_error.of_torch(self.network, self.weights, self.batch, torch.float32))

    def __call__(self, digits):
        self.runs += 1
        job = gradient_error.STEP.format(model=self.jobs[""], data=self.data, samples=self.network.SAMPLES, digits=digits)
        return self.error(gradient_error.of_tiebreak(self.binary, self.folder, f"run{self.runs}", job))


def of_products(measure):
    """The table's rows: the error of each operand with two digits."""
    four = dict.fromkeys(loss_curve.CLASSES, (4, 4, 0))
    for name in loss_curve.CLASSES:
        cells = [measure(loss_curve.classes(four | {name: digits})) for digits in ((2, 4, 0), (4, 2, 0))]
        print(name, *(f"{cell:.1e}" for cell in cells), flush=True)
        yield f"| {name} | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |"


def of_settings(measure):
    yield f"| PyTorch fp32 | {measure.fp32():.1e} |"
    for name, digits in {"d = 4": "[digits]\nall = 4\n", **SETTINGS}.items():
        error = measure(digits)
        print(name, f"{error:.1e}", flush=True)
        yield f"| {name} | {error:.1e} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a text")
    parser.add_argument("--after", type=int, default=60, help="steps of PyTorch before the gradient is taken")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tiebreak")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of NUMERICS.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure = Measure(options, Path(folder))
        settings, products = list(of_settings(measure)), list(of_products(measure))
    section = "\n\n".join([
        f"## {TITLE}",
        f"The model of `assets/jobs/shakespeare.toml` after {options.after} steps in PyTorch's fp32, 8 windows of 128 bytes. Errors are\n"
        "||g - g64|| / ||g64|| of all tensors together, and add up in squares. In the first table one operand of one class of\n"
        "products has two digits (left: the activation or incoming gradient), and all others four. In the second a setting holds\n"
        "for all products.",
        "| class | left 2 | right 2 |\n|---|---|---|\n" + "\n".join(products),
        "| digits | error |\n|---|---|\n" + "\n".join(settings),
        f"Made on {date.today()} by `venv/bin/python benches/digit_shares.py --data FILE`, {platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__.split('+')[0]}."])
    page = options.docs / "NUMERICS.md"
    text = page.read_text()
    kept = loss_curve.section(text, TITLE)
    page.write_text(text.replace(kept, section) if kept else f"{text.strip()}\n\n{section}\n")


if __name__ == "__main__":
    sys.exit(main())
