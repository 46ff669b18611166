"""`torch.compile(backend="tiebreak")` beside PyTorch's fp64: values, gradients, and bits that nothing but the row decides."""

import copy
import re
import threading
import warnings

import pytest
from captures import F, imported_transformers, needs_torch, nn, torch

import tiebreak

pytestmark = needs_torch
Base = nn.Module if nn else object


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(1)


def compiled(model, **options):
    return torch.compile(model, backend="tiebreak", options=options)


def bits(tensor):
    return tensor.detach().numpy().tobytes()


def near(found, due):
    """Each element of x differs by at most 2e-5 + 1e-4 |x|."""
    assert found.dtype == torch.float32 and found.shape == due.shape
    assert bool(((found.double() - due).abs() <= 2e-5 + 1e-4 * due.abs()).all()), (found.double() - due).abs().max()


def perceptron():
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 5))


class Images(Base):
    """Convolutions, and normalisations that keep running averages; images and rows are returned."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 9, 4)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2.0)
            self.norm.weight.normal_()

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return x, self.head(F.max_pool2d(x, 2).flatten(1))


class Block(Base):
    """A block of a decoder, which returns heads as well."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.before(x)).split(c, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.wide(self.behind(x)), k


class Broken(Base):
    """A graph break, with two tensors that cross it."""

    def __init__(self, breaks):
        super().__init__()
        self.a, self.b, self.breaks = nn.Linear(6, 6), nn.Linear(6, 6), breaks

    def forward(self, x):
        y = torch.relu(self.a(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.b(y) + x


MODELS = {
    "perceptron": (perceptron, (12,)),
    "images": (Images, (3, 6, 6)),
    "block": (Block, (7, 16)),
    "broken": (lambda: Broken(True), (6,)),
}


def outputs_of(found):
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", MODELS)
def test_values_are_near_pytorchs_in_fp64(name):
    make, sizes = MODELS[name]
    model = make().eval()
    x = torch.randn(4, *sizes)
    with torch.no_grad():
        found, due = compiled(model)(x), copy.deepcopy(model).double()(x.double())
        for mine, theirs in zip(outputs_of(found), outputs_of(due)):
            near(mine, theirs)
            assert mine.is_contiguous() and not mine.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_the_bits_of_a_row_depend_on_no_other_row_no_thread_and_no_engine(name):
    make, sizes = MODELS[name]
    model = make().eval()
    x = torch.randn(7, *sizes)
    # One row is far greater than the others, so a scale for the batch would be seen.
    x[0] *= 1000
    with torch.no_grad():
        together = outputs_of(compiled(model)(x))
        for options in ({}, {"threads": 1}, {"device": "reference"}):
            torch._dynamo.reset()
            alone = outputs_of(compiled(model, **options)(x[5:6]))
            assert [bits(row) for row in alone] == [bits(rows[5:6].contiguous()) for rows in together], options
        torch._dynamo.reset()
        assert [bits(rows) for rows in outputs_of(compiled(model)(x))] == [bits(rows) for rows in together]


def gradients(model, x, weights):
    """The gradients of a sum of all outputs times weights, by the names of parameters, and that of x."""
    x = x.clone().requires_grad_()
    loss = sum((output * weight.to(output.dtype)).sum() for output, weight in zip(outputs_of(model(x)), weights))
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {**{name.removeprefix("_orig_mod."): grad for name, grad in found.items()}, "x": x.grad}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_near_pytorchs_in_fp64(name):
    make, sizes = MODELS[name]
    model = make().eval()
    x = torch.randn(4, *sizes)
    weights = [torch.randn_like(output) for output in outputs_of(model(x))]
    exact = gradients(copy.deepcopy(model).double(), x.double(), weights)
    found = gradients(compiled(model, digits=4), x, weights)
    assert found.keys() == exact.keys()
    for key, due in exact.items():
        scale = due.abs().max()
        assert found[key].shape == due.shape
        assert float((found[key].double() - due).abs().max()) <= 1e-5 * float(scale) + 1e-12, key
    model.zero_grad()
    again = gradients(compiled(model, digits=4), x, weights)
    assert all(bits(again[key]) == bits(found[key]) for key in found)
    torch._dynamo.reset()
    model.zero_grad()
    reference = gradients(compiled(model, digits=4, device="reference"), x, weights)
    assert all(bits(reference[key]) == bits(found[key]) for key in found)


def test_frozen_parameters_and_inputs_without_gradients_get_none():
    model = perceptron()
    model[0].weight.requires_grad_(False)
    x = torch.randn(3, 12)
    compiled(model)(x).sum().backward()
    assert model[0].weight.grad is None and x.grad is None
    assert model[0].bias.grad is not None and model[2].weight.grad is not None


def test_a_model_learns_and_later_weights_are_seen():
    model = perceptron()
    run, optimizer = compiled(model), torch.optim.SGD(model.parameters(), lr=0.5)
    x, labels = torch.randn(16, 12), torch.arange(16) % 5
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    # A write that no version of a tensor counts.
    model[2].bias.data.fill_(100.0)
    with torch.no_grad():
        near(run(x), copy.deepcopy(model).double()(x.double()))


def test_a_small_bert_is_near_pytorchs_in_fp64():
    transformers = imported_transformers()
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=32
    )
    model = transformers.BertForSequenceClassification(config).eval()
    exact, run = copy.deepcopy(model).double(), compiled(model)
    ids = torch.randint(1, 50, (3, 9))
    mask = torch.ones_like(ids)
    with torch.no_grad():
        near(run(ids).logits, exact(ids).logits)
        plain = run(ids, attention_mask=mask).logits
        near(plain, exact(ids, attention_mask=mask).logits)
        # Other places of padding need no other graph.
        for row, places in ((0, 4), (2, 6)):
            padded, hidden = ids.clone(), mask.clone()
            padded[row, places:], hidden[row, places:] = 0, 0
            found = run(padded, attention_mask=hidden).logits
            near(found, exact(padded, attention_mask=hidden).logits)
            others = [other for other in range(3) if other != row]
            assert bits(found[others].contiguous()) == bits(plain[others].contiguous())


def test_batches_of_other_sizes_have_the_same_rows():
    model = Block().eval()
    run = compiled(model)
    x = torch.randn(6, 5, 16)
    with torch.no_grad():
        whole = run(x)[0]
        for count in (1, 2, 3, 5):
            assert bits(run(x[:count])[0]) == bits(whole[:count].contiguous())
        near(run(x[:2, :3])[0], copy.deepcopy(model).double()(x[:2, :3].double())[0])


def test_a_graph_break_changes_no_bit():
    whole, broken = Broken(False), Broken(True)
    broken.load_state_dict(whole.state_dict())
    x = torch.randn(3, 6)
    with torch.no_grad():
        found = compiled(whole)(x)
        torch._dynamo.reset()
        assert bits(compiled(broken)(x)) == bits(found)


class Shifted(Base):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x):
        return self.layer(x) + self.shift


