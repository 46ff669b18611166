"""How far gradients are from those in fp64, beside how far PyTorch's fp32 is: from the same weights and the same batch.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install torch numpy safetensors
    venv/bin/python benches/gradient_error.py resnet --data data_batch_1.bin [--most 4]
    venv/bin/python benches/gradient_error.py gpt --data tinyshakespeare.txt

gpt and bert take a text, the others CIFAR-10's records.

For each variant of a model, `tiebreak train` takes one step of SGD with momentum and no clipping, whose momentum is then the gradient, and
PyTorch takes the same gradient in fp32 and fp64. Writes the model's part of docs/NUMERICS.md: per tensor ||g - g64|| / ||g64||. With --most,
the exit status is 1 if at d = 4 an error is more than so many times PyTorch's in fp32.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    sys.exit(f"{error}: run it in an environment with `pip install torch numpy safetensors`")
import encoders
import loss_curve
import networks

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "venv/bin/python benches/gradient_error.py"
KEY = (1, 2)
DIGITS = {"2 and 3 digits": loss_curve.DIGITS["2 and 3 digits"], "d = 3": "[digits]\nall = 3\n", "d = 4": "[digits]\nall = 4\n"}
# What every job says beside its model and its data. The first step's momentum is its gradient.
STEP = """steps = 1
{model}
{data}
[init]
weights = ["weights.safetensors"]
[optimizer]
kind = "sgd"
momentum = 0.5
weight_decay = 0.0
[schedule]
peak = 0.0
[batch]
micro_batch = {samples}
{digits}"""
ENCODER = f"layers = {encoders.LAYERS}\nheads = {encoders.HEADS}\nhidden = {encoders.HIDDEN}\nclasses = {encoders.CLASSES}\n"


class BatchNormResnet(loss_curve.Resnet):
    def normed(self, w, x, name):
        return F.batch_norm(x, None, None, w[f"{name}.gain"], w[f"{name}.bias"], True, 0.0, loss_curve.EPSILON)


def images(network, path, folder):
    """The batch, all of the data, so that every order has the same gradient; and what a job says of it."""
    size = network.SAMPLES * network.RECORD
    records = path.read_bytes()[:size]
    if len(records) < size:
        sys.exit(f"{path}: has fewer than {network.SAMPLES} records")
    (folder / "records.bin").write_bytes(records)
    records = np.frombuffer(records, np.uint8).reshape(-1, network.RECORD)
    pixels = torch.tensor(records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32))
    labels = torch.tensor(records[:, 0].astype(np.int64))
    return lambda dtype: (pixels.to(dtype) / 255, labels), '[data]\nkind = "cifar10"\npath = "records.bin"'


def windows(network, path, folder):
    """The same of a text."""
    size = network.SAMPLES + network.CONTEXT
    text = path.read_bytes()[:size]
    if len(text) < size:
        sys.exit(f"{path}: has fewer than {size} bytes")
    (folder / "text.txt").write_bytes(text)
    tokens = np.frombuffer(text, np.uint8).astype(np.int64)
    rows = torch.tensor(np.stack([tokens[i:i + network.CONTEXT + 1] for i in range(network.SAMPLES)]))
    return lambda dtype: (rows[:, :-1], rows[:, 1:].reshape(-1)), '[data]\nkind = "bytes"\npath = "text.txt"'


def sequences(network, path, folder):
    """The first rows of a text's bytes. A row's label is the next byte, modulo the classes."""
    size = network.SAMPLES * network.CONTEXT + 1
    text = np.frombuffer(path.read_bytes()[:size], np.uint8)
    if len(text) < size:
        sys.exit(f"{path}: has fewer than {size} bytes")
    ids, labels = text[:-1].reshape(network.SAMPLES, -1).astype(np.uint16), text[network.CONTEXT::network.CONTEXT] % encoders.CLASSES
    np.save(folder / "ids.npy", ids)
    np.save(folder / "labels.npy", labels)
    said = '[data]\nkind = "arrays"\ninputs = "ids.npy"\nlabels = "labels.npy"\ndtype = "u16"'
    return lambda dtype: (torch.tensor(ids.astype(np.int64)), torch.tensor(labels.astype(np.int64))), said


class Gpt:
    TITLE = "A GPT on text"
    ABOUT = "The model of `assets/jobs/shakespeare.toml` at its first weights, 8 windows of 128 bytes."
    data = staticmethod(windows)

    def variants(self):
        """By name: the network in PyTorch, and what its jobs say of it, by a name of theirs, which may be empty."""
        network = loss_curve.Gpt()
        sizes = f"context = {network.CONTEXT}\nlayers = {network.LAYERS}\nheads = {network.HEADS}\nwidth = {network.WIDTH}\n"
        yield "all products", network, {"": f'[model]\nkind = "gpt"\n{sizes}'}


class Resnet:
    """The residual network of assets/jobs/cifar-resnet.toml and the first records of a file."""

    TITLE = "A residual network on CIFAR-10"
    ABOUT = "The model of `assets/jobs/cifar-resnet.toml` at its first weights, 64 images."
    JOB = """[model]
