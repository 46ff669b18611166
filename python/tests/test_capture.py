"""Capture: models of PyTorch become programs that train to the bits of the built-in models, and near PyTorch's own numbers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import command

import tiebreak

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    torch = None

REQUIRED = "TIEBREAK_REQUIRE_TORCH" in os.environ
needs_torch = pytest.mark.skipif(
    torch is None and not REQUIRED,
    reason="NOT TESTED: there is no PyTorch, so tiebreak.capture is not (TIEBREAK_REQUIRE_TORCH makes that a failure)",
)


def test_the_package_imports_no_torch():
    code = "import sys, tiebreak; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0


@pytest.mark.skipif(torch is not None, reason="there is PyTorch")
def test_without_torch_capture_says_what_to_install():
    with pytest.raises(tiebreak.UsageError, match="pip install torch"):
        tiebreak.capture(None, None, None, (None, None), out="captured")


@needs_torch
def test_the_pages_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs/how-to/capture.md"
    (block,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    exec(compile(block, str(page), "exec"), {})


def perceptron():
    return nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))


def residual():
    """The built-in residual network of two stages, as torchvision writes it."""

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            y += x if self.downsample is None else self.downsample(x)
            return self.relu(y)

    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(inplace=True),
        Block(3, 3, 1), Block(3, 5, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4),
    )


def decoder():
    """A GPT-2 as nanoGPT writes it, with tied tables."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn = nn.Linear(8, 24)
            self.c_proj = nn.Linear(8, 8)

        def forward(self, x):
            samples, positions, width = x.shape
            heads = [part.view(samples, positions, 2, width // 2).transpose(1, 2) for part in self.c_attn(x).split(8, dim=2)]
            y = F.scaled_dot_product_attention(*heads, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(samples, positions, width))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(8), Attention(), nn.LayerNorm(8)
            self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(approximate="tanh"), nn.Linear(32, 8))

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(19, 8), nn.Embedding(5, 8)
            self.h = nn.ModuleList([Block(), Block()])
            self.ln_f = nn.LayerNorm(8)
            self.lm_head = nn.Linear(8, 19, bias=False)
            self.lm_head.weight = self.wte.weight

        def forward(self, tokens):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    return Gpt()


def transformers_decoder():
    try:
        import transformers
    except ImportError:
        if REQUIRED:
            raise
        pytest.skip("NOT TESTED: there is no transformers, so its GPT-2 is not captured")
    config = transformers.GPT2Config(
        vocab_size=19, n_positions=5, n_layer=2, n_head=2, n_embd=8, bos_token_id=None, eos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config).train()


def mean_loss(logits, labels):
    logits = getattr(logits, "logits", logits)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


GPT = {"kind": "gpt", "vocabulary": 19, "context": 5, "layers": 2, "heads": 2, "width": 8}
RESNET = {"kind": "resnet", "height": 6, "width": 6, "planes": 2, "stages": [3, 5], "blocks": 1, "classes": 4, "norm": "batch", "order": "post"}
# Model, the built-in one of its shape, and the shape of a sample; texts have none.
MODELS = {
    "mlp": (perceptron, {"kind": "mlp", "inputs": 7, "hidden": [5], "classes": 3}, (7,)),
    "resnet": (residual, RESNET, (2, 6, 6)),
    "gpt": (decoder, GPT, None),
    "transformers": (transformers_decoder, GPT, None),
}


def data_of_one_sample(shape, classes):
    """Files with one sample, so that each batch is the same; the sample twice as tensors, and the `[data]` table."""
    draw = np.random.default_rng(3)
    if shape is None:
        tokens = draw.integers(0, 19, 6, dtype=np.uint16)
        np.save("tokens.npy", tokens)
        pair = tokens[:-1], tokens[1:]
        data = {"kind": "tokens", "path": "tokens.npy", "dtype": "u16"}
        return [torch.from_numpy(np.stack([part.astype(np.int64)] * 2)) for part in pair], data
    inputs, labels = draw.standard_normal((1, *shape), dtype=np.float32), draw.integers(0, classes, 1)
    np.save("inputs.npy", inputs)
    np.save("labels.npy", labels)
    data = {"kind": "arrays", "inputs": "inputs.npy", "labels": "labels.npy", "dtype": "f32"}
    return [torch.from_numpy(np.concatenate([part] * 2)) for part in (inputs, labels)], data


OPTIMIZERS = {
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.5, 0.75), eps=1e-3, weight_decay=0.1), "adamw", "decoupled"),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.75), eps=1e-3, weight_decay=0.1), "adamw", "coupled"),
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.75, weight_decay=0.1), "sgd", "coupled"),
}


