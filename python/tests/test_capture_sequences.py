"""Convolutions over positions, images that are padded, pools of other windows, and stochastic depth."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from captures import captured_error, imported_transformers, mean_loss, near_fp64, needs_torch, nn, torch
from test_capture_compositions import computing, operators, trained_near_pytorch

import tiebreak


def over_positions(f, *shape, **parts):
    return (lambda: computing(f, **{name: make() for name, make in parts.items()}), shape)


if torch is not None:
    gelu = nn.functional.gelu
    seen = lambda f, **parts: over_positions(lambda m, x: m.last(f(m, x).relu().mean((2, 3))), 2, 5, 6, last=lambda: nn.Linear(4, 3), **parts)  # noqa: E731
    padding = nn.functional.pad
    CONVOLUTIONS = {
        "columns of zeros": seen(lambda m, x: m.b(m.a(x)), a=lambda: nn.Conv2d(2, 3, (1, 7), padding=(0, 3)), b=lambda: nn.Conv2d(3, 4, (3, 1), padding=(1, 0))),
        "padding on one side": seen(lambda m, x: m.a(padding(x, (0, 1, 0, 1))), a=lambda: nn.Conv2d(2, 4, 2)),
        "padding on each side": seen(lambda m, x: m.b(padding(m.a(x), (1, 2, 3, 0))), a=lambda: nn.Conv2d(2, 3, 1), b=lambda: nn.Conv2d(3, 4, 2, stride=2)),
        "padding that does not count": seen(lambda m, x: (lambda y: m.p(y) - y)(m.a(x)), a=lambda: nn.Conv2d(2, 4, 2), p=lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
        "a spectrogram": (lambda: computing(lambda m, x: m.last(torch.relu(m.a(x.unsqueeze(1).transpose(2, 3))).mean((2, 3))), a=nn.Conv2d(1, 4, 3, stride=2), last=nn.Linear(4, 3)), (7, 5)),
        "channels first": over_positions(lambda m, x: m.last(gelu(m.b(gelu(m.a(x)))).mean(2)), 3, 9, a=lambda: nn.Conv1d(3, 4, 3, padding=1), b=lambda: nn.Conv1d(4, 5, 3, stride=2, padding=1), last=lambda: nn.Linear(5, 3)),
        "positions first": over_positions(lambda m, x: m.last((x + m.n(m.a(x.transpose(1, 2)).transpose(1, 2))).mean(1)), 6, 4, a=lambda: nn.Conv1d(4, 4, 5, padding="same"), n=lambda: nn.LayerNorm(4), last=lambda: nn.Linear(4, 3)),
        "groups": over_positions(lambda m, x: m.last(torch.relu(m.a(m.b(x).transpose(1, 2))).transpose(1, 2)[:, -1]), 5, 3, b=lambda: nn.Linear(3, 4), a=lambda: nn.Conv1d(4, 6, 2, groups=2, bias=False), last=lambda: nn.Linear(6, 3)),
        "a wave": over_positions(lambda m, x: m.last(torch.relu(m.a(x.unsqueeze(1))).mean(2)), 12, a=lambda: nn.Conv1d(1, 4, 4, stride=2), last=lambda: nn.Linear(4, 3)),
        "patches": over_positions(lambda m, x: m.last(torch.relu(m.a(m.c(x).flatten(2))).mean(2)), 2, 4, 4, c=lambda: nn.Conv2d(2, 3, 2), a=lambda: nn.Conv1d(3, 4, 3, padding=2), last=lambda: nn.Linear(4, 3)),
    }  # fmt: skip


@needs_torch
@pytest.mark.parametrize("name", CONVOLUTIONS if torch is not None else [])
def test_convolutions_over_positions_train_near_pytorch(folder, name):
    make, shape = CONVOLUTIONS[name]
    captured, predictions, logits = trained_near_pytorch(make, shape, ["adamw", "adam", "sgd"][len(name) % 3])
    assert {"conv2d", "grouped_conv2d"} & set(operators(captured)) and "as_image" in operators(captured), operators(captured)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
@pytest.mark.parametrize("name", CONVOLUTIONS if torch is not None else [])
def test_gradients_are_as_near_to_fp64_as_pytorchs_in_fp32(name, monkeypatch):
    make, shape = CONVOLUTIONS[name]
    near_fp64(monkeypatch, name, (make, lambda: (torch.randn(2, *shape), torch.randint(0, 3, (2,)))))


@needs_torch
def test_whisper_trains_near_pytorch(folder):
    transformers = imported_transformers()
    sizes = {"d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 12, "num_mel_bins": 4, "max_source_positions": 6, "classifier_proj_size": 6,
             "num_labels": 3, "dropout": 0.0}  # fmt: skip
    torch.manual_seed(3)
    model = transformers.WhisperForAudioClassification(transformers.WhisperConfig(**sizes)).train()
    draw = np.random.default_rng(3)
    sounds, labels = torch.from_numpy(draw.standard_normal((2, 4, 12), dtype=np.float32)), torch.tensor([0, 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captured = tiebreak.capture(model, mean_loss, optimizer, (sounds, labels), out="captured", digits=4)
    assert operators(captured).count("conv2d") == 2 and "bidirectional_attention" in operators(captured)
    with tiebreak.Recorder(captured, out="run", steps=3, progress=False) as recorder:
        for _ in range(3):
            recorder.step((sounds, labels))
            optimizer.zero_grad()
            mean_loss(model(sounds), labels).backward()
            optimizer.step()
    found = captured.state_dict(recorder.run)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@needs_torch
@pytest.mark.parametrize("size, fits", [(7, True), (8, False)])
def test_windows_that_fit_may_have_ceil_mode(folder, size, fits):
    make = lambda: computing(lambda m, x: m.last(m.p(m.c(x)).mean((2, 3))), c=nn.Conv2d(2, 4, 1), p=nn.MaxPool2d(3, 2, ceil_mode=True), last=nn.Linear(4, 3))  # noqa: E731
    if fits:
        captured, _, _ = trained_near_pytorch(make, (2, size, size))
        assert "max_pool" in operators(captured)
        return
    refused = captured_error(make(), batch=(torch.zeros(2, 2, size, size), torch.zeros(2).long()))
    assert len(refused) == 1 and "ceil_mode is True, and its windows leave images of [8, 8]" in refused[0]


def depth(x, p, style):
    """Stochastic depth as torchvision, transformers and timm have it."""
    kept, shape = 1 - p, (x.shape[0],) + (1,) * (x.ndim - 1)
    if style == "torchvision":
        noise = torch.empty(shape, dtype=x.dtype).bernoulli_(kept)
        noise.div_(kept)
        return x * noise
    if style == "transformers":
        return x.div(kept) * (kept + torch.rand(shape, dtype=x.dtype)).floor_()
    return x * x.new_empty(shape).bernoulli_(kept).div_(kept)


@needs_torch
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 3)])
@pytest.mark.parametrize("style", ["torchvision", "transformers", "timm"])
def test_stochastic_depth_leaves_out_whole_samples(folder, style, shape):
    make = lambda: nn.Linear(6, 5) if len(shape) == 2 else nn.Conv2d(2, 5, 2)  # noqa: E731
    mean, kept = (1,) if len(shape) == 2 else (2, 3), 0.75
    with_noise = lambda noise: computing(lambda m, x: m.last(noise(m.a(x)).relu().mean(mean)), a=make(), last=nn.Linear(5, 3))  # noqa: E731
    model = with_noise(lambda x: depth(x, 1 - kept, style))
    draw = np.random.default_rng(3)
    inputs, labels = draw.standard_normal((4, *shape), dtype=np.float32), np.arange(4) % 3
    np.save("inputs.npy", inputs)
    np.save("labels.npy", labels)
    batch = torch.from_numpy(inputs), torch.from_numpy(labels)
    captured = tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.5), batch, out="captured", digits=4)
    [node] = [node for node in json.loads(Path(captured.network).read_text())["nodes"] if node["operator"] == "sample_dropout"]
    assert node["attributes"] == {"p": 1 - kept}
    # One step of each set of samples that are kept, by PyTorch.
    steps = {}
    for mask in itertools.product([0.0, 1.0], repeat=4):
        factor = torch.tensor(mask).reshape(4, *[1] * len(shape)) / kept
        other = with_noise(lambda x, factor=factor: x * factor)
        other.load_state_dict(model.state_dict())
        optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
        mean_loss(other(batch[0]), batch[1]).backward()
        optimizer.step()
        steps[mask] = other.state_dict()
    found = set()
    for seed in range(8):
        data = {"kind": "arrays", "inputs": "inputs.npy", "labels": "labels.npy", "dtype": "f32"}
        run = tiebreak.train(captured.job(data, 1, seed=seed), out=f"run{seed}", progress=False)
        after = captured.state_dict(run)
        near = [mask for mask, due in steps.items() if all(torch.allclose(after[key], tensor, rtol=1e-5, atol=1e-6) for key, tensor in due.items())]
        assert len(near) == 1, near
        found.add(near[0])
    assert len(found) > 2 and 0 < sum(map(sum, found)) < 4 * len(found)
    # Nothing is left out of an evaluation.
    whole = with_noise(lambda x: x)
    whole.load_state_dict(after)
    torch.testing.assert_close(torch.from_numpy(tiebreak.predict(run, inputs).logits), whole(batch[0]).detach(), rtol=1e-4, atol=1e-5)


@needs_torch
def test_other_draws_are_refused(folder):
    batch = torch.zeros(2, 4, 6), torch.zeros(2).long()
    for noise, why in [
        (lambda x: x * torch.empty(1, 1, 1).bernoulli_(0.5), "not one for each of 2 samples"),
        (lambda x: x * torch.rand(2, 4, 1), "not one for each of 2 samples"),
        (lambda x: x * torch.rand(2, 1, 1), "it multiplies by a uniform number; draw one number for each sample"),
        (lambda x: x * (torch.rand(2, 1, 1) + 0.5), "it multiplies by a uniform number"),
        (lambda x: x * (x.relu().floor() + 1), "it rounds down something else"),
        (lambda x: x + torch.empty(2, 1, 1).bernoulli_(0.5), "it adds something else than one probability"),
        (lambda x: x * torch.empty(2, 1, 1).bernoulli_(0.0), "it keeps a sample with the probability 0"),
        # In `eval()` such a model leaves the factor out, which no evaluation knows.
        (lambda x: x * torch.empty(2, 1, 1).bernoulli_(0.5), "without dividing what it keeps"),
        (lambda x: (lambda draw: x * draw - x * draw)(torch.empty(2, 1, 1).bernoulli_(0.5).div_(0.5)), "another operator multiplies by already"),
        (lambda x: (lambda draw: x * draw * draw)((torch.rand(2, 1, 1) + 0.5).floor_() / 0.5), "another operator multiplies by already"),
    ]:
        model = computing(lambda m, x, noise=noise: m.last(noise(m.a(x)).mean(1)), a=nn.Linear(6, 5), last=nn.Linear(5, 3))
        said = "\n".join(captured_error(model, batch=batch))
        assert why in said and "test_capture_" in said, (why, said)
