"""Capture of activations of straight pieces: PyTorch's values, and its derivatives where pieces meet."""

import re

import numpy as np
import pytest
from captures import F, captured_error, mean_loss, needs_torch, nn, torch
from test_capture_compositions import computing, images, operators, parameter, rows, trained_near_pytorch

import tiebreak

# The places where pieces meet, the bound with the fewest elements that are met exactly, and the units in the last place by which a value may differ.
if torch is not None:
    ACTIVATIONS = {
        "relu": (F.relu, [0], 1, 0),
        "relu6": (F.relu6, [0, 6], 6, 0),
        "ReLU6": (nn.ReLU6(inplace=True), [0, 6], 6, 0),
        "hardtanh": (F.hardtanh, [-1, 1], 1, 0),
        "hardtanh of other bounds": (lambda x: F.hardtanh(x, -0.1, 3.3), [-0.1, 3.3], 0.1, 0),
        "clamp": (lambda x: x.clamp(0.7, 2), [0.7, 2], 0.7, 0),
        "clamp in place": (lambda x: (x * 1).clamp_(-1e-3, 0), [-1e-3, 0], 1e-3, 0),
        "clamp below": (lambda x: torch.clamp_min(x, 0.3), [0.3], 0.3, 0),
        "clamp above": (lambda x: torch.clip(x, max=-1 / 3), [-1 / 3], 1 / 3, 0),
        "clamp below a number above 0": (lambda x: x.clamp(min=1), [1], 1, 0),
        "clamp above a number below 0": (lambda x: x.clamp(max=-1), [-1], 1, 0),
        "hardtanh on one side of 0": (lambda x: F.hardtanh(x, 2, 4), [2, 4], 2, 0),
        "abs": (torch.abs, [0], 1, 0),
        "leaky_relu": (F.leaky_relu, [0], 1, 0),
        "leaky_relu, falling": (lambda x: F.leaky_relu(x, -0.3), [0], 1, 0),
        "softshrink": (lambda x: F.softshrink(x, 0.3), [-0.3, 0.3], 1, 0),
        "hardsigmoid": (F.hardsigmoid, [-3, 3], 3, 1),
        "hardswish": (F.hardswish, [-3, 3], 3, 1),
        "prelu": (nn.PReLU(12, 0.3), [0], 1, 0),
    }


def units_apart(x, y):
    """The greatest distance of two arrays in units in the last place. Both zeros are equal."""
    x, y = ((array + np.float32(0)).view(np.int32).astype(np.int64) for array in (x, y))
    x, y = (np.where(numbers < 0, -(2**31) - numbers, numbers) for numbers in (x, y))
    return np.abs(x - y).max()


@needs_torch
@pytest.mark.parametrize("name", ACTIVATIONS if torch is not None else [])
def test_activations_have_pytorchs_values_and_its_derivatives_where_pieces_meet(folder, name):
    f, meets, bound, apart = ACTIVATIONS[name]
    torch.manual_seed(5)
    model = computing(lambda m, x: m.act(x + m.h), h=nn.Parameter(torch.zeros(12)), act=f)
    at = np.float32(meets)
    around = np.concatenate([at, np.nextafter(at, np.float32(-9)), np.nextafter(at, np.float32(9)), np.float32([-4, -0.25, 0.25, 4, 7, -9])])
    sample = np.resize(around, 12)
    data = tiebreak.dataset((sample[None], np.array([2])), "data")
    batch = [torch.from_numpy(np.stack([sample] * 2)), torch.tensor([2, 2])]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    captured = tiebreak.capture(model, mean_loss, optimizer, batch, out="captured")
    run = tiebreak.train(captured.job(data, 1), out="run")
    loss = mean_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    after = captured.state_dict(run)
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(after[key], tensor, rtol=1e-5, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")
    assert tiebreak.audit(run, sample=1.0).matches

    draw = np.random.default_rng(6)
    scales = 2.0 ** draw.integers(-40, 19, (64, 12)) * bound
    wide = np.clip(draw.standard_normal((64, 12)) * scales, -(2**19) * bound, 2**19 * bound)
    near = np.resize(around, (12, 12)) * np.linspace(0.9, 1.1, 12)[:, None]
    inputs = np.concatenate([wide, near, np.resize(around, (5, 12))]).astype(np.float32)
    model.load_state_dict(after, strict=True)
    with torch.no_grad():
        due = model(torch.from_numpy(inputs)).numpy()
    assert units_apart(tiebreak.predict(run, inputs, network=captured).logits, due) <= apart


@needs_torch
@pytest.mark.parametrize("kind", ["rows", "images", "positions"])
def test_layers_with_such_activations_train_near_pytorch(folder, kind):
    if kind == "rows":
        make = rows(lambda m, x: m.last(m.act(m.a(x)) + F.hardswish(m.b(x)) * F.relu6(m.a(x))), act=lambda: nn.PReLU(8))
        captured, predictions, logits = trained_near_pytorch(make, (8,), "adamw")
    elif kind == "images":
        make = images(lambda m, x: m.last(F.hardsigmoid(m.act(m.conv(x.clamp(-1, 1)))).mean((2, 3)).abs()), act=lambda: nn.PReLU(4))
        captured, predictions, logits = trained_near_pytorch(make, (2, 6, 6), "sgd")
    else:
        make = lambda: computing(lambda m, x: m.last(F.leaky_relu(m.a(x)).mean(1)), a=nn.Linear(6, 8), last=nn.Linear(8, 3))  # noqa: E731
        captured, predictions, logits = trained_near_pytorch(make, (4, 6), "adam")
    assert "relu" in operators(captured)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
def test_activations_that_are_not_there_are_refused(folder):
    for f, why in [
        (lambda m, x: x.clamp(1, 1), "its bounds are 1.0 and 1.0; give a lower bound that is less"),
        (lambda m, x: x.clamp(max=float("inf")), "max is inf; give max as a finite number"),
        (lambda m, x: F.leaky_relu(x, float("nan")), "negative_slope is nan"),
        (lambda m, x: m.p(x), "its weight is \\[1\\], and its input \\[2, 4\\] \\(rows\\); give nn.PReLU as many num_parameters as channels"),
        (lambda m, x: F.elu(x), "aten.elu.default .*use nn.ReLU"),
    ]:
        model = computing(lambda m, x, f=f: m.last(f(m, m.a(x))) + 0 * m.g.sum(), a=nn.Linear(4, 4), last=nn.Linear(4, 3), p=nn.PReLU(), g=parameter(3))
        said = "\n".join(captured_error(model))
        assert re.search(why, said), (why, said)
    # As many channels as positions: PyTorch's slopes are those of positions.
    model = computing(lambda m, x: m.last(m.p(m.a(x))[:, 0]), a=nn.Linear(4, 4), last=nn.Linear(4, 3), p=nn.PReLU(4))
    assert "its input [2, 4, 4] (rows); give nn.PReLU" in "\n".join(captured_error(model, batch=(torch.zeros(2, 4, 4), torch.zeros(2).long())))
