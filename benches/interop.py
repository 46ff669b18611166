#!/usr/bin/env python3
"""Weights both ways between tiebreak and PyTorch's libraries, on small models with random weights: the table of docs/WEIGHTS.md.

Each model is saved by its own library, imported, compared by its logits, trained for two steps, exported, loaded by the library again and compared again.
The largest difference of logits, as a part of the largest logit, must be at most 1e-4 with four digits; that with the job's digits is printed beside.

    cargo build --release --bin tiebreak
    python3 benches/interop.py --tiebreak target/release/tiebreak

Needs torch, transformers, safetensors and numpy, and without --decoders torchvision.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

MOST = 1e-4


class Checks:
    """Runs the command, and keeps the rows of the table."""

    def __init__(self, tiebreak, folder):
        self.tiebreak, self.folder, self.rows, self.failed = tiebreak, folder, [], False

    def run(self, *arguments):
        """Runs `tiebreak` with these arguments; ends the script if it fails."""
        done = subprocess.run([self.tiebreak, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"tiebreak {' '.join(map(str, arguments))}: {done.stderr}")

    def difference(self, model, inputs, theirs, *more):
        """The largest difference of our logits to `theirs`, by the largest of these."""
        out = self.folder / "logits.npy"
        self.run("logits", model, "--inputs", inputs, "--output", out, *more)
        return float(np.abs(np.load(out) - theirs).max() / np.abs(theirs).max())

    def row(self, name, when, model, inputs, theirs):
        """Compares logits with four digits and with the job's, and adds a row."""
        four = self.difference(model, inputs, theirs, "--digits", 4)
        default = self.difference(model, inputs, theirs)
        self.failed |= not four <= MOST
        self.rows.append(f"| {name} | {when} | {four:.1e} | {default:.1e} |")
        print(self.rows[-1])

    def same(self, what, is_same):
        """Checks what must be equal."""
        print(f"{what}: {'equal' if is_same else 'DIFFERENT'}")
        self.failed |= not is_same


def edit(job, *changes):
    """Replaces parts of a job file."""
    text = job.read_text()
    for old, new in changes:
        assert old in text, f"{old!r} is not in {job}"
        text = text.replace(old, new)
    job.write_text(text)


def gpt2(checks, name, seed, **keys):
    """A GPT-2 of transformers."""
    # Larger weights than training begins with, so that attention is not uniform and logits are not near zero.
    config = GPT2Config(vocab_size=261, n_positions=48, n_embd=64, n_layer=3, n_head=4, initializer_range=0.1, **keys)
    of_text(checks, name, seed, GPT2LMHeadModel, config)