def built_in_job(table, optimizer):
    """The job of the built-in model, without steps, data and weights."""
    _, kind, decay = OPTIMIZERS[optimizer]
    numbers = {"beta1": 0.5, "beta2": 0.75, "epsilon": 1e-3} if kind == "adamw" else {"momentum": 0.75}
    return {
        "model": table,
        "optimizer": {"kind": kind, "decay": decay, "weight_decay": 0.1, **numbers, "group": [{"parameters": ["*"], "weight_decay": 0.1}]},
        "batch": {"micro_batch": 2, "micro_batches": 2},
        "clip_norm": 0.5,
    }


def shown(file):
    found = command("program", "show", file)
    return [p["name"] for p in found["parameters"]] + [f"buffer/{b['name']}" for b in found["buffers"]]


def read_safetensors(file):
    data = Path(file).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], np.float32).reshape(t["shape"]) for name, t in header.items()}


@needs_torch
@pytest.mark.parametrize("name, optimizer", [("mlp", "adam"), ("resnet", "sgd"), ("gpt", "adamw"), ("transformers", "sgd")])
def test_a_captured_model_trains_to_the_bits_of_the_built_in_one_and_near_pytorch(folder, name, optimizer):
    from tiebreak._capture import _write_safetensors

    torch.manual_seed(1)
    make, table, shape = MODELS[name]
    model = make()
    batch, data = data_of_one_sample(shape, table.get("classes"))
    torch_optimizer = OPTIMIZERS[optimizer][0](model.parameters())
    captured = tiebreak.capture(model, mean_loss, torch_optimizer, batch, out="captured", micro_batches=2, clip_norm=0.5)
    run = tiebreak.train(captured.job(data, 3), out="captured-run")
    ours = run.state_dict(names="program")

    job = {**built_in_job(table, optimizer), "steps": 3, "data": data, "schedule": {"peak": captured.learning_rate}}
    tiebreak.train({**job, "steps": 1}, out="first")
    names = shown("first/program.bin")
    mapped = dict(zip(shown(captured.program), names))
    _write_safetensors("built-in.safetensors", {mapped[name]: array for name, array in read_safetensors(captured.weights).items()})
    theirs = tiebreak.train({**job, "init": {"weights": ["built-in.safetensors"]}}, out="built-in").state_dict(names="program")
    assert len(names) == len(ours) == len(theirs)
    for captured_name, built_in_name in mapped.items():
        assert ours[captured_name].tobytes() == theirs[built_in_name].tobytes(), captured_name

    # PyTorch's own steps, on the same batches: those of both micro-batches.
    batch = [torch.cat([tensor] * 2) for tensor in batch]
    for _ in range(3):
        torch_optimizer.zero_grad()
        mean_loss(model(batch[0]), batch[1]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch_optimizer.step()
    after, due = captured.state_dict(run), model.state_dict()
    assert {key for key in due if not key.endswith("num_batches_tracked")} == set(after)
    for key, tensor in after.items():
        torch.testing.assert_close(tensor, due[key], rtol=1e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")
    model.load_state_dict(after, strict=False)
    assert tiebreak.audit(run, sample=1.0).matches


if torch is not None:

    class Normed(nn.Module):
        """A normalisation over what only looks like the channels."""

        def __init__(self):
            super().__init__()
            self.table, self.norm, self.head = nn.Embedding(7, 4), nn.BatchNorm1d(4), nn.Linear(4, 7)

        def forward(self, tokens):
            return self.head(self.norm(self.table(tokens)))

    class Repeated(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x).view(2, 1, 4).expand(2, 3, 4).mean(1)


def captured_error(model, loss_fn=mean_loss, optimizer=None, batch=None):
    """The refusals of a model over rows of 4, or over a given batch."""
    batch = batch or (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(tiebreak.CaptureError) as error:
        optimizer = optimizer or torch.optim.AdamW(model.parameters())
        tiebreak.capture(model, loss_fn, optimizer, batch, out="captured")
    assert not os.path.exists("captured")
    return error.value.refused


def images():
    return torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)


def twice(norm):
    return nn.Sequential(norm, nn.Linear(4, 4), norm, nn.Linear(4, 3))


def over_images(*layers):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(4))


@needs_torch
@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.ELU()), "aten.elu.default in 1 at "),
        (lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 3)), "it has no weight or no bias"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).eval(), "training is False, and only True is there; call model.train()"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.2)), "momentum is 0.2, and a network has one"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)), "no weight, bias or running averages"),
        (lambda: twice(nn.BatchNorm1d(4)), "its running averages would be those of two normalisations"),
        # BatchNorm1d of three dimensions normalises the second one.
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (1, 4)), nn.BatchNorm1d(1)), "aten."),
        (lambda: Normed(), "it normalises [2, 4, 4] (rows)"),
        (lambda: Repeated(), "aten.expand.default in the model at "),
        (lambda: nn.Linear(4, 3).double(), "parameter weight is torch.float64: use model.float()"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_its_place(folder, make, why):
    model = make()
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    batch = (tokens, tokens) if isinstance(model, Normed) else None
    assert why in "\n".join(captured_error(model, batch=batch)), why


@needs_torch
@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: nn.Conv2d(3, 4, 3, dilation=2), "dilation is 2, and only 1 is there"),
        (lambda: nn.Conv2d(3, 4, 3, padding="same"), "padding is 'same'; give padding as a number"),
        (lambda: nn.Conv2d(3, 4, (3, 1), padding=(1, 0)), "padding is [1, 0], with other numbers down than across"),
        (lambda: nn.MaxPool2d(3, ceil_mode=True), "ceil_mode is True, and only False is there"),
        (lambda: nn.AvgPool2d(3, padding=1, count_include_pad=False), "count_include_pad is False"),
        (lambda: nn.BatchNorm2d(3, affine=False), "it has no weight, bias or running averages"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="circular", padding=1), "aten.pad"),
    ],
)
def test_images_attributes_are_checked(folder, make, why):
    model = over_images(make())
    model(images()[0])
    assert why in "\n".join(captured_error(model, batch=images())), why


