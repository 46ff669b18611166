"""Operators in place: constants that are built by writes, and what a network cannot say."""

import contextlib
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from captures import F, captured_error, needs_torch, nn, read_safetensors, torch
from test_capture_compositions import computing, heads_of

import tiebreak

SIN, COS = (None, None) if torch is None else (torch.linspace(0, 1, 20).reshape(5, 4), torch.linspace(1, 2, 20).reshape(5, 4))


def captured(model, batch):
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    return tiebreak.capture(model, nn.CrossEntropyLoss(), sgd, batch, out="captured")


def layers(f, **parts):
    return computing(f, a=nn.Linear(8, 8), last=nn.Linear(8, 3), **parts)


def attends(mask_of, x, m):
    q, k, v = (heads_of(layer(x)) for layer in (m.q, m.k, m.v))
    return m.last(F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of()).transpose(1, 2).flatten(2).mean(1))


def attention(f):
    return computing(f, **{name: nn.Linear(8, 8) for name in "qkv"}, last=nn.Linear(8, 3))


def interleaved():
    pe = torch.zeros(5, 8)
    pe[:, 0::2] = SIN
    pe[:, 1::2] = COS
    return pe


def first_alone():
    w = torch.zeros(8)
    w[0] = 1.0
    return w


def literal():
    w = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])
    w[0] = 9.0
    return w


def all_but_first():
    mask = torch.zeros(5, 5)
    mask[:, 1:] = -math.inf
    return mask


def causal():
    mask = torch.zeros(5, 5)
    mask.masked_fill_(torch.ones(5, 5).triu(1).bool(), -math.inf)
    mask[0, :1].add_(0)
    return mask


def written_twice(m, x):
    """A constant that is read between two writes, and its view afterwards."""
    w = torch.ones(8)
    view = w[:4]
    y = m.a(x) * w
    w.mul_(2)
    view.add_(1)
    return m.last(y + m.a(x) * w)


@needs_torch
def test_constants_that_a_model_writes_into_are_what_it_wrote(folder):
    rows, sequences = torch.randn(2, 8), torch.randn(2, 5, 8)
    labels = torch.zeros(2, dtype=torch.int64)
    for f, x, due in [
        (lambda m, x: m.last((m.a(x) + interleaved()).mean(1)), sequences, [interleaved()]),
        (lambda m, x: m.last(m.a(x) * first_alone()), rows, [first_alone()]),
        (lambda m, x: m.last(m.a(x) * literal()), rows, [literal()]),
        (written_twice, rows, [torch.ones(8), torch.tensor([3.0] * 4 + [2.0] * 4)]),
    ]:
        found = captured(layers(f), (x, labels))
        constants = [tensor for name, tensor in read_safetensors(found.weights).items() if name.startswith("constant")]
        assert [tensor.tolist() for tensor in constants] == [tensor.tolist() for tensor in due]
    # The model's own buffer is not written to.
    model = layers(lambda m, x: m.last(m.a(x) * m.scale.clone().mul_(3)))
    model.register_buffer("scale", torch.ones(8))
    found = captured(model, (rows, labels))
    assert (read_safetensors(found.weights)["constant.0"] == 3).all() and (model.scale == 1).all()
    found = captured(attention(lambda m, x: attends(causal, x, m)), (sequences, labels))
    kinds = [node["operator"] for node in json.loads(Path(found.network).read_text())["nodes"]]
    assert "attention" in kinds and "bidirectional_attention" not in kinds


def cut_relu(m, x):
    h = m.a(x)
    u = F.relu(h[..., :4], inplace=True)
    return m.small(h[..., :4] * h[..., 4:] + u)


def cut_add(m, x):
    h = m.a(x)
    u = h[..., :4]
    u += 1
    return m.small(h[..., :4] * torch.tanh(h[..., 4:]) + u)


def heads_zeroed(m, x):
    q, k, v = (heads_of(layer(x)) for layer in (m.q, m.k, m.v))
    q[..., :2].mul_(0.0)
    return m.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


def changed(change, width=8):
    def f(m, x):
        h = m.a(x)
        change(h)
        return m.last(h.mean(1))

    return f


def counted(m, x):
    m.state.add_(1)
    return m.last(m.a(x) * m.state)


def annealed(m, x):
    y = m.a(x) * m.state
    m.state.mul_(0.9)
    return m.last(y)


def attribute(m, x):
    m.plain.mul_(2)
    return m.last(m.a(x) * m.plain)


def cached(m, x):
    m.state[0].add_(1)
    return m.last(m.a(x) * m.state)