kind = "resnet"
height = 32
width = 32
planes = 3
stages = [16, 32, 64]
blocks = 1
classes = 10
norm = "{norm}"
convolution = {convolution}
"""
    data = staticmethod(images)

    def variants(self):
        for norm, network in (("layer", loss_curve.Resnet()), ("batch", BatchNormResnet())):
            jobs = {f"conv2d.v{version}": self.JOB.format(norm=norm, convolution=version) for version in (1, 2)}
            yield f"{norm} norm", network, jobs


class Mlp:
    TITLE = "Perceptrons on CIFAR-10"
    ABOUT = ("3072 numbers to 10 classes, at their first weights, 64 images: without hidden layers (logistic regression), and with 256\n"
             "and 128 channels.")
    data = staticmethod(images)

    def variants(self):
        for name, hidden in (("logistic regression", []), ("two hidden layers", [256, 128])):
            yield name, networks.Mlp(hidden), {"": f'[model]\nkind = "mlp"\ninputs = 3072\nhidden = {hidden}\nclasses = 10\n'}


class Vgg11:
    TITLE = "VGG-11 on CIFAR-10"
    ABOUT = "With 512 channels between its linear layers, no dropout, at its first weights, 16 images."
    JOB = ('[model]\nkind = "vgg11"\nheight = 32\nwidth = 32\nplanes = 3\nclasses = 10\nclassifier = 512\ndropout = 0.0\n'
           'norm = "{norm}"\nconvolution = {convolution}\n')
    data = staticmethod(images)

    def variants(self):
        for name, norm in (("no norm", "none"), ("batch norm", "batch")):
            jobs = {f"conv2d.v{version}": self.JOB.format(norm=norm, convolution=version) for version in (1, 2)}
            yield name, networks.Vgg11(512, norm == "batch"), jobs


class Resnet50:
    TITLE = "ResNet-50 on CIFAR-10"
    ABOUT = "As torchvision's, with a stem for small images, at its first weights, 16 images."
    JOB = ('[model]\nkind = "resnet"\nheight = 32\nwidth = 32\nplanes = 3\nclasses = 10\nblock = "bottleneck"\norder = "post"\nnorm = "batch"\n'
           'stages = [64, 128, 256, 512]\nblocks = [3, 4, 6, 3]\nconvolution = {convolution}\n')
    data = staticmethod(images)

    def variants(self):
        yield "batch norm", networks.Resnet50(), {f"conv2d.v{version}": self.JOB.format(convolution=version) for version in (1, 2)}


class Bert:
    TITLE = "BERT and DistilBERT on text"
    ABOUT = ("Built-in classifiers (`kind = \"bert\"`) of 2 blocks, 4 heads and 64 channels at their first weights, 16 rows of 32 bytes.\n"
             "A row's label is the next byte modulo 10.")
    data = staticmethod(sequences)

    def variants(self):
        for name in ("BERT", "DistilBERT"):
            form = name.lower()
            network = encoders.Bert(form)
            sizes = f"vocabulary = {network.VOCABULARY}\ncontext = {network.CONTEXT}\n{ENCODER}"
            types = "token_types = 2\n" if form == "bert" else ""
            yield name, network, {"": f'[model]\nkind = "bert"\nform = "{form}"\n{sizes}width = {encoders.WIDTH}\n{types}'}


class Vit:
    TITLE = "A vision transformer on CIFAR-10"
    ABOUT = ("Built in (`kind = \"vit\"`), of 2 blocks, 4 heads, 64 channels and patches of 8 x 8 pixels, at its first weights, 16\n"
             "images.")
    data = staticmethod(images)

    def variants(self):
        network = encoders.Vit()
        sizes = f"height = {network.SIDE}\nwidth = {network.SIDE}\nplanes = {network.PLANES}\npatch = {network.PATCH}\n{ENCODER}"
        yield "all products", network, {"": f'[model]\nkind = "vit"\n{sizes}channels = {encoders.WIDTH}\n'}


def of_torch(network, weights, batch, dtype):
    """Gradients by name, in fp64."""
    weights = {name: torch.tensor(x).to(dtype).requires_grad_() for name, x in weights.items()}
    inputs, labels = batch(dtype)
    F.cross_entropy(network.forward(weights, inputs), labels).backward()
    return {name: x.grad.double().numpy() for name, x in weights.items()}


def of_tiebreak(binary, folder, name, job):
    """The same of a run of one step."""
    path, run = folder / f"{name}.toml", folder / name
    path.write_text(job)
    subprocess.run([binary, "train", path, "--data-root", folder, "--out", run], check=True, stdout=subprocess.DEVNULL)
    last = load_file(run / "checkpoints/step-000000001.safetensors")
    return {key.removeprefix("momentum/"): x.astype(np.float64) for key, x in last.items() if key.startswith("momentum/")}


def errors(gradients, exact):
    """Per tensor, and of all tensors together. A gradient that is zero mathematically is measured against the model's."""
    norm = np.linalg.norm
    whole = norm([norm(g) for g in exact.values()])
    size = {name: norm(g) if norm(g) > 1e-9 * whole else whole for name, g in exact.items()}
    found = {name: norm(gradients[name] - exact[name]) / size[name] for name in exact}
    return found | {"all together": norm([norm(gradients[name] - g) for name, g in exact.items()]) / whole}