def test_other_values_of_a_buffer_are_seen():
    model = Shifted()
    run, x, first = compiled(model), torch.randn(3, 6), model.shift.clone()
    with torch.no_grad():
        for _ in range(3):
            near(run(x), copy.deepcopy(model).double()(x.double()))
            model.shift.data.add_(1.0)
        # The first values again, in other memory.
        model.shift = first
        near(run(x), copy.deepcopy(model).double()(x.double()))


class Sums(Base):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x):
        return torch.cumsum(self.inner(x), 1)


def test_an_operator_that_is_not_there_is_refused_or_pytorch_computes_if_asked():
    model, x = Sums(), torch.randn(2, 4)
    with pytest.raises(tiebreak.CaptureError) as refused:
        compiled(model)(x)
    (line,) = refused.value.refused
    assert "aten.cumsum.default" in line and f"{__file__}:" in line, line
    torch._dynamo.reset()
    run = compiled(model, fallback=True)
    with pytest.warns(tiebreak.RunWarning, match="(?s)PyTorch computes a graph.*aten.cumsum.default in the model at .*test_compiled.py:[0-9]+"):
        found = run(x)
    assert bits(found) == bits(model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(x).sum().backward()
    assert model.inner[0].weight.grad is not None


class ChangesItsInput(Base):
    def forward(self, x):
        x += 1
        return x @ x.new_ones(4, 4)


class PartlyWithoutGradients(Base):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            x = self.body(x)
        return self.head(x)


def test_what_forward_does_to_its_input_and_to_gradients_is_refused_in_words():
    for model, why in (
        (ChangesItsInput(), "aten.add_.Tensor in the model at .*: it changes an input of forward in place; make a new tensor: write x = x \\+ 1"),
        (PartlyWithoutGradients(), "aten.linear.default in .* at .*: forward computes it inside of torch.no_grad.*call the model inside of them"),
    ):
        torch._dynamo.reset()
        with pytest.raises(tiebreak.CaptureError) as refused:
            compiled(model)(torch.randn(2, 4))
        (line,) = refused.value.refused
        assert re.match(why, line) and f"{__file__}:" in line, line
    # Without gradients there is nothing to turn off.
    torch._dynamo.reset()
    x = torch.randn(3, 4)
    with torch.no_grad():
        near(compiled(model)(x), copy.deepcopy(model).double()(x.double()))


def test_the_last_graph_that_pytorch_asks_for_comes_with_a_warning():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)).eval()
    run = torch.compile(model, backend="tiebreak", dynamic=False)
    limit = torch._dynamo.config.recompile_limit
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("error", tiebreak.RunWarning)
            for samples in range(2, limit + 1):
                run(torch.zeros(samples, 4))
        with pytest.warns(tiebreak.RunWarning, match=f"no graph of this function after {limit}.*fullgraph=True"):
            run(torch.zeros(limit + 1, 4))
    torch._dynamo.reset()
    run = torch.compile(model, backend="tiebreak", dynamic=False, fullgraph=True)
    with torch.no_grad(), pytest.raises(Exception, match="fullgraph=True"), warnings.catch_warnings():
        warnings.simplefilter("ignore", tiebreak.RunWarning)
        for samples in range(2, limit + 3):
            run(torch.zeros(samples, 4))