@needs_torch
def test_losses_and_optimizers_are_checked(folder):
    model = nn.Linear(4, 3)
    for loss, why in [
        (nn.CrossEntropyLoss(reduction="sum"), "reduction is 2, and only 1 is there"),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), "weight is "),
        (lambda logits, labels: 2 * mean_loss(logits, labels), "loss_fn must return one cross entropy alone"),
        (lambda logits, labels: logits.sum(), "aten.sum.default in the model at "),
    ]:
        assert why in "\n".join(captured_error(model, loss)), why
    parameters = lambda: model.parameters()  # noqa: E731
    used = torch.optim.SGD(parameters(), lr=0.1, momentum=0.9)
    mean_loss(model(torch.ones(2, 4)), torch.zeros(2, dtype=torch.int64)).backward()
    used.step()
    groups = [{"params": [model.weight], "betas": (0.5, 0.5)}, {"params": [model.bias]}]
    for optimizer, why in [
        (torch.optim.Adagrad(parameters()), "the optimizer is a Adagrad: use torch.optim's AdamW, Adam, SGD"),
        (torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True), "nesterov is True, and only False is there"),
        (torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, dampening=0.5), "dampening is 0.5, and only 0 is there"),
        (torch.optim.AdamW(parameters(), amsgrad=True), "amsgrad is True"),
        (torch.optim.Adam(parameters(), maximize=True), "maximize is True"),
        (torch.optim.AdamW(groups), "parameter groups have several betas"),
        (torch.optim.SGD(parameters(), lr=0.0), "the learning rates are [0.0]: give one above 0"),
        (torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), "a tensor that is no parameter of the model"),
        (used, "the optimizer has taken steps"),
    ]:
        assert why in "\n".join(captured_error(model, optimizer=optimizer)), why