def table(name, columns):
    """Errors of PyTorch's fp32 first, then of each job; each a dict by tensor."""
    names = list(columns)
    lines = [f"### {name[0].upper()}{name[1:]}", "", "| tensor | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for tensor in next(iter(columns.values())):
        lines.append(f"| {tensor} | " + " | ".join(f"{columns[column][tensor]:.1e}" for column in names) + " |")
    peer = columns[names[0]]
    worst = {column: max(columns[column][tensor] / peer[tensor] for tensor in peer) for column in names[1:]}
    lines.append("| greatest multiple of PyTorch's fp32 | 1 | " + " | ".join(f"{worst[column]:.2g}" for column in names[1:]) + " |")
    return "\n".join(lines), worst


def main():
    models = {"bert": Bert(), "gpt": Gpt(), "mlp": Mlp(), "resnet": Resnet(), "resnet50": Resnet50(), "vgg11": Vgg11(), "vit": Vit()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=models)
    parser.add_argument("--data", type=Path, required=True, help="records in CIFAR-10's binary format; of gpt and bert a text")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tiebreak")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of NUMERICS.md")
    parser.add_argument("--most", type=float, help="fail if at d = 4 an error is more than so many times PyTorch's")
    options = parser.parse_args()
    model, tables, failed = models[options.model], [], []
    for name, network, jobs in model.variants():
        weights = loss_curve.initial_weights(network, KEY)
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            save_file(weights, folder / "weights.safetensors")
            batch, data = model.data(network, options.data, folder)
            exact = of_torch(network, weights, batch, torch.float64)
            columns = {"PyTorch fp32": errors(of_torch(network, weights, batch, torch.float32), exact)}
            for number, (digits, said) in enumerate(DIGITS.items()):
                for job, text in jobs.items():
                    text = STEP.format(model=text, data=data, samples=network.SAMPLES, digits=said)
                    gradients = of_tiebreak(options.binary.resolve(), folder, f"{job}-{number}", text)
                    columns[f"{job}, {digits}" if job else digits] = errors(gradients, exact)
        text, worst = table(name, columns)
        tables.append(text)
        failed += [f"{name}, {column}" for column, most in worst.items() if "d = 4" in column and most > (options.most or most)]
        print(json.dumps({"variant": name, "greatest_multiples": worst}))
    page = options.docs / "NUMERICS.md"
    made = (f"Made on {date.today()} by `{COMMAND} {options.model} --data FILE`, {platform.machine()}, {os.cpu_count()} cores, "
            f"PyTorch {torch.__version__.split('+')[0]}.")
    section = "\n\n".join([f"## {model.TITLE}", model.ABOUT, *tables, made])
    text = page.read_text()
    kept = loss_curve.section(text, model.TITLE)
    page.write_text(text.replace(kept, section) if kept else f"{text.strip()}\n\n{section}\n")
    if failed:
        sys.exit(f"more than {options.most} times PyTorch's error: {', '.join(failed)}")


if __name__ == "__main__":
    main()