@pytest.mark.parametrize(
    "model, why",
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "aten.dropout.default in 1 .*at random.*model.eval"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "aten.batch_norm.default in 1 .*training is True.*model.eval"),
    ],
)
def test_training_mode_is_refused_where_it_differs(model, why):
    x = torch.randn(3, 4)
    with pytest.raises(tiebreak.CaptureError, match=why):
        compiled(model().train())(x)
    torch._dynamo.reset()
    compiled(model().eval())(x)


class Writes(Base):
    def forward(self, x):
        x += 1
        return torch.relu(x)


class Rows(Base):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids):
        return self.table(ids)


def test_inputs_that_no_engine_takes_are_refused():
    run = compiled(perceptron().eval())
    x = torch.randn(4, 12)
    for wrong, why in [
        (x[:0], "without an element; give one sample or more"),
        (x[0], r"is \[12\]; give inputs of 2 to 4 dimensions"),
    ]:
        with pytest.raises(tiebreak.CaptureError, match=why):
            run(wrong)
    with pytest.raises(tiebreak.CaptureError, match="is torch.float64; use float32"):
        compiled(perceptron().double())(x.double())
    with pytest.raises(tiebreak.CaptureError, match="autocast is on"), torch.autocast("cpu"):
        run(x)
    with pytest.raises(tiebreak.CaptureError, match="in place"):
        compiled(Writes())(x.clone())
    rows = compiled(Rows())
    for wrong in (10, -1, 2**40):
        with pytest.raises(tiebreak.UsageError, match="the model takes ids below 10"):
            rows(torch.tensor([[1, wrong]]))
    assert rows(torch.tensor([[1, 9]])).shape == (1, 2, 4)


def test_strides_change_no_bit_and_nan_stays_in_its_row():
    run = compiled(perceptron().eval())
    x = torch.randn(4, 12)
    with torch.inference_mode():
        found = run(x)
        assert bits(run(x.t().contiguous().t())) == bits(found)
        assert bits(run(torch.stack([x, x])[:, ::2][0])) == bits(found[::2].contiguous())
        wrong = x.clone()
        # A NaN with other bits than the usual one.
        wrong.view(torch.int32)[1, 3] = 0x7FC00001
        wrong[3, 0] = float("inf")
        made = run(wrong)
    assert bool(made[1].isnan().all()) and not bool(made[3].isfinite().any())
    assert {made[1].view(torch.int32)[number].item() for number in range(5)} == {0x7FC00000}
    assert bits(made[[0, 2]]) == bits(found[[0, 2]])


def test_options_are_checked():
    x = torch.randn(2, 12)
    for options, why in [
        ({"devices": "cpu"}, "there is no option 'devices'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"digits": 5}, "digits is 5"),
        ({"threads": -1}, "threads is -1"),
        ({"convolution": 3}, "convolution is 3"),
        ({"fallback": 1}, "fallback is 1"),
        ({"device": "reference", "threads": 2}, "--threads is for the CPU engine"),
    ]:
        torch._dynamo.reset()
        with pytest.raises(tiebreak.UsageError, match=why):
            compiled(perceptron(), **options)(x)
    made = []
    for digits in (1, 3):
        torch._dynamo.reset()
        torch.manual_seed(1)
        made.append(compiled(perceptron(), digits=digits)(x))
    assert bits(made[0]) != bits(made[1])


def test_several_threads_of_python_call_at_once():
    model = perceptron().eval()
    run = compiled(model)
    x = torch.randn(64, 12)
    with torch.no_grad():
        due = bits(run(x))
    found = []

    def work():
        with torch.no_grad():
            found.extend(bits(run(x)) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [due] * 20


def test_pytorch_lists_the_backend():
    assert "tiebreak" in torch._dynamo.list_backends()