@needs_torch
def test_all_refusals_come_at_once_and_no_meaning_is_guessed(folder):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.never = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(1, 1)

        def forward(self, x):
            y = self.first(x)
            same = y.view(2, 1, 4)
            torch.relu_(y)
            return self.last(F.elu(x) + same.view(2, 4))

    refused = captured_error(Odd())
    assert len(refused) == 2 and "aten.relu_.default" in refused[0] and "test_capture.py:" in refused[0], refused
    assert "changes a tensor in place that something else reads" in refused[0] and "aten.elu.default" in refused[1]

    class Unused(Odd):
        def forward(self, x):
            return self.last(self.first(x))

    refused = captured_error(Unused())
    assert refused[0].startswith("parameter never.weight: the loss does not depend on it"), refused


@needs_torch
def test_groups_frozen_parameters_and_grouped_convolutions_are_captured(folder):
    model = over_images(nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3), nn.Dropout(0.5), nn.SiLU())
    model(images()[0])
    model[0].bias.requires_grad_(False)
    groups = [{"params": [model[0].weight], "lr": 0.25, "weight_decay": 0.0}, {"params": [*model[-1].parameters(), model[0].bias]}]
    optimizer = torch.optim.AdamW(groups, lr=0.5, weight_decay=0.125)
    captured = tiebreak.capture(model, mean_loss, optimizer, images(), out="captured")
    network = json.loads(Path(captured.network).read_text())
    kept = {p["name"]: {key: p[key] for key in p if key not in ("name", "shape")} for p in network["parameters"]}
    assert captured.learning_rate == 0.25
    assert kept == {
        "0.weight": {"weight_decay": 0.0, "rate_factor": 1.0},
        "0.bias": {"frozen": True},
        "5.weight": {"weight_decay": 0.125, "rate_factor": 2.0},
        "5.bias": {"weight_decay": 0.125, "rate_factor": 2.0},
    }
    assert network["optimizer"] == {"kind": "adamw", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": "decoupled"}
    assert [node["operator"] for node in network["nodes"]] == ["image", "grouped_conv2d", "bias", "dropout", "silu", "mean_pool", "linear"]
    data = tiebreak.dataset(torch.utils.data.TensorDataset(torch.randn(6, 3, 8, 8), torch.arange(6) % 4), "data")
    run = tiebreak.train(captured.job(data, 2), out="run")
    after = captured.state_dict(run)
    assert torch.equal(after["0.bias"], model[0].bias) and not torch.equal(after["0.weight"], model[0].weight)
    assert tiebreak.audit(run, sample=1.0).matches


def schedulers():
    """Schedulers that a schedule has exactly in a run of 50 steps."""
    from torch.optim import lr_scheduler as all_of

    return {
        "constant": lambda o: all_of.ConstantLR(o, factor=1.0),
        "none": lambda o: all_of.LinearLR(o, 1.0, 1.0),
        "warm-up": lambda o: all_of.LinearLR(o, 1 / 8, total_iters=7),
        "line": lambda o: all_of.LinearLR(o, 1.0, 0.25, total_iters=49),
        "polynomial": lambda o: all_of.PolynomialLR(o, total_iters=49),
        "cosine": lambda o: all_of.CosineAnnealingLR(o, 49),
        "cosine to a floor": lambda o: all_of.CosineAnnealingLR(o, 49, eta_min=0.003),
        "steps": lambda o: all_of.StepLR(o, 7, 0.3),
        "milestones": lambda o: all_of.MultiStepLR(o, [30, 4, 49, 90], 0.1),
        "exponential": lambda o: all_of.ExponentialLR(o, 0.875),
        "warm-up, then cosine": lambda o: all_of.SequentialLR(
            o, [all_of.LinearLR(o, 1 / 6, total_iters=5), all_of.CosineAnnealingLR(o, 44, eta_min=0.003)], [5]
        ),
        "warm-up, then line": lambda o: all_of.SequentialLR(o, [all_of.LinearLR(o, 1 / 11, total_iters=10), all_of.PolynomialLR(o, 39)], [10]),
        "warm-up, then line to a share": lambda o: all_of.SequentialLR(
            o, [all_of.LinearLR(o, 1 / 11, total_iters=10), all_of.LinearLR(o, 1, 0.5, total_iters=39)], [10]
        ),
    }


def scheduled(make, **more):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **more)
    return model, optimizer, make(optimizer)


