"""How far captured models' gradients are from PyTorch's in fp64, beside how far PyTorch's in fp32 are: transformers' and torchvision's own code.

    python3 -m venv venv && venv/bin/pip install ./python transformers torchvision
    venv/bin/python benches/captured_gradients.py [--only NAME] [--write]
    venv/bin/python benches/captured_gradients.py --curves [--only NAME] [--write]

Each model has a small configuration and random weights. `tiebreak.capture` makes its program, with four digits in all products and with three,
the default. A run of one step of SGD with momentum keeps the gradient as its momentum. PyTorch takes the same gradients in fp32 and fp64. The exit
status is 1 if with four digits an error is more than 4 times that of PyTorch in fp32. --curves trains three models for 200 steps of AdamW, beside
PyTorch in fp32 and fp64. --write puts the tables into docs/NUMERICS.md.
"""

import argparse
import contextlib
import copy
import importlib
import os
import platform
import sys
import tempfile
import zlib
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tiebreak
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "venv/bin/python benches/captured_gradients.py"
BAR, BATCHES, STEPS = 4.0, 5, 200
DIGITS = {"d = 4": 4, "d = 3": 3}
SAMPLES, POSITIONS, TOKENS, CLASSES = 8, 12, 61, 5
# A gradient of a tensor that is this small beside the whole one is zero mathematically.
ZERO = 1e-9