def without_gradients(m, x):
    with torch.no_grad():
        m.state.add_(1)
    return m.last(m.a(x) * m.state)


def part_of_rows(m, x):
    made = torch.zeros(2, 8)
    made[:, :4] = m.a(x)[:, :4]
    return m.last(made)


@needs_torch
def test_writes_that_a_network_cannot_say_are_refused(folder):
    rows, sequences = torch.randn(2, 8), torch.randn(2, 5, 8)
    labels = torch.zeros(2, dtype=torch.int64)
    small = lambda f: computing(f, a=nn.Linear(8, 8), small=nn.Linear(4, 3))  # noqa: E731
    reads = "in place that something else reads"
    keeps = "it changes a buffer or a parameter of the model in place, and the loss depends on it"
    for model, x, why in [
        (small(cut_relu), rows, f"aten.relu_.default in the model at .*py:[0-9]+: it changes a tensor {reads}"),
        (small(cut_add), rows, f"aten.add_.Tensor .*{reads}"),
        (attention(heads_zeroed), sequences, f"aten.mul_.Tensor .*{reads}"),
        (layers(changed(lambda h: h[:, 0].mul_(2))), sequences, f"aten.mul_.Tensor .*{reads}"),
        (layers(changed(lambda h: h[:, 0].zero_())), sequences, f"aten.zero_.default .*{reads}"),
        (layers(part_of_rows), rows, f"aten.copy_.default .*{reads}"),
        (layers(counted), rows, f"aten.add_.Tensor .*{keeps}"),
        (layers(annealed), rows, f"aten.mul_.Tensor .*{keeps}"),
        (layers(attribute), rows, f"aten.mul_.Tensor .*{keeps}"),
        (layers(cached), rows, f"aten.add_.Tensor .*{keeps}"),
        (layers(without_gradients), rows, "the contract has no such operator"),
    ]:
        model.register_buffer("state", torch.ones(8))
        model.plain = torch.ones(8)
        said = "\n".join(captured_error(model, nn.CrossEntropyLoss(), batch=(x, labels)))
        assert re.search(why, said), (why, said)
        assert (model.state == 1).all()
    # The mask is what was written.
    masked = attention(lambda m, x: attends(all_but_first, x, m))
    taken = tiebreak.capture(masked, nn.CrossEntropyLoss(), torch.optim.SGD(masked.parameters(), lr=0.1), (sequences, labels), out="masked")
    [name] = [node["inputs"][3] for node in json.loads(Path(taken.network).read_text())["nodes"] if node["operator"] == "biased_attention"]
    assert (read_safetensors(taken.weights)[name].reshape(-1, 5, 5) < -1e29).tolist() == [[[False, *[True] * 4]] * 5] * 2


@needs_torch
def test_writes_that_nothing_reads_are_captured(folder):
    def f(m, x):
        m.calls.add_(1)
        m.calls[:1].add_(1)
        h = m.norm(m.a(x)).view(-1, 8)
        h.mul_(2)
        return m.last(F.relu(h, inplace=True))

    model = layers(f, norm=nn.BatchNorm1d(8))
    model.register_buffer("calls", torch.zeros(2))
    found = captured(model, (torch.randn(2, 8), torch.zeros(2, dtype=torch.int64)))
    kinds = [node["operator"] for node in json.loads(Path(found.network).read_text())["nodes"]]
    assert kinds == ["linear", "batch_norm", "gain", "relu", "linear"]


@needs_torch
def test_operators_that_return_their_own_tensor_change_it(folder):
    batch = torch.randn(2, 5, 8), torch.zeros(2, dtype=torch.int64)
    for change in (
        lambda h: (h[:, :1].contiguous().add_(1), h.float().relu_()),
        lambda h: h.type_as(h).relu_(),
        lambda h: h.contiguous().relu_(),
        lambda h: F.dropout(h, 0.5, False).relu_(),
    ):
        found = captured(layers(changed(change)), batch)
        kinds = [node["operator"] for node in json.loads(Path(found.network).read_text())["nodes"]]
        assert kinds == ["rows", "linear", "relu", "mean_positions", "linear"]