FAMILIES = {
    "Llama": (LlamaConfig, LlamaForCausalLM),
    "Mistral": (MistralConfig, MistralForCausalLM),
    "Qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "Qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def llama(checks, name, seed, family="Llama", **keys):
    """A decoder of transformers that is a model of kind `llama`."""
    config, model = FAMILIES[family]
    sizes = {"hidden_size": 64, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    of_text(checks, name, seed, model, config(vocab_size=261, max_position_embeddings=48, initializer_range=0.1, **{**sizes, **keys}))


def bert(checks, name, seed, kind=BertForMaskedLM, **keys):
    """A BERT of transformers with the head that finds masked tokens, or a classifier of sequences."""
    sizes = {"hidden_size": 64, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 4}
    encoder(checks, name, seed, kind, BertConfig(vocab_size=261, max_position_embeddings=48, initializer_range=0.1, **{**sizes, **keys}))


def distilbert(checks, name, seed, kind=DistilBertForMaskedLM, **keys):
    """A DistilBERT of transformers with the head that finds masked tokens, or a classifier of sequences."""
    sizes = {"dim": 64, "hidden_dim": 88, "n_layers": 3, "n_heads": 4}
    encoder(checks, name, seed, kind, DistilBertConfig(vocab_size=261, max_position_embeddings=48, initializer_range=0.1, **{**sizes, **keys}))


def encoder(checks, name, seed, kind, config):
    """An encoder on whole texts, or, if it has padding, on texts of several lengths."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = "\n".join([*special, *(f"t{number}" for number in range(len(special), 261))]) + "\n"
    is_classifier = kind.__name__.endswith("Classification")
    places = 48 if config.pad_token_id is None or is_classifier else 40
    of_text(checks, name, seed, kind, config, places, vocabulary)
    kept = (checks.folder / name / "trained" / "vocab.txt").read_text()
    checks.same(f"{name}: vocab.txt", kept == vocabulary)
    if is_classifier:
        return
    job = (checks.folder / name / "job.toml").read_text()
    checks.same(f"{name}: the job's masked token", "\ntoken = 4\nnever = [0,1,2,3,4]\n" in job)


def padded(ids, padding):
    """Texts of which some are padded behind, one before, and one within."""
    ids = np.where(ids == padding, ids + 1, ids)
    for row, places in enumerate([slice(33, None), slice(11, None), slice(0, 5), slice(17, 20)]):
        ids[row, places] = padding
    return ids, {"attention_mask": torch.from_numpy((ids != padding).astype(np.int64))}


def of_text(checks, name, seed, kind, config, places=40, vocabulary=None):
    """A model of this class and configuration on texts of so many places. `vocabulary` is that of an encoder."""
    torch.manual_seed(seed)
    model = kind(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    folder = checks.folder / name
    model.save_pretrained(folder)
    tokens = np.random.default_rng(seed).integers(0, 261, (4, 48)).astype(np.uint16)
    np.save(folder / "tokens.npy", tokens.reshape(-1))
    # A classifier learns a label of each text.
    np.save(folder / "inputs.npy", tokens)
    np.save(folder / "labels.npy", np.arange(4, dtype=np.uint8) % config.num_labels)
    ids, mask = tokens[:, :places].astype(np.int64), {}
    if vocabulary:
        (folder / "vocab.txt").write_text(vocabulary)
        if config.pad_token_id is not None:
            ids, mask = padded(ids, config.pad_token_id)
    inputs = checks.folder / "inputs.npy"
    np.save(inputs, ids)

    def logits(model):
        with torch.no_grad():
            return model(torch.from_numpy(ids), **mask).logits.numpy()

    checks.run("import", folder)
    job = folder / "job.toml"
    edit(job, ("steps = 100", "steps = 2"), ("micro_batches = 8", "micro_batches = 2"), ("warmup = 10", "warmup = 0"))
    edit(job, ("peak = 3e-5", "peak = 1e-2"))
    checks.row(name, "imported", job, inputs, logits(model))
    run = folder / "run"
    checks.run("train", job, "--out", run)
    checks.run("export", run, "--step", 0, "--output", folder / "first")
    written, read = (path / "model.safetensors" for path in (folder, folder / "first"))
    checks.same(f"{name}: the file, imported and exported", written.read_bytes() == read.read_bytes())
    checks.run("export", run, "--output", folder / "trained")
    trained = kind.from_pretrained(folder / "trained").eval()
    checks.row(name, "trained, exported", run, inputs, logits(trained))
    moved = max((x - y).abs().max().item() for x, y in zip(model.parameters(), trained.parameters()))
    print(f"{name}: the largest change of a weight by training is {moved:.1e}")
    mine, theirs = (json.loads((path / "config.json").read_text()) for path in (folder / "first", folder))
    for config in (theirs, mine):
        for key in ("transformers_version", "torch_dtype", "dtype"):
            config.pop(key, None)
    sizes = {key: theirs.get(key) for key in mine if not key.endswith("_token_id") and key != "tie_word_embeddings"}
    checks.same(f"{name}: config.json's keys that we write", all(mine[key] == sizes[key] for key in sizes))


def sharded(checks):
    """A Qwen2 that `save_pretrained` writes in several files of bfloat16."""
    torch.manual_seed(12)
    sizes = {"hidden_size": 64, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=261, max_position_embeddings=4096, initializer_range=0.1, **sizes)).to(torch.bfloat16).eval()
    folder = checks.folder / "sharded"
    model.save_pretrained(folder, max_shard_size="100KB")
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    checks.same(f"qwen2, {len(files)} files of bfloat16: there are several", len(files) > 2)
    tokens = np.random.default_rng(12).integers(0, 261, (4, 40)).astype(np.int64)
    np.save(checks.folder / "inputs.npy", tokens)
    # Read anew: a cast of the model would round the frequencies as well.
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(torch.from_numpy(tokens)).logits.numpy()
    checks.run("import", folder, "--context", 48)
    checks.row(f"qwen2, {len(files)} files of bfloat16", "imported", folder / "job.toml", checks.folder / "inputs.npy", theirs)


def classifier(checks, name, model, keys, shape):
    """A classifier of PyTorch's on samples of this shape; `keys` are those of the job's model table."""
    folder = checks.folder / name
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "tiebreak", "model": keys}))
    torch.manual_seed(9)
    values = torch.randn(8, *shape)
    inputs = folder / "inputs.npy"
    np.save(inputs, values.numpy())
    np.save(folder / "labels.npy", np.arange(8) % 5)
    checks.run("import", folder, "--normalize", "none")
    job = folder / "job.toml"
    # These are numbers that torch prepared, which the model takes as they are.
    edit(job, ("steps = 100", "steps = 2"), ('dtype = "u8"', 'dtype = "f32"'), ('normalize = "none"\n', ""), ("warmup = 10", "warmup = 0"))
    edit(job, ("peak = 1e-4", "peak = 1e-3"), ("micro_batch = 1", "micro_batch = 8"), ("micro_batches = 8", "micro_batches = 1"))

    def logits():
        with torch.no_grad():
            return model.eval()(values).numpy()

    checks.row(name, "imported", job, inputs, logits())
    run = folder / "run"
    checks.run("train", job, "--out", run)
    checks.run("export", run, "--step", 0, "--output", folder / "first")
    written, read = (path / "model.safetensors" for path in (folder, folder / "first"))
    checks.same(f"{name}: the file, imported and exported", written.read_bytes() == read.read_bytes())
    checks.run("export", run, "--output", folder / "trained")
    model.load_state_dict(load_file(folder / "trained" / "model.safetensors"))
    checks.row(name, "trained, exported", run, inputs, logits())


def classifiers(checks):
    """A perceptron of torch.nn.Sequential, and networks of torchvision with other running averages than they begin with."""
    import torchvision

    torch.manual_seed(7)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    perceptron = torch.nn.Sequential(linear(20, 33), relu(), linear(33, 17), relu(), linear(17, 5))
    classifier(checks, "mlp", perceptron, {"kind": "mlp", "inputs": 20, "hidden": [33, 17], "classes": 5}, (20,))
    image = {"height": 32, "width": 32, "planes": 3, "classes": 5}
    resnet = {"kind": "resnet", "stem": "imagenet", "order": "post", "norm": "batch", "stages": [64, 128, 256, 512], **image}
    vgg = {"kind": "vgg11", "classifier": 48, **image}
    for name, model, keys in [
        ("resnet18", torchvision.models.resnet18(num_classes=5), {**resnet, "blocks": 2}),
        ("resnet50", torchvision.models.resnet50(num_classes=5), {**resnet, "block": "bottleneck", "blocks": [3, 4, 6, 3]}),
        ("vgg11", narrow(torchvision.models.vgg11(num_classes=5)), vgg),
        ("vgg11_bn", narrow(torchvision.models.vgg11_bn(num_classes=5)), {**vgg, "norm": "batch"}),
    ]:
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.uniform_(-0.2, 0.2)
                module.running_var.uniform_(0.5, 1.5)
        classifier(checks, name, model, keys, (3, 32, 32))


def pixels(checks):
    """Networks of torchvision on bytes, which its own transforms prepare, and a new head for other classes."""
    import torchvision

    torch.manual_seed(8)
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    picture = torchvision.transforms.functional.to_tensor
    prepared = torchvision.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    values = torch.stack([prepared(picture(image.permute(1, 2, 0).numpy())) for image in images])
    # The text of docs/ARITHMETIC.md, section 8.3, in binary32: of every byte, for the constants of each plane.
    ramp = np.arange(256, dtype=np.float32).reshape(1, 256, 1).repeat(3, axis=2)
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    ours = (ramp / np.float32(255) - mean) / std
    theirs = prepared(picture(ramp.astype(np.uint8))).permute(1, 2, 0).numpy()
    checks.same("pixels: torchvision's and ours, bit by bit", ours.tobytes() == np.ascontiguousarray(theirs).tobytes())
    image = {"height": 32, "width": 32, "planes": 3, "classes": 5}
    resnet = {"kind": "resnet", "stem": "imagenet", "order": "post", "norm": "batch", "stages": [64, 128, 256, 512], "blocks": 2, **image}
    for name, model, keys in [
        ("resnet18, pixels", torchvision.models.resnet18(num_classes=5), resnet),
        ("vgg11, pixels", narrow(torchvision.models.vgg11(num_classes=5)), {"kind": "vgg11", "classifier": 48, **image}),
    ]:
        folder = checks.folder / name.replace(", ", "-")
        folder.mkdir()
        save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps({"model_type": "tiebreak", "model": keys}))
        np.save(folder / "inputs.npy", images.numpy())
        np.save(folder / "labels.npy", np.arange(8) % 5)
        checks.run("import", folder)
        with torch.no_grad():
            theirs = model.eval()(values).numpy()
        checks.row(name, "imported", folder / "job.toml", folder / "inputs.npy", theirs)
        if name.startswith("resnet18"):
            named(checks, model, folder / "inputs.npy", theirs)
        checks.run("import", folder, "--classes", 3, "--output", folder / "head")
        job = folder / "head" / "job.toml"
        np.save(folder / "head" / "inputs.npy", images.numpy())
        np.save(folder / "head" / "labels.npy", np.arange(8) % 3)
        edit(job, ("steps = 100", "steps = 1"), ("warmup = 10", "warmup = 0"))
        checks.run("train", job, "--data-root", folder, "--out", folder / "run")
        checks.run("export", folder / "run", "--step", 0, "--output", folder / "first")
        before, after = (load_file(path / "model.safetensors") for path in (folder, folder / "first"))
        head = [key for key in before if before[key].shape != after[key].shape]
        same = all(torch.equal(before[key], after[key]) for key in before if key not in head)
        checks.same(f"{name}: all but a head of 3 classes ({', '.join(head)})", same and len(head) == 2)


def vit(checks, name, seed, constants, **keys):
    """A vision transformer of transformers on bytes, which `constants` of a preprocessor_config.json prepare, and a new head for other classes."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    model = ViTForImageClassification(ViTConfig(num_labels=5, initializer_range=0.1, **{**sizes, **keys})).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    folder = checks.folder / name
    model.save_pretrained(folder)
    config = model.config
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_rescale": True, "rescale_factor": 1 / 255, **constants}))
    size = config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
    images = np.random.default_rng(seed).integers(0, 256, (8, config.num_channels, *size)).astype(np.uint8)
    inputs = folder / "inputs.npy"
    np.save(inputs, images)
    np.save(folder / "labels.npy", np.arange(8, dtype=np.uint8) % 5)
    values = torch.from_numpy(images.astype(np.float32)) / 255
    if "image_mean" in constants:
        mean, std = (torch.tensor(constants[key]).reshape(-1, 1, 1) for key in ("image_mean", "image_std"))
        values = (values - mean) / std

    def logits(model):
        with torch.no_grad():
            return model(values).logits.numpy()

    checks.run("import", folder)
    job = folder / "job.toml"
    edit(job, ("steps = 100", "steps = 2"), ("micro_batches = 8", "micro_batches = 2"), ("warmup = 10", "warmup = 0"), ("peak = 1e-4", "peak = 1e-2"))
    checks.row(name, "imported", job, inputs, logits(model))
    run = folder / "run"
    checks.run("train", job, "--out", run)
    checks.run("export", run, "--step", 0, "--output", folder / "first")
    for file in ("model.safetensors", "config.json", "preprocessor_config.json"):
        written, read = (path / file for path in (folder, folder / "first"))
        checks.same(f"{name}: {file}, imported and exported", written.read_bytes() == read.read_bytes())
    checks.run("export", run, "--output", folder / "trained")
    checks.row(name, "trained, exported", run, inputs, logits(ViTForImageClassification.from_pretrained(folder / "trained").eval()))
    # The encoder alone, under the names of its own class, with a head that the job draws.
    model.vit.save_pretrained(folder / "alone")
    checks.run("import", folder / "alone", "--classes", 3)
    job = folder / "alone" / "job.toml"
    edit(job, ("steps = 100", "steps = 1"), ("warmup = 10", "warmup = 0"))
    np.save(folder / "alone" / "inputs.npy", images)
    np.save(folder / "alone" / "labels.npy", np.arange(8, dtype=np.uint8) % 3)
    checks.run("train", job, "--out", folder / "head")
    checks.run("export", folder / "head", "--output", folder / "headed")
    tuned = ViTForImageClassification.from_pretrained(folder / "headed").eval()
    # This job takes byte / 255, and its export says so.
    said = json.loads((folder / "headed" / "preprocessor_config.json").read_text())
    checks.same(f"{name}: the pixels of the encoder alone", said["do_normalize"] is False and tuned.config.num_labels == 3)
    values = torch.from_numpy(images.astype(np.float32)) / 255
    checks.row(f"{name}, a head of 3 classes", "trained, exported", folder / "head", inputs, logits(tuned))


def named(checks, model, inputs, theirs):
    """The weights of a wrapped ResNet-18 without a configuration, and with timm's."""
    wrapped = {f"_orig_mod.module.{name}": tensor for name, tensor in model.state_dict().items()}
    picture = {"input_size": [3, 32, 32], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "num_classes": 5}
    timm = {"architecture": "resnet18", "num_classes": 5, "num_features": 512, "global_pool": "avg", "pretrained_cfg": picture}
    for name, config, flags in [
        ("resnet18, wrapped", None, ("--architecture", "resnet18", "--image-size", 32)),
        ("resnet18, timm's config.json", timm, ()),
    ]:
        folder = checks.folder / name.split(", ")[1].split("'")[0]
        folder.mkdir()
        save_file(wrapped, folder / "resnet18.safetensors")
        if config:
            (folder / "config.json").write_text(json.dumps(config))
        checks.run("import", folder, *flags)
        checks.row(name, "imported", folder / "job.toml", inputs, theirs)


def narrow(vgg):
    """The same VGG with 48 channels in place of 4096 between its linear layers, which would be most of it."""
    linear, relu, dropout = torch.nn.Linear, torch.nn.ReLU, torch.nn.Dropout
    layers = linear(512 * 49, 48), relu(), dropout(), linear(48, 48), relu(), dropout(), linear(48, 5)
    vgg.classifier = torch.nn.Sequential(*layers)
    return vgg


def main():
    """Runs all checks and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiebreak", default="target/release/tiebreak", help="the command")
    parser.add_argument("--decoders", action="store_true", help="only models of transformers")
    arguments = parser.parse_args()
    tiebreak = str(pathlib.Path(arguments.tiebreak).resolve())
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(tiebreak, pathlib.Path(folder))
        gpt2(checks, "gpt2", 1)
        erf = {"activation_function": "gelu", "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False}
        gpt2(checks, "gpt2-untied-erf", 2, **erf)
        llama(checks, "llama", 3, rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
        llama(checks, "llama-tied", 4, num_key_value_heads=4, tie_word_embeddings=True, rms_norm_eps=1e-3)
        llama(checks, "mistral", 5, "Mistral", num_key_value_heads=1, sliding_window=None)
        # The 48 positions are 3 times those of 16, so that pairs of all three bands are there.
        bands = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
        llama(checks, "llama-3", 6, rope_parameters={"rope_theta": 50.0, "rope_type": "llama3", **bands}, tie_word_embeddings=True)
        llama(checks, "llama-linear-biases", 7, rope_parameters={"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}, attention_bias=True,
              mlp_bias=True, head_dim=24)
        llama(checks, "mistral-wide", 8, "Mistral", head_dim=20, sliding_window=64)
        llama(checks, "qwen2", 9, "Qwen2", tie_word_embeddings=True)
        llama(checks, "qwen3", 10, "Qwen3", head_dim=32)
        llama(checks, "qwen3-biases", 11, "Qwen3", head_dim=8, attention_bias=True)
        # Windows below the 40 tokens of an input.
        eager = {"attn_implementation": "eager"}
        llama(checks, "mistral-window", 12, "Mistral", sliding_window=5, **eager)
        llama(checks, "qwen2-windows", 13, "Qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=1, **eager)
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        llama(checks, "qwen3-windows", 14, "Qwen3", head_dim=32, use_sliding_window=True, sliding_window=6, layer_types=layers, **eager)
        sharded(checks)
        bert(checks, "bert", 15, pad_token_id=None)
        bert(checks, "bert-padded", 16)
        tanh = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "type_vocab_size": 5, "hidden_dropout_prob": 0.2}
        bert(checks, "bert-tanh-padded", 17, pad_token_id=3, **tanh)
        distilbert(checks, "distilbert", 18, pad_token_id=None)
        distilbert(checks, "distilbert-padded", 19, sinusoidal_pos_embds=True, activation="gelu_new")
        of_sequences = {"kind": BertForSequenceClassification, "num_labels": 3}
        bert(checks, "bert-classes", 20, pad_token_id=None, **of_sequences)
        bert(checks, "bert-classes-padded", 21, classifier_dropout=0.3, **of_sequences, **tanh)
        of_sequences = {"kind": DistilBertForSequenceClassification, "num_labels": 5}
        distilbert(checks, "distilbert-classes", 22, pad_token_id=None, **of_sequences)
        distilbert(checks, "distilbert-classes-padded", 23, seq_classif_dropout=0.0, **of_sequences)
        half = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
        vit(checks, "vit", 24, half)
        vit(checks, "vit-tanh", 25, {"do_normalize": False}, hidden_act="gelu_new", qkv_bias=False, layer_norm_eps=1e-3, hidden_dropout_prob=0.2)
        two = {"image_mean": [0.1, 0.2], "image_std": [0.3, 0.4]}
        vit(checks, "vit-oblong", 26, two, num_channels=2, image_size=[24, 40], num_attention_heads=8, attention_probs_dropout_prob=0.1)
        if not arguments.decoders:
            classifiers(checks)
            pixels(checks)
    print("\n| model | weights | four digits | the job's digits |\n|---|---|---|---|")
    print("\n".join(checks.rows))
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