class Fp64(TorchDispatchMode):
    """Computes in fp64 where a model asks for fp32 by name, as transformers' norms, rotary positions and softmax do."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_default_dtype(torch.float32)
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        wider = lambda x: torch.float64 if x is torch.float32 else x
        made = function(*map(wider, args), **{key: wider(x) for key, x in (kwargs or {}).items()})
        for tensor in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64:
                raise TypeError(f"{function} makes {tensor.dtype}, so the gradient is not that of fp64")
        return made


def of_transformers(kind, head, sizes, **more):
    """What makes a model of transformers that drops nothing."""

    def make():
        import transformers

        config = getattr(transformers, f"{kind}Config")(**{**sizes, **more})
        for key, value in vars(config).items():
            if isinstance(value, float) and ("drop" in key or key.endswith("pdrop")):
                setattr(config, key, 0.0)
        if hasattr(config, "initializer_range"):
            config.initializer_range = 0.1
        return getattr(transformers, f"{kind.removesuffix('Text')}{head}")(config)

    return make


def of_torchvision(module, name, **more):
    """The same of torchvision. A number or a list of `more` may be a function of the module."""

    def make():
        found = importlib.import_module(f"torchvision.models.{module}")
        return getattr(found, name)(num_classes=CLASSES, **{key: x(found) if callable(x) else x for key, x in more.items()})

    return make


def tokens():
    """Windows of random texts, and the next tokens."""
    rows = torch.randint(1, TOKENS, (SAMPLES, POSITIONS + 1))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def texts():
    """Texts of one label each."""
    return torch.randint(1, TOKENS, (SAMPLES, POSITIONS)), torch.randint(0, CLASSES, (SAMPLES,))


def images(side):
    return torch.randn(SAMPLES, 3, side, side), torch.randint(0, CLASSES, (SAMPLES,))


LLAMA = {"vocab_size": TOKENS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": POSITIONS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**LLAMA, "num_key_value_heads": 2}
GEMMA = {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8}
GPT2 = {"vocab_size": TOKENS, "n_positions": POSITIONS, "n_layer": 2, "n_head": 4, "n_embd": 32, "bos_token_id": 1, "eos_token_id": 2}
BERT = {**LLAMA, "num_labels": CLASSES}
DISTIL = {"vocab_size": TOKENS, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": POSITIONS,
          "num_labels": CLASSES}
VIT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16, "patch_size": 4,
       "num_labels": CLASSES}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "num_labels": CLASSES}
MOBILE = {"tf_padding": False, "depth_multiplier": 0.25, "image_size": 32, "num_labels": CLASSES}
EAGER = {"attn_implementation": "eager"}


def decoder(kind, sizes=GROUPED, head="ForCausalLM", **more):
    return {kind.removesuffix("Text") + head + (", eager" if more == EAGER else ""): (of_transformers(kind, head, sizes, **more), tokens)}


def encoder(kind, sizes=BERT, head="ForSequenceClassification", **more):
    return {kind + head + (", eager" if more == EAGER else ""): (of_transformers(kind, head, sizes, **more), texts)}


def seer(kind, sizes=VIT, side=16, name="", **more):
    head = "ForImageClassification"
    return {kind + head + (", eager" if more == EAGER else name): (of_transformers(kind, head, sizes, **more), partial(images, side))}


def vision(module, name, **more):
    return {f"torchvision {name}": (of_torchvision(module, name, **more), partial(images, 32))}


def regnet(se_ratio):
    sizes = {"depth": 4, "w_0": 8, "w_a": 8.0, "w_m": 2.0, "group_width": 4, "se_ratio": se_ratio}
    return of_torchvision("regnet", "RegNet", stem_width=8, block_params=lambda module: module.BlockParams.from_init_params(**sizes))


# By name: what makes a model, and a batch.
MODELS = {
    **decoder("GPT2", GPT2, "LMHeadModel"),
    **decoder("GPT2", GPT2, "LMHeadModel", **EAGER),
    **decoder("GPTBigCode", GPT2),
    **decoder("Llama"),
    **decoder("Llama", **EAGER),
    **decoder("Mistral"),
    **decoder("Qwen2"),
    **decoder("Qwen3", head_dim=8),
    **decoder("Phi", LLAMA, partial_rotary_factor=1.0),
    **decoder("Phi3"),
    **decoder("Gemma", GEMMA),
    **decoder("Gemma2", GEMMA, attn_logit_softcapping=None),
    **decoder("Gemma3Text", GEMMA),
    **decoder("Olmo"),
    **decoder("Olmo2"),
    **decoder("Olmo3"),
    **decoder("Granite", attention_multiplier=8**-0.5),
    **decoder("SmolLM3"),
    **decoder("Starcoder2"),
    **decoder("Arcee"),
    **decoder("Exaone4"),
    **decoder("SeedOss", head_dim=8),
    **decoder("BitNet"),
    **decoder("Jais2"),
    **decoder("Lfm2"),
    **encoder("Bert"),
    **encoder("Bert", **EAGER),
    **decoder("Bert", LLAMA, "ForMaskedLM"),
    **encoder("DistilBert", DISTIL),
    **decoder("DistilBert", DISTIL, "ForMaskedLM"),
    **encoder("Electra", embedding_size=16),
    **decoder("Electra", LLAMA, "ForMaskedLM", embedding_size=16),
    **encoder("Albert", embedding_size=16),
    **decoder("Albert", LLAMA, "ForMaskedLM", embedding_size=16),
    **encoder("Ernie"),
    **encoder("MegatronBert"),
    **encoder("ModernBert"),
    **seer("ViT"),
    **seer("ViT", **EAGER),
    **seer("ViTMSN"),
    **seer("IJepa"),
    **seer("ResNet", RESNET, layer_type="basic"),
    **seer("ResNet", RESNET, name=", bottleneck", layer_type="bottleneck"),
    **seer("RegNet", RESNET, name=", x", groups_width=4, layer_type="x"),
    **seer("RegNet", RESNET, name=", y", groups_width=4, layer_type="y"),
    **seer("MobileNetV1", MOBILE, 32),
    **seer("MobileNetV2", MOBILE, 32),
    "torchvision ResNet, grouped": (of_torchvision("resnet", "ResNet", block=lambda module: module.Bottleneck, layers=[1, 1, 1, 1], groups=8,
                                                   width_per_group=4), partial(images, 32)),
    "torchvision RegNet, x": (regnet(None), partial(images, 32)),
    "torchvision RegNet, y": (regnet(0.25), partial(images, 32)),
    **vision("mobilenetv2", "mobilenet_v2", width_mult=0.25, dropout=0.0),
    **vision("mobilenetv3", "mobilenet_v3_small", width_mult=0.25, dropout=0.0),
    **vision("mobilenetv3", "mobilenet_v3_large", width_mult=0.25, dropout=0.0),
    **vision("mnasnet", "MNASNet", alpha=0.25, dropout=0.0),
    "torchvision EfficientNet": (of_torchvision("efficientnet", "EfficientNet", dropout=0.0, stochastic_depth_prob=0.0,
                                                inverted_residual_setting=lambda module: module._efficientnet_conf(
                                                    "efficientnet_b0", width_mult=0.25, depth_mult=0.5)[0]), partial(images, 32)),
    "torchvision VisionTransformer": (of_torchvision("vision_transformer", "VisionTransformer", image_size=16, patch_size=4, num_layers=2,
                                                     num_heads=4, hidden_dim=32, mlp_dim=48), partial(images, 16)),
    **vision("resnet", "resnet18"),
}


def made(name, make):
    """A model of random weights. Biases are random too, and so are weights that begin as zeros, behind which no gradient would be left."""
    torch.manual_seed(zlib.crc32(name.encode()))
    model = make().train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2 or not parameter.any():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def loss_of(out, labels):
    out = getattr(out, "logits", out)
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), labels.reshape(-1))


def of_torch(model, inputs, labels):
    """Gradients by name, as fp64. Parameters that the loss does not read have none."""
    model = copy.deepcopy(model)
    loss_of(model(inputs), labels).backward()
    return {name: x.grad.double().numpy() for name, x in model.named_parameters() if x.grad is not None}


def exact(model, inputs, labels):
    """The same in fp64, from the same weights."""
    wide, inputs = copy.deepcopy(model).double(), inputs.double() if inputs.is_floating_point() else inputs
    with Fp64():
        return of_torch(wide, inputs, labels)


class Gradients:
    """What `Captured.state_dict` reads of a run, with the gradients of the first step in place of parameters."""

    def __init__(self, run):
        self.kept = load_file(Path(run.path) / "checkpoints/step-000000001.safetensors")

    def _state(self, step, names):
        momenta = {name.removeprefix("momentum/"): x for name, x in self.kept.items() if name.startswith("momentum/")}
        # Frozen parameters have none.
        others = {name if name.startswith("buffer/") else name.partition("/")[2]: x for name, x in self.kept.items()}
        return 1, {**others, **momenta}


def of_tiebreak(model, batches, digits):
    """By batch, the gradients of a run of one step, by PyTorch's names. Files are written to the current folder."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
    captured = tiebreak.capture(model, loss_of, optimizer, batches[0], out=f"captured-{digits}", digits=digits)
    for number, batch in enumerate(batches):
        with tiebreak.Recorder(captured, out=f"run-{digits}-{number}", steps=1, progress=False) as recorder:
            recorder.step(batch)
        gradients = captured.state_dict(Gradients(recorder.run))
        yield {name: gradients[name].double().numpy() for name, _ in model.named_parameters()}


