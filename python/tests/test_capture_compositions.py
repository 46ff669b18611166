"""Capture of sums, products, cuts and means that several operators of the contract compute together, beside PyTorch's own steps."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from captures import F, OPTIMIZERS, captured_error, imported_transformers, is_near_pytorch, mean_loss, needs_torch, nn, torch

import tiebreak

SAMPLES = 2
HEADS = (2, 4)


def computing(f, **parts):
    """A module of these parts that computes `f(module, x)`."""

    class Computes(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, x):
            return f(self, x)

    return Computes()


def parameter(*shape):
    return nn.Parameter(1 + torch.randn(*shape) / 4)


def rows(f, width=8, **parts):
    return lambda: computing(f, a=nn.Linear(8, 8), b=nn.Linear(8, 8), last=nn.Linear(width, 3), **{name: make() for name, make in parts.items()})


def heads_of(x):
    return x.view(*x.shape[:2], *HEADS).transpose(1, 2)


def attended(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1]).transpose(1, 2).flatten(2)


def texts(f, qkv=24, **parts):
    """A model of token ids, whose attention a linear layer feeds."""
    made = lambda: {name: make() for name, make in parts.items()}  # noqa: E731
    return lambda: computing(lambda m, x: m.last(attended(*f(m, m.table(x)))), table=nn.Embedding(19, 8), qkv=nn.Linear(8, qkv), last=nn.Linear(8, 19), **made())


def images(f, **parts):
    return lambda: computing(f, conv=nn.Conv2d(2, 4, 3), last=nn.Linear(4, 3), **{name: make() for name, make in parts.items()})


if torch is not None:
    ROWS = {
        "a product": (rows(lambda m, x: m.last(m.a(x) * m.b(x))), "mul"),
        "squares and cubes": (rows(lambda m, x: m.last(m.a(x) ** 2 + m.b(x).pow(3) - m.b(x).square())), "mul"),
        "the same twice": (rows(lambda m, x: m.last(F.relu(m.a(x)) * m.b(x) + F.relu(m.a(x)))), "relu"),
        "a gate": (rows(lambda m, x: m.last(m.a(x) * torch.sigmoid(m.b(x)))), "sigmoid"),
        "a gate of GELU": (rows(lambda m, x: m.last(F.gelu(m.a(x)) * m.b(x))), "mul"),
        "differences": (rows(lambda m, x: m.last((m.a(x) - torch.linspace(0, 1, 8)) * (m.b(x) - m.g)), g=lambda: parameter(8)), "bias"),
        "numbers": (rows(lambda m, x: m.last(0.5 * m.a(x) - 2 * m.b(x) / 3 + 1)), "gain"),
        "number first": (rows(lambda m, x: 2 * torch.tanh(m.last(1 - m.a(x) - -m.b(x)) / 2)), "gain"),
        "parameters": (rows(lambda m, x: m.last(m.g * m.a(x) + m.h - m.b(x)), g=lambda: parameter(8), h=lambda: parameter(1, 8)), "gain"),
        "the inputs": (rows(lambda m, x: m.last((x * 2 - 1) * m.a(x) + x + m.b(x))), "mul"),
        "constants": (rows(lambda m, x: m.last(m.a(x) * torch.linspace(0, 1, 8) + torch.ones(1, 8) + m.b(x))), "bias"),
        "norms without a bias": (rows(lambda m, x: m.last(m.n(m.a(x)) + m.o(m.b(x))), n=lambda: nn.LayerNorm(8, bias=False), o=lambda: nn.LayerNorm(8, elementwise_affine=False)), "layer_norm"),
        "norms of squares": (rows(lambda m, x: m.last(m.n(m.a(x)) + m.o(m.b(x))), n=lambda: nn.RMSNorm(8), o=lambda: nn.RMSNorm(8, eps=1e-3, elementwise_affine=False)), "rms_norm"),
        "matrices": (rows(lambda m, x: m.last((m.a(x) @ m.w) @ m.v.T + m.b(x)), w=lambda: parameter(8, 5), v=lambda: parameter(8, 5)), "matmul"),
        "parts of other sizes": (rows(lambda m, x: m.last(F.relu(m.a(x)[:, :5])) + m.more(m.a(x)[:, 5:] * m.b(x)[:, 5:]) + m.last(m.b(x)[:, :5]), width=5, more=lambda: nn.Linear(3, 3)), "linear"),
        "every second channel": (rows(lambda m, x: m.last(m.a(x)[:, ::2] * m.b(x)[:, 1::2] + m.a(x)[:, 1::2] + m.b(x)[:, ::2]), width=4), "mul"),
        "a gated layer": (rows(lambda m, x: m.last(F.glu(m.a(x)) + F.glu(m.b(x), -1)), width=4), "sigmoid"),
        "logarithms before the loss": (rows(lambda m, x: F.log_softmax(m.last(m.a(x) + m.b(x)), -1)), "residual"),
    }
    SEQUENCES = {
        "mean": (lambda: computing(lambda m, x: m.last(m.a(x).mean(1)), a=nn.Linear(6, 8), last=nn.Linear(8, 3)), "mean_positions"),
        "sum": (lambda: computing(lambda m, x: m.last(F.relu(m.a(x)).sum(dim=1)), a=nn.Linear(6, 8), last=nn.Linear(8, 3)), "gain"),
        "last": (lambda: computing(lambda m, x: m.last(m.a(x)[:, -1]), a=nn.Linear(6, 8), last=nn.Linear(8, 3)), "last_position"),
        "first, behind": (lambda: computing(lambda m, x: m.last(m.a(x))[:, 0], a=nn.Linear(6, 8), last=nn.Linear(8, 3)), "first_position"),
        "last, as a cut": (lambda: computing(lambda m, x: m.last(m.a(x)[:, 3:, :]).squeeze(1), a=nn.Linear(6, 8), last=nn.Linear(8, 3)), "last_position"),
        "waves, less": (lambda: computing(lambda m, x: m.last(F.relu(m.a(x) - torch.linspace(0, 1, 32).reshape(4, 8) - m.p)[:, -1]), a=nn.Linear(6, 8), last=nn.Linear(8, 3), p=parameter(1, 4, 8)), "position_embedding"),
        "waves": (lambda: computing(lambda m, x: m.last(F.relu(m.a(x) + torch.linspace(0, 1, 32).reshape(4, 8))[:, -1]), a=nn.Linear(6, 8), last=nn.Linear(8, 3)), "position_embedding"),
        "encoder": (lambda: computing(lambda m, x: m.last(m.e(x).mean(1)), e=nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True, bias=False), last=nn.Linear(6, 3)), "mean_positions"),
    }
    IMAGES = {
        "layer scale": (images(lambda m, x: m.last((m.conv(x) * m.g + m.h).mean((2, 3))), g=lambda: parameter(4, 1, 1), h=lambda: parameter(1, 4, 1, 1)), "gain"),
        "product": (images(lambda m, x: m.last((m.conv(x) * torch.sigmoid(m.other(x))).sum((2, 3))), other=lambda: nn.Conv2d(2, 4, 3)), "mul"),
        "the inputs": (images(lambda m, x: m.last(m.conv(m.same(x) + x).mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1)), same=lambda: nn.Conv2d(2, 2, 3, padding="same")), "residual"),
        "patches": (images(lambda m, x: m.last(m.up(m.conv(x).flatten(2).transpose(1, 2)).mean(1)), up=lambda: nn.Linear(4, 4)), "rows"),
        "patches with positions": (images(lambda m, x: m.last(m.norm(m.conv(x).flatten(2).transpose(1, 2) + m.p)[:, -1]), norm=lambda: nn.LayerNorm(4), p=lambda: parameter(1, 16, 4)), "last_position"),
        "differences": (images(lambda m, x: m.last((m.conv(x) - m.g - torch.linspace(0, 1, 4)[:, None, None]).mean((2, 3))), g=lambda: parameter(4, 1, 1)), "bias"),
        "planes that stay": (images(lambda m, x: m.last((m.conv(x).flatten(2).mean(2, keepdim=True) * 2).squeeze(2))), "mean_pool"),
        "gate by convolutions": (images(lambda m, x: (lambda y: m.last((y * m.up(F.relu(m.down(F.adaptive_avg_pool2d(y, 1)))).sigmoid()).mean((2, 3))))(m.conv(x)), down=lambda: nn.Conv2d(4, 2, 1), up=lambda: nn.Conv2d(2, 4, 1)), "adaptive_avg_pool"),
        "gate by layers": (images(lambda m, x: (lambda y: m.last((y * F.hardsigmoid(m.up(F.relu(m.down(y.mean((2, 3)))))).view(*y.shape[:2], 1, 1).expand_as(y)).mean((2, 3))))(F.relu(m.conv(x))), down=lambda: nn.Linear(4, 2), up=lambda: nn.Linear(2, 4, bias=False)), "adaptive_avg_pool"),
        "means to pixels": (images(lambda m, x: (lambda y: m.last((y - y.mean((2, 3), keepdim=True) * 0.5).relu().mean((2, 3)) + y.mean((2, 3))))(m.conv(x))), "adaptive_avg_pool"),
        "a gate that is a number of classes": (images(lambda m, x: (lambda y: (lambda g: m.last((y * g[:, :, None, None]).mean((2, 3)) + m.own(g)))(m.up(F.adaptive_avg_pool2d(y, 1).flatten(1))))(m.conv(x)), up=lambda: nn.Linear(4, 4), own=lambda: nn.Linear(4, 4)), "adaptive_avg_pool"),
        "a view in place": (images(lambda m, x: m.last(F.leaky_relu_(F.adaptive_avg_pool2d(m.conv(x), 1).flatten(1)))), "relu"),
        "planes": (images(lambda m, x: m.last(m.conv(x).flatten(2).mean(-1))), "mean_pool"),
    }
    TEXTS = {
        "slices": (texts(lambda m, x: [heads_of(m.qkv(x)[..., i : i + 8]) for i in (0, 8, 16)]), "attention"),
        "a dimension of three": (texts(lambda m, x: m.qkv(x).reshape(*x.shape[:2], 3, *HEADS).permute(2, 0, 3, 1, 4)), "attention"),
        "three in each head": (texts(lambda m, x: [part.transpose(1, 2) for part in m.qkv(x).view(*x.shape[:2], 2, 12).chunk(3, -1)]), "attention"),
        "unbound": (texts(lambda m, x: m.qkv(x).unflatten(-1, (3, *HEADS)).permute(2, 0, 3, 1, 4).unbind(0)), "attention"),
        "one head of keys": (
            texts(lambda m, x: [part.view(*x.shape[:2], -1, 4).transpose(1, 2) for part in m.qkv(x).split([8, 4, 4], -1)], qkv=16),
            "grouped_attention",
        ),
    }


def by_hand(m, x, scale):
    q, k, v = (heads_of(part) for part in m.qkv(m.table(x)).split(8, -1))
    scores = (q * scale) @ k.transpose(-2, -1)
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    return m.last((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@needs_torch
def test_queries_may_be_scaled_before_their_product(folder):
    made = lambda scale: computing(lambda m, x: by_hand(m, x, scale), table=nn.Embedding(19, 8), qkv=nn.Linear(8, 24), last=nn.Linear(8, 19))  # noqa: E731
    captured, _, _ = trained_near_pytorch(lambda: made(0.5), None)
    assert operators(captured) == ["embedding", "linear", "linear", "linear", "attention", "linear"]


@needs_torch
@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_another_scale_is_that_of_the_queries(folder, scale):
    made = lambda: computing(lambda m, x: by_hand(m, x, scale), table=nn.Embedding(19, 8), qkv=nn.Linear(8, 24), last=nn.Linear(8, 19))  # noqa: E731
    captured, predictions, logits = trained_near_pytorch(made, None)
    assert operators(captured) == ["embedding", "linear", "linear", "linear", "gain", "attention", "linear"]
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


def trained_near_pytorch(make, shape, optimizer="adamw", loss=mean_loss):
    """Captures a model over two samples, trains it, and compares states, evaluation and predictions with PyTorch's.

    An epoch is a micro-batch, so each step of the run has the same four samples.
    """
    torch.manual_seed(3)
    model = make()
    draw = np.random.default_rng(4)
    if shape is None:
        tokens = draw.integers(0, 19, 6 + SAMPLES - 1, dtype=np.uint16)
        np.save("tokens.npy", tokens)
        batch = [torch.from_numpy(np.stack([tokens[place + i : place + i + 5].astype(np.int64) for i in range(SAMPLES)])) for place in (0, 1)]
        data = {"kind": "tokens", "path": "tokens.npy", "dtype": "u16"}
        # An evaluation has windows one behind the other.
        others = draw.integers(0, 19, 5 * SAMPLES + 1, dtype=np.uint16)
        np.save("others.npy", others)
        seen, seen_batch = {**data, "path": "others.npy"}, [torch.from_numpy(part.astype(np.int64).reshape(SAMPLES, 5)) for part in (others[:-1], others[1:])]
    else:
        inputs, labels = draw.standard_normal((SAMPLES, *shape), dtype=np.float32), draw.permutation(3)[:SAMPLES]
        data = tiebreak.dataset((inputs, labels), "data")
        seen, seen_batch = data, [torch.from_numpy(part) for part in (inputs, labels)]
        batch = seen_batch
    due = OPTIMIZERS[optimizer][0](model.parameters())
    captured = tiebreak.capture(model, loss, due, batch, out="captured", micro_batches=2, clip_norm=0.5)
    run = tiebreak.train(captured.job(data, 3), out="run")
    is_near_pytorch(captured, run, model, due, loss, [torch.cat([tensor] * 2) for tensor in batch], 0.5)
    evaluation = tiebreak.evaluate(run, seen, network=captured)
    predictions = tiebreak.predict(run, data=seen, network=captured)
    with torch.no_grad():
        logits = model.eval()(seen_batch[0])
        logits = getattr(logits, "logits", logits)
    if loss is mean_loss and "log_softmax" not in str(logits):
        torch.testing.assert_close(torch.tensor(evaluation.loss), loss(logits, seen_batch[1]), rtol=1e-4, atol=1e-4)
    return captured, predictions, logits


def operators(captured):
    return [node["operator"] for node in json.loads(Path(captured.network).read_text())["nodes"]]


ALL = [(kind, name) for kind in ("ROWS", "SEQUENCES", "IMAGES", "TEXTS") for name in globals().get(kind, {})]
SHAPES = {"ROWS": (8,), "SEQUENCES": (4, 6), "IMAGES": (2, 6, 6), "TEXTS": None}


@needs_torch
@pytest.mark.parametrize("kind, name", ALL)
def test_compositions_train_evaluate_and_predict_near_pytorch(folder, kind, name):
    make, operator = globals()[kind][name]
    captured, predictions, logits = trained_near_pytorch(make, SHAPES[kind], ["adamw", "adam", "sgd"][len(name) % 3])
    assert operator in operators(captured), operators(captured)
    if "logarithms" not in name:
        torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
def test_phi_3_trains_near_pytorch(folder):
    transformers = imported_transformers()
    config = transformers.Phi3Config(vocab_size=19, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, pad_token_id=0)
    captured, predictions, logits = trained_near_pytorch(lambda: transformers.Phi3ForCausalLM(config).train(), None, "sgd")
    assert operators(captured).count("matmul") == 8 and "grouped_attention" in operators(captured) and "swiglu" in operators(captured)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
@pytest.mark.parametrize("kind", ["Gemma", "Gemma2", "Gemma3"])
def test_gemma_trains_near_pytorch(folder, kind):
    transformers = imported_transformers()
    sizes = {"vocab_size": 19, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    scale = {"query_pre_attn_scalar": 4, "attn_logit_softcapping": None, "layer_types": ["full_attention"] * 2}
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")
    config = config(**sizes, num_hidden_layers=2, pad_token_id=None, **({} if kind == "Gemma" else scale))

    def make():
        model = getattr(transformers, f"{kind}ForCausalLM")(config).train()
        for name, tensor in model.named_parameters():
            # Weights of normalisations are 0 at first, and none of them may be taken for another.
            if "norm" in name:
                nn.init.normal_(tensor, std=0.5)
        return model

    captured, predictions, logits = trained_near_pytorch(make, None)
    norms = {"Gemma": (5, 0), "Gemma2": (9, 0), "Gemma3": (9, 4)}[kind]
    assert tuple(operators(captured).count(name) for name in ("rms_norm", "head_rms_norm")) == norms and operators(captured).count("bias") == sum(norms)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
def test_a_mobilenet_trains_near_pytorch(folder):
    transformers = imported_transformers()
    config = transformers.MobileNetV1Config(num_channels=2, depth_multiplier=0.25, min_depth=2, tf_padding=False, classifier_dropout_prob=0.0, num_labels=3)

    def make():
        model = transformers.MobileNetV1ForImageClassification(config).train()
        # The first six of its convolutions, and a head of their channels.
        model.mobilenet_v1.layer = model.mobilenet_v1.layer[:6]
        model.classifier = nn.Linear(model.mobilenet_v1.layer[-1].convolution.out_channels, 3)
        return model

    captured, _, _ = trained_near_pytorch(make, (2, 16, 16), "sgd")
    assert operators(captured).count("grouped_conv2d") == 3


@needs_torch
def test_a_regnet_with_gates_trains_near_pytorch(folder):
    transformers = imported_transformers()
    config = transformers.RegNetConfig(num_channels=2, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], groups_width=4, layer_type="y", num_labels=3)
    captured, predictions, logits = trained_near_pytorch(lambda: transformers.RegNetForImageClassification(config).train(), (2, 12, 12), "sgd")
    assert operators(captured).count("adaptive_avg_pool") == 4 and "mul" in operators(captured)


@needs_torch
def test_a_number_more_than_a_weight_is_the_gain_of_a_norm(folder):
    norm = lambda x, gain: gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))  # noqa: E731
    make = rows(lambda m, x: m.last(norm(m.a(x), m.g + 0.5) + norm(m.b(x), 2 + m.h)), g=lambda: parameter(8), h=lambda: parameter(8))
    captured, _, _ = trained_near_pytorch(make, (8,))
    assert operators(captured).count("rms_norm") == 2


@needs_torch
def test_constants_stay_as_they_are_and_are_written_once(folder):
    model = computing(lambda m, x: m.last(0.5 * m.a(x) + m.b(x) * 0.5 + 2), a=nn.Linear(8, 8), b=nn.Linear(8, 8), last=nn.Linear(8, 3))
    captured, _, _ = trained_near_pytorch(lambda: model, (8,))
    parameters = json.loads(Path(captured.network).read_text())["parameters"]
    assert [p for p in parameters if p["name"].startswith("constant")] == [{"name": f"constant.{i}", "shape": [8], "frozen": True} for i in range(2)]
    state = tiebreak.Run("run").state_dict(names="program")
    assert (state["constant.0"] == 0.5).all() and (state["constant.1"] == 2).all()


@needs_torch
def test_what_a_view_shows_is_changed_with_it(folder):
    read = "it changes a tensor in place that something else reads"
    for shown in [
        lambda y: y.view(2, 4).relu_(),
        lambda y: y.view(2, 1, 4).squeeze(1).relu_(),
        lambda y: y.view(2, 1, 4)[:, 0].relu_(),
    ]:
        model = computing(lambda m, x, shown=shown: (lambda y: m.last(shown(y) + y))(m.a(x)), a=nn.Linear(4, 4), last=nn.Linear(4, 3))
        assert read in "\n".join(captured_error(model)), shown


@needs_torch
def test_what_is_no_composition_is_refused(folder):
    wide = lambda f, **parts: (computing(f, **{"a": nn.Linear(4, 4), "last": nn.Linear(4, 3), **parts}), None)  # noqa: E731
    pixels = torch.zeros(2, 2, 6, 6), torch.zeros(2).long()
    seen = lambda f, **parts: (computing(f, conv=nn.Conv2d(2, 4, 3), last=nn.Linear(4, 3), **parts), pixels)  # noqa: E731
    ids = torch.zeros(2, 5).long()
    text = lambda f, **parts: (computing(f, e=nn.Embedding(19, 8), last=nn.Linear(8, 3), **parts), (ids, ids[:, 0]))  # noqa: E731
    for (model, batch), why in [
        (wide(lambda m, x: m.last(m.a(x) * m.g), g=nn.Parameter(torch.ones(()))), "aten.mul.Tensor .*it multiplies \\[2, 4\\] \\(rows\\) and \\[\\] \\(parameter\\)"),
        (wide(lambda m, x: m.last(m.a(x) + torch.ones(2, 4) * torch.tensor([[1.0], [2.0]]))), "aten.add.Tensor .*it adds"),
        (wide(lambda m, x: m.last(m.a(x) * float("inf"))), "it computes with inf"),
        (wide(lambda m, x: m.last(m.a(x) * torch.tensor([1.0, float("inf"), 1, 1]))), "aten.mul.Tensor .*py:[0-9]+: it computes with a constant that holds infinities"),
        (wide(lambda m, x: m.last(m.a(x) + torch.tensor([1.0, float("nan"), 1, 1]))), "aten.add.Tensor .*it computes with a constant that holds infinities or NaN"),
        (wide(lambda m, x: m.last(m.a(x).chunk(2, -1)[0]), last=nn.Linear(2, 3)), "aten.linear.default in a at .*py:[0-9]+: the loss does not depend on all that it computes"),
        (seen(lambda m, x: m.last((m.conv(x) * m.g).mean((2, 3))), g=nn.Parameter(torch.ones(1))), "aten.mul.Tensor .*py:[0-9]+: it multiplies \\[2, 4, 4, 4\\] \\(image\\) and \\[1\\] \\(parameter\\)"),
        (seen(lambda m, x: m.conv(x).flatten(2).mean(2, keepdim=True).mean(1)), "aten.mean.dim .*but over \\[1\\] of \\[2, 4, 1\\]"),
        (seen(lambda m, x: (m.conv(x).flatten(2).mean(2, keepdim=True) * torch.linspace(0, 1, 4)).flatten(1)), "aten.mul.Tensor .*it multiplies \\[2, 4, 1\\]"),
        (wide(lambda m, x: m.last(m.a(x) / m.a(x))), "aten.div.Tensor .*the contract divides no tensors"),
        (wide(lambda m, x: m.last(m.a(x) * (x > 0))), "aten.gt.Scalar"),
        (wide(lambda m, x: m.last(m.a(x) + m.a(x).mean(1, keepdim=True))), "aten.mean.dim .*no part of"),
        (wide(lambda m, x: F.log_softmax(m.last(m.a(x)), 0)), "dim is 0, and only 1 is there"),
        (wide(lambda m, x: F.log_softmax(m.last(m.a(x)), 1) * 2), "it multiplies"),
        (wide(lambda m, x: m.last(F.glu(torch.relu(m.w(x)))), w=nn.Linear(4, 8)), "aten.glu.default .*something else than the channels"),
        # Outputs that nothing takes.
        (wide(lambda m, x: m.last(m.w(x)[:, :4]), w=nn.Linear(4, 8)), "parameter w.weight: the loss depends on 4 of its 8 outputs"),
        (text(lambda m, x: m.last(m.e(x).mean((0, 1))[None].expand(2, -1))), "aten.mean.dim .*but over \\[0, 1\\]"),
        (text(lambda m, x: m.last(m.e(x)[:, :1] * m.e(x))[:, 0]), "it multiplies"),
    ]:
        said = "\n".join(captured_error(model, batch=batch))
        assert re.search(why, said), (why, said)