@needs_torch
def test_running_averages_that_the_loss_reads_are_refused(folder):
    batch = torch.randn(2, 8), torch.zeros(2, dtype=torch.int64)
    keeps = "it changes a buffer or a parameter of the model in place, and the loss depends on it"
    for f in [
        lambda m, x: m.last(m.bn(m.a(x)) - m.bn.running_mean),
        lambda m, x: m.last(m.bn(m.a(x)) * (1 + m.bn.running_var)),
    ]:
        assert keeps in "\n".join(captured_error(layers(f, bn=nn.BatchNorm1d(8)), batch=batch))
    model = layers(lambda m, x: m.last(m.bn(m.a(x)) + m.mean), bn=nn.BatchNorm1d(8))
    model.register_buffer("mean", model.bn.running_mean.detach())
    assert keeps in "\n".join(captured_error(model, batch=batch))
    # A normalisation of constants leaves the model as it is.
    model = layers(lambda m, x: m.last(m.a(x) + m.bn(m.c)[0]), bn=nn.BatchNorm1d(8, affine=False))
    model.register_buffer("c", torch.randn(2, 8))
    with contextlib.suppress(tiebreak.CaptureError):
        captured(model, batch)
    assert (model.bn.running_mean == 0).all()


def assigns(name, change):
    """A model that changes an attribute by assignment, and multiplies by it."""

    def forward(m, x):
        h = m.a(x) * getattr(m, name)
        setattr(m, name, change(getattr(m, name)))
        return m.last(h)

    return layers(forward)


@needs_torch
def test_assignments_in_forward_are_refused(folder):
    batch = torch.randn(2, 8), torch.zeros(2, dtype=torch.int64)
    for start, change in [(torch.ones(8), lambda n: n + 1), (torch.ones(8), lambda n: n * 0.5)]:
        model = assigns("n", change)
        model.register_buffer("n", start)
        assert captured_error(model, batch=batch) == ["n: forward assigns it; a run keeps parameters and running averages alone, so leave it as it is in forward"]
    model = assigns("k", lambda k: k + 1)
    model.k = 1
    assert "k: forward assigns it" in captured_error(model, batch=batch)[0]
    # What is assigned again as it is changes nothing.
    model = assigns("k", lambda k: k)
    model.k = 2
    captured(model, batch)
    assert torch.nn.Module.__setattr__.__qualname__ == "Module.__setattr__"


@needs_torch
def test_buffers_in_the_memory_of_weights_are_refused(folder):
    batch = torch.randn(2, 8), torch.zeros(2, dtype=torch.int64)
    for part in [slice(None), slice(2)]:
        model = layers(lambda m, x: m.last(m.a(x)))
        model.last.register_buffer("shown", model.a.weight.detach()[part])
        assert captured_error(model, batch=batch) == ["buffer last.shown: it shares its memory with a.weight, which a run changes; keep a copy (.clone())"]


def in_one_memory(kind):
    """A model that reads a tensor in the memory of a parameter, which a step changes."""
    a, last = nn.Linear(4, 4), nn.Linear(4, 3)
    row = a.weight.data[0]
    if kind == "a parameter":
        return computing(lambda m, x: m.last(torch.relu(m.a(x)) * m.p), a=a, last=last, p=nn.Parameter(row))
    if kind == "a parameter that nothing reads":
        return computing(lambda m, x: m.last(torch.relu(m.a(x))), a=a, last=last, p=nn.Parameter(row))
    if kind == "a tensor":
        return computing(lambda m, x: m.last(torch.relu(m.a(x)) * row), a=a, last=last)
    model = computing(lambda m, x: m.last(torch.relu(m.a(x)) * m.c), a=a, last=last)
    model.register_buffer("c", row, persistent=False)
    return model


@needs_torch
@pytest.mark.parametrize("kind", ["a parameter", "a parameter that nothing reads", "a tensor", "a buffer"])
def test_tensors_in_the_memory_of_a_parameter_are_refused(folder, kind):
    said = "\n".join(captured_error(in_one_memory(kind)))
    assert "memory" in said and "a.weight" in said, said


@needs_torch
@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_draws_by_python_and_numpy_are_refused(folder, draw):
    model = computing(lambda m, x: m.last(torch.relu(m.a(x)) if draw() < 2 else m.a(x)), a=nn.Linear(4, 4), last=nn.Linear(4, 3))
    assert "by Python's random or NumPy" in "\n".join(captured_error(model))


@needs_torch
def test_memory_that_nobody_wrote_is_no_constant(folder):
    model = computing(lambda m, x: m.last(torch.relu(m.a(x)) + torch.empty(2, 4)), a=nn.Linear(4, 4), last=nn.Linear(4, 3))
    assert "numbers that nobody has written" in "\n".join(captured_error(model))
    written = computing(lambda m, x: m.last(torch.relu(m.a(x)) + torch.empty(4).fill_(0.5)), a=nn.Linear(4, 4), last=nn.Linear(4, 3))
    assert captured(written, (torch.zeros(2, 4), torch.zeros(2).long()))