def errors(gradients, exact):
    """||g - g64|| / ||g64|| of all tensors together, and of each. A gradient that is zero mathematically is measured against the model's."""
    norm = np.linalg.norm
    whole = norm([norm(g) for g in exact.values()])
    size = {name: norm(g) if norm(g) > ZERO * whole else whole for name, g in exact.items()}
    apart = {name: norm(gradients[name] - g) for name, g in exact.items()}
    return [norm(list(apart.values())) / whole, *(apart[name] / size[name] for name in exact)]


def measured(name, count=BATCHES):
    """A model's parameters, and its errors by column: for each batch a row, the whole gradient's first and then each tensor's."""
    make, batch = MODELS[name]
    model = made(name, make)
    batches = [batch() for _ in range(count)]
    due = [exact(model, *batch) for batch in batches]
    found = {"PyTorch fp32": [of_torch(model, *batch) for batch in batches]}
    # A job names files of the current folder.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found |= {column: list(of_tiebreak(model, batches, digits)) for column, digits in DIGITS.items()}
    return dict(model.named_parameters()), {column: np.array(list(map(errors, each, due))) for column, each in found.items()}


def multiples(rows, column):
    """How many times PyTorch's fp32 errors are those of a column: of the whole gradient, and the most of a tensor. Each is the median of the batches."""
    times = np.median(rows[column], axis=0) / np.median(rows["PyTorch fp32"], axis=0)
    return times[0], times[1:].max()