@needs_torch
def test_a_run_has_the_rates_of_the_scheduler(folder):
    data = tiebreak.dataset((np.ones((4, 4), np.float32), np.arange(4) % 3), "data")
    for name, make in schedulers().items():
        model, optimizer, scheduler = scheduled(make)
        batch = torch.zeros(2, 4), torch.zeros(2).long()
        captured = tiebreak.capture(model, mean_loss, optimizer, batch, out=f"captured-{name}", scheduler=scheduler)
        run = tiebreak.train(captured.job(data, 50), out=f"run-{name}")
        theirs = []
        for _ in range(50):
            theirs.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        ours = [record.learning_rate for record in run.records if record.kind == "step"]
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-15, err_msg=name)
        assert name in ("constant", "none") or len(set(ours)) > 1, name


@needs_torch
def test_schedulers_without_a_counterpart_are_refused(folder):
    from torch.optim import lr_scheduler as all_of

    batch = torch.zeros(2, 4), torch.zeros(2).long()
    warm = lambda o, n: all_of.LinearLR(o, 1 / (n + 1), total_iters=n)  # noqa: E731
    for make, why in [
        (lambda o: all_of.LambdaLR(o, lambda step: 1.0), "the scheduler is a LambdaLR: use one of ConstantLR"),
        (lambda o: all_of.OneCycleLR(o, 0.1, 50), "the scheduler is a OneCycleLR"),
        (lambda o: all_of.CosineAnnealingWarmRestarts(o, 10), "CosineAnnealingWarmRestarts"),
        (lambda o: type("Own", (all_of.StepLR,), {})(o, 3), "the scheduler is a Own"),
        (lambda o: all_of.ConstantLR(o), "ConstantLR has factor 0.333"),
        (lambda o: all_of.LinearLR(o), "start_factor=1 / \\(total_iters \\+ 1\\) = 1 / 6"),
        (lambda o: all_of.LinearLR(o, 0.5, 0.25), "start_factor 0.5 and end_factor 0.25"),
        (lambda o: all_of.PolynomialLR(o, 49, power=2.0), "power 2.0"),
        (lambda o: all_of.CosineAnnealingLR(o, 49, eta_min=0.1), "above the learning rate"),
        (lambda o: all_of.StepLR(o, 3, 1.5), "gamma 1.5"),
        (lambda o: all_of.MultiStepLR(o, [3, 3]), "the milestone 3 several times"),
        (lambda o: all_of.MultiStepLR(o, [0, 3]), "a milestone is 0"),
        (lambda o: all_of.SequentialLR(o, [warm(o, 5), all_of.CosineAnnealingLR(o, 44)], [6]), "milestones \\[6\\]"),
        (lambda o: all_of.SequentialLR(o, [warm(o, 5), all_of.StepLR(o, 4)], [5]), "LinearLR, then StepLR"),
        (lambda o: None, "a scheduler changes the optimizer's learning rate"),
        (lambda o: all_of.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters()), 3), "another optimizer"),
    ]:
        model, optimizer, scheduler = scheduled(make)
        if scheduler is None:
            all_of.StepLR(optimizer, 3)
        with pytest.raises(tiebreak.CaptureError, match=why):
            tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
    model, optimizer, scheduler = scheduled(lambda o: all_of.StepLR(o, 3))
    optimizer.step()
    scheduler.step()
    with pytest.raises(tiebreak.CaptureError, match="the scheduler has taken steps"):
        tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
    model, optimizer, scheduler = scheduled(lambda o: all_of.StepLR(o, 3))
    optimizer.param_groups[0]["lr"] = 0.01
    with pytest.raises(tiebreak.CaptureError, match="learning rates changed after"):
        tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
    groups = torch.optim.SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias]}], lr=0.05)
    with pytest.raises(tiebreak.CaptureError, match="several learning rates"):
        tiebreak.capture(model, mean_loss, groups, batch, out="captured", scheduler=all_of.CosineAnnealingLR(groups, 49, eta_min=0.01))
    for make, why in [
        (lambda o: all_of.CosineAnnealingLR(o, 50), "T_max=50, and a run of 50 steps has 49 after.*\n.*steps=51, or T_max=49"),
        (lambda o: all_of.LinearLR(o, 1.0, 0.5, total_iters=20), "total_iters=20.*\n.*steps=21"),
        (lambda o: all_of.ExponentialLR(o, 0.9), "after 49 falls.*\n.*give gamma=0.89999997"),
    ]:
        model, optimizer, scheduler = scheduled(make)
        captured = tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
        with pytest.raises(tiebreak.UsageError, match=why):
            captured.job({"kind": "arrays"}, 50)
    with pytest.raises(tiebreak.UsageError, match="give one of them"):
        captured.job({"kind": "arrays"}, 50, schedule={"peak": 0.1})


