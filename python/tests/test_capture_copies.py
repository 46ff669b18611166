"""Channels and positions that capture copies: bits of values and gradients, whatever stands beside them; and the runs that copies consist of."""

import copy

import numpy as np
import pytest
from captures import mean_loss, needs_torch, nn, torch
from hypothesis import given
from hypothesis import strategies as st
from test_capture_compositions import computing, operators
from test_capture_positions import weighed

import tiebreak
from tiebreak._copies import Chosen, runs_of

CHOICES = {
    "a shift": [3, 4, 5, 6, 7, 0, 1, 2],
    "every second": [0, 2, 4, 6],
    "shuffled": [0, 3, 6, 1, 4, 7, 2, 5],
    "backwards": [7, 6, 5, 4, 3, 2, 1, 0],
}


def trained(model, inputs, labels, name):
    """The state of a model after two steps on these two samples, whose order changes no bit of a sum; its operators, and its logits."""
    model = copy.deepcopy(model)
    np.save(f"{name}.npy", inputs)
    np.save(f"{name}-labels.npy", labels)
    data = {"kind": "arrays", "inputs": f"{name}.npy", "labels": f"{name}-labels.npy", "dtype": "f32"}
    batch = torch.from_numpy(inputs), torch.from_numpy(labels)
    captured = tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.1), batch, out=name)
    run = tiebreak.train(captured.job(data, 2), out=f"{name}-run", progress=False)
    assert tiebreak.audit(run, sample=1.0).matches
    return captured.state_dict(run), operators(captured), tiebreak.predict(run, inputs).logits


def numbers(*shape):
    draw = np.random.default_rng(5)
    return draw.standard_normal(shape, dtype=np.float32), draw.integers(0, 3, shape[0])


@needs_torch
@pytest.mark.parametrize("name", CHOICES)
def test_chosen_channels_have_the_bits_of_a_layer_in_that_order(folder, name):
    order, (inputs, labels) = CHOICES[name], numbers(2, 6)
    torch.manual_seed(2)
    whole, direct, last = nn.Linear(6, 8), nn.Linear(6, len(order)), nn.Linear(len(order), 3)
    with torch.no_grad():
        # Channels that nobody chooses are great.
        whole.bias[[channel for channel in range(8) if channel not in order]] = 1e9
        direct.weight.copy_(whole.weight[order])
        direct.bias.copy_(whole.bias[order])
    copied = computing(lambda m, x: m.last(torch.relu(m.a(x))[:, order]), a=whole, last=last)
    ours, names, logits = trained(copied, inputs, labels, "copied")
    theirs, _, due = trained(computing(lambda m, x: m.last(torch.relu(m.a(x))), a=direct, last=last), inputs, labels, "direct")
    assert {"slice_channels", "place_channels"} & set(names) and names.count("matmul") == 0
    assert logits.tobytes() == due.tobytes()
    assert torch.equal(ours["a.weight"][order], theirs["a.weight"]) and torch.equal(ours["a.bias"][order], theirs["a.bias"])
    assert torch.equal(ours["last.weight"], theirs["last.weight"]) and not torch.equal(ours["a.weight"], whole.weight)


@needs_torch
@pytest.mark.parametrize("name", CHOICES)
def test_chosen_positions_have_the_bits_of_data_in_that_order(folder, name):
    order, (inputs, labels) = CHOICES[name], numbers(2, 8, 6)
    # Positions that nobody chooses are great: as operands of one product they would round the others.
    inputs[:, [position for position in range(8) if position not in order]] *= 1e9
    torch.manual_seed(2)
    parts = {"a": nn.Linear(6, 5), "last": nn.Linear(5, 3)}
    ours, names, logits = trained(computing(lambda m, x: m.last(weighed(torch.relu(m.a(x[:, order])))), **parts), inputs, labels, "copied")
    theirs, _, due = trained(computing(lambda m, x: m.last(weighed(torch.relu(m.a(x)))), **parts), inputs[:, order], labels, "direct")
    assert "slice_positions" in names and "exchange" not in names
    assert logits.tobytes() == due.tobytes()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs) and not torch.equal(ours["a.weight"], parts["a"].weight)


@needs_torch
def test_nan_and_infinity_stay_where_they_are(folder):
    inputs, labels = numbers(2, 6)
    model = computing(lambda m, x: m.last(torch.cat([x[:, 3:], x[:, :2]], 1)), last=nn.Linear(5, 3))
    trained(model, inputs, labels, "captured")
    beside = inputs.copy()
    beside[:, 2] = [np.nan, -np.inf]
    found = [tiebreak.predict(tiebreak.Run("captured-run"), each) for each in (inputs, beside)]
    assert found[0].logits.tobytes() == found[1].logits.tobytes()


@given(st.data())
def test_runs_are_the_chosen_numbers(data):
    size, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    places = np.array(data.draw(st.lists(st.integers(0, width - 1), min_size=1, unique=True)))
    taken = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=len(places), max_size=len(places))))
    runs = runs_of(Chosen(size, taken, places))
    pairs = [(run.first + i * run.step, run.place + i * run.apart) for run in runs for i in range(run.count)]
    assert sorted(pairs) == sorted(zip(taken.tolist(), places.tolist()))
    assert all(run.step > 0 and run.apart > 0 for run in runs)


@pytest.mark.parametrize("taken, count", [
    (np.arange(100), 1), (np.roll(np.arange(100), 7), 2), (np.arange(100).reshape(4, 25).T.flatten(), 4), (np.arange(100).reshape(25, 4).T.flatten(), 4),
    (np.arange(100).reshape(50, 2)[:, ::-1].flatten(), 2), (np.arange(100)[::-1], 100), (np.full(100, 3), 100),
])  # fmt: skip
def test_runs_are_few(taken, count):
    assert len(runs_of(Chosen(100, taken, np.arange(100)))) == count