def gradients_table(names):
    """The table of the models' errors, and the models whose error is too large."""
    columns = ["model", "parameters", "PyTorch fp32", "d = 4", "times fp32", "a tensor", "d = 3", "times fp32", "farthest batch: fp32, d = 4, d = 3"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    failed = []
    for name in names:
        parameters, rows = measured(name)
        medians = {column: np.median(each[:, 0]) for column, each in rows.items()}
        (times, of_tensor), (times_3, _) = multiples(rows, "d = 4"), multiples(rows, "d = 3")
        farthest = ", ".join(f"{rows[column][:, 0].max():.1e}" for column in ("PyTorch fp32", "d = 4", "d = 3"))
        lines.append(f"| {name} | {sum(x.numel() for x in parameters.values()):,} | {medians['PyTorch fp32']:.1e} | {medians['d = 4']:.1e} | {times:.2f} "
                     f"| {of_tensor:.2f} | {medians['d = 3']:.1e} | {times_3:.2f} | {farthest} |")
        print(lines[-1], flush=True)
        failed += [] if times <= BAR and of_tensor <= BAR else [name]
    return "\n".join(lines), failed


def text_batches():
    """Windows of a text's bytes."""
    text = torch.tensor(list((ROOT / "assets/jobs/text/shakespeare.txt").read_bytes()))
    for _ in range(STEPS):
        rows = torch.stack([text[start:start + 33] for start in torch.randint(0, len(text) - 33, (SAMPLES,)).tolist()])
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def image_batches():
    """A pattern for each class, under noise of the same size."""
    patterns = torch.randn(CLASSES, 3, 16, 16)
    for _ in range(STEPS):
        labels = torch.randint(0, CLASSES, (SAMPLES,))
        yield patterns[labels] + torch.randn(SAMPLES, 3, 16, 16), labels


# What --curves trains.
CURVES = {
    "GPT2LMHeadModel": (of_transformers("GPT2", "LMHeadModel", {**GPT2, "vocab_size": 256, "n_positions": 32, "n_embd": 64}), text_batches),
    "ViTForImageClassification": (MODELS["ViTForImageClassification"][0], image_batches),
    "ResNetForImageClassification": (MODELS["ResNetForImageClassification"][0], image_batches),
}


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def curve_of_torch(model, batches, dtype):
    model = copy.deepcopy(model).to(dtype)
    optimizer = optimizer_of(model)
    for inputs, labels in batches:
        optimizer.zero_grad()
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        with Fp64() if dtype == torch.float64 else contextlib.nullcontext():
            loss = loss_of(model(inputs), labels)
            loss.backward()
        optimizer.step()
        yield loss.item()


def curve_of_tiebreak(model, batches, digits):
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        captured = tiebreak.capture(model, loss_of, optimizer_of(model), batches[0], out="captured", digits=digits)
        with tiebreak.Recorder(captured, out="run", steps=len(batches), progress=False) as recorder:
            return [recorder.step(batch) for batch in batches]


def curves_table(names):
    """The table of the models' losses."""
    columns = ["model", "d = 3", "d = 4", "PyTorch fp32", "PyTorch fp64", "d = 3 from fp32", "d = 4 from fp32", "fp32 from fp64"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in names:
        make, batches_of = CURVES[name]
        model = made(name, make)
        batches = list(batches_of())
        curves = {column: np.array(curve_of_tiebreak(model, batches, digits)) for column, digits in DIGITS.items()}
        curves |= {f"fp{8 * dtype.itemsize}": np.array(list(curve_of_torch(model, batches, dtype))) for dtype in (torch.float32, torch.float64)}
        means = " | ".join(f"{curves[column][-20:].mean():.6f}" for column in ("d = 3", "d = 4", "fp32", "fp64"))
        apart = [abs(curves[x] - curves[y]) for x, y in (("d = 3", "fp32"), ("d = 4", "fp32"), ("fp32", "fp64"))]
        lines.append(f"| {name} | {means} | " + " | ".join(f"{each[:50].max():.1e}, {each.max():.1e}" for each in apart) + " |")
        print(lines[-1], f"first loss {curves['fp64'][0]:.4f}", flush=True)
    return "\n".join(lines)


GRADIENTS = """## Captured models

{count} models in transformers' and torchvision's own code, as `tiebreak.capture` takes them: small configurations,
random weights, no dropout. An error is that of the whole gradient of a batch of {samples} random samples. *A tensor* is
the greatest multiple of a single tensor's error. Numbers are medians of {batches} batches, but for the last column.

{table}

In PyTorch's fp64 nothing is rounded to fp32, also where a model asks for fp32 by name. The command fails if a multiple
at d = 4 is above {bar:g}."""
LOSSES = """## Loss curves of captured models

{steps} steps of AdamW with {samples} samples from the same weights and on the same batches: a GPT-2 on the excerpt of
`assets/jobs/text`, the others on images of {classes} patterns under noise. Losses are means of the last 20 steps. The
other columns are the greatest difference of a step's loss in the first 50 and in all steps.

{table}"""


def write(part, made_by):
    """Writes a section of the page in place of the one with its title, or as the last one."""
    import loss_curve

    page = ROOT / "docs/NUMERICS.md"
    versions = ", ".join(f"{package} {version(package)}" for package in ("transformers", "torchvision"))
    part += (f"\n\nMade on {date.today()} by `{made_by}`,\n{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__.split('+')[0]}, "
             f"{versions}.")
    text = page.read_text()
    kept = loss_curve.section(text, part.splitlines()[0].removeprefix("## "))
    page.write_text(text.replace(kept, part) if kept else f"{text.strip()}\n\n{part}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="a model's name; may be given several times")
    parser.add_argument("--curves", action="store_true", help="train some models, and compare losses in place of gradients")
    parser.add_argument("--write", action="store_true", help="write the table into docs/NUMERICS.md")
    options = parser.parse_args()
    known = CURVES if options.curves else MODELS
    if unknown := set(options.only or ()) - set(known):
        parser.error(f"no model is named {', '.join(unknown)}; there are {'; '.join(known)}")
    names, failed = options.only or list(known), []
    if options.curves:
        table = curves_table(names)
    else:
        table, failed = gradients_table(names)
    if options.write:
        part = (LOSSES if options.curves else GRADIENTS).format(table=table, count=len(names), samples=SAMPLES, batches=BATCHES, bar=BAR, steps=STEPS,
                                                               classes=CLASSES)
        write(part, COMMAND + (" --curves" if options.curves else ""))
    if failed:
        sys.exit(f"with four digits more than {BAR:g} times PyTorch's error in fp32: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