@needs_torch
def test_a_job_says_what_differs_between_data_and_example_batch(folder):
    rows = nn.Linear(4, 3)
    captured = tiebreak.capture(rows, mean_loss, torch.optim.SGD(rows.parameters(), lr=0.5), (torch.zeros(2, 4), torch.zeros(2).long()), out="rows")
    model = over_images(nn.Conv2d(3, 4, 3))
    model(images()[0])
    seeing = tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.5), images(), out="images")
    text = decoder()
    batch = torch.zeros(2, 5).long(), torch.zeros(2, 5).long()
    reading = tiebreak.capture(text, mean_loss, torch.optim.SGD(text.parameters(), lr=0.5), batch, out="texts")

    def written(shape, dtype=torch.float32):
        name = f"{dtype}-{shape}"
        return tiebreak.dataset([(torch.ones(shape).to(dtype), 0)] * 3, name)

    tokens = tiebreak.dataset([[1, 2, 3, 4, 5, 6]], "tokens")
    for captured_model, data in [
        (captured, written((4,))), (captured, written((2, 2), torch.float16)), (captured, written((4,), torch.bfloat16)),
        (seeing, written((3, 8, 8))), (reading, tokens), (reading, {"kind": "bytes", "path": "text.txt"}),
        (captured, {"kind": "arrays", "inputs": "elsewhere.npy", "labels": "elsewhere.npy", "dtype": "f32"}),
    ]:
        assert captured_model.job(data, 1)["data"] == data
    # What a job takes, training takes too.
    assert len(tiebreak.train(captured.job(written((2, 2), torch.float16), 1), out="run").losses) == 1
    for captured_model, data, why in [
        (captured, written((5,)), "has the shape \\[5\\], and one of the example batch \\[4\\]"),
        (captured, written((5,), torch.bfloat16), "has the shape \\[5\\]"),
        (seeing, written((8, 8, 3)), "has the shape \\[8, 8, 3\\], and one of the example batch \\[3, 8, 8\\]"),
        (captured, written((4,), torch.uint8), "uint8 pixels, and the example batch has float32 inputs.*\n.*/ 255"),
        (captured, {**written((4,)), "dtype": "f16"}, "holds f32, and the data's dtype is 'f16'"),
        (captured, tokens, "the data are tokens, and the example batch has float32 inputs"),
        (reading, written((4,)), "the data are arrays, and the example batch has token ids"),
        (captured, {"kind": "idx"}, "pixels \\(idx\\)"),
        (captured, "data", "data is a str"),
    ]:
        with pytest.raises(tiebreak.UsageError, match=why) as error:
            captured_model.job(data, 1)
        assert error.value.help
    Path("odd.npy").write_bytes(b"no header")
    with pytest.raises(tiebreak.MalformedError, match="odd.npy has no header"):
        captured.job({"kind": "arrays", "inputs": "odd.npy", "labels": "odd.npy", "dtype": "f32"}, 1)
