"""Capture: models of PyTorch become programs that train to the bits of the built-in models, and near PyTorch's own numbers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from captures import F, captured_error, mean_loss, needs_torch, nn, imported_transformers, torch, trains_as_the_built_in_one
from conftest import command

import tiebreak


def test_the_package_imports_no_torch():
    code = "import sys, tiebreak; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0


@pytest.mark.skipif(torch is not None, reason="there is PyTorch")
def test_without_torch_capture_says_what_to_install():
    with pytest.raises(tiebreak.UsageError, match="pip install torch"):
        tiebreak.capture(None, None, None, (None, None), out="captured")


@needs_torch
@pytest.mark.parametrize("page, count", [("how-to/capture.md", 5), ("how-to/compile.md", 4), ("tutorials/pytorch-to-receipt.md", 6)])
def test_the_pages_blocks_run(tmp_path, monkeypatch, page, count):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / page
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    assert len(blocks) == count
    scope = {"__name__": page.stem}
    for block in blocks:
        exec(compile(block, str(page), "exec"), scope)
    if "answer" in scope:
        checked = command("receipt", "check", "receipt.json", "runs/decoder", "--signer-key", "me.key.pub")
        assert checked["result"] == "matches"


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
    transformers = imported_transformers()
    config = transformers.GPT2Config(
        vocab_size=19, n_positions=5, n_layer=2, n_head=2, n_embd=8, bos_token_id=None, eos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config).train()


GPT = {"kind": "gpt", "vocabulary": 19, "context": 5, "layers": 2, "heads": 2, "width": 8}
RESNET = {"kind": "resnet", "height": 6, "width": 6, "planes": 2, "stages": [3, 5], "blocks": 1, "classes": 4, "norm": "batch", "order": "post"}
# Model, the built-in one of its shape, and the shape of a sample; texts have none.
MODELS = {
    "mlp": (perceptron, {"kind": "mlp", "inputs": 7, "hidden": [5], "classes": 3}, (7,)),
    "resnet": (residual, RESNET, (2, 6, 6)),
    "gpt": (decoder, GPT, None),
    "transformers": (transformers_decoder, GPT, None),
}


@needs_torch
@pytest.mark.parametrize("name, optimizer", [("mlp", "adam"), ("resnet", "sgd"), ("gpt", "adamw"), ("transformers", "sgd")])
def test_a_captured_model_trains_to_the_bits_of_the_built_in_one_and_near_pytorch(folder, name, optimizer):
    torch.manual_seed(1)
    make, table, shape = MODELS[name]
    trains_as_the_built_in_one(make(), table, shape, optimizer)


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
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3)), "aten.group_norm.default in 1 at "),
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
        (lambda: nn.Conv2d(3, 4, 2, padding="same"), "padding is 'same' with a kernel of [2, 2]"),
        (lambda: nn.Conv2d(3, 4, 3, stride=(1, 2)), "stride is [1, 2], with other numbers down than across"),
        (lambda: nn.MaxPool2d(3, ceil_mode=True), "ceil_mode is True, and its windows leave images of "),
        (lambda: nn.AvgPool2d(3, divisor_override=2), "divisor_override is 2"),
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

    model, batch = Unused(), (torch.zeros(2, 4), torch.zeros(2).long())
    with pytest.warns(tiebreak.RunWarning, match="the loss reads no never.weight"):
        tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.1), batch, out="unused")


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
    # Held-out samples are named by their table, too, and fit the example batch.
    held_out = {"every": 1, "samples": 2}
    table = written((4,))
    job = captured.job(table, 1, evaluation={**held_out, "files": table})
    assert job["evaluation"] == {**held_out, "files": [table["inputs"], table["labels"]]} and job["network"] == os.path.join("rows", "network.json")
    assert "evaluation_loss" in tiebreak.train(job, out="watched").metrics[-1]
    assert captured.job(table, 1, evaluation={**held_out, "files": ["a.npy", "b.npy"]})["evaluation"]["files"] == ["a.npy", "b.npy"]
    for files, why in [(written((5,)), "has the shape \\[5\\]"), ({**table, "sampling": "in_order"}, "evaluation.files is a table of")]:
        with pytest.raises(tiebreak.UsageError, match=why):
            captured.job(table, 1, evaluation={**held_out, "files": files})
    Path("odd.npy").write_bytes(b"no header")
    with pytest.raises(tiebreak.MalformedError, match="odd.npy has no header"):
        captured.job({"kind": "arrays", "inputs": "odd.npy", "labels": "odd.npy", "dtype": "f32"}, 1)


@needs_torch
def test_a_capture_that_fails_leaves_no_files(folder):
    model, batch = nn.Linear(4, 3), (torch.zeros(2, 4), torch.zeros(2).long())
    call = lambda rate: tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=rate), batch, out="captured")  # noqa: E731
    from tiebreak import _capture

    network_of = _capture._network
    refused = lambda *given: {**network_of(*given), "format": "tiebreak network 0"}  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_capture, "_network", refused)
        with pytest.raises(tiebreak.CaptureError, match="the model: format: must be"):
            call(0.5)
        assert not os.path.exists("captured")
        patch.setattr(_capture, "_network", network_of)
        call(0.5)
        before = {name: Path("captured", name).read_bytes() for name in os.listdir("captured")}
        assert sorted(before) == ["network.json", "program.bin", "weights.safetensors"]
        patch.setattr(_capture, "_network", refused)
        with pytest.raises(tiebreak.CaptureError):
            call(0.25)
    assert {name: Path("captured", name).read_bytes() for name in os.listdir("captured")} == before
