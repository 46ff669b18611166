"""Positions that are chosen, moved, joined and windowed, tables of constants, and parameters that no loss reads: steps and gradients beside PyTorch's."""

import importlib
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from captures import F, captured_error, imported_transformers, mean_loss, near_fp64, needs_torch, nn, read_safetensors, torch, writes_pytorchs_tokens
from test_capture_compositions import computing, operators, trained_near_pytorch

import tiebreak


def of_positions(f, width=8, **parts):
    """A model of samples of four positions, whose first layer makes eight channels of each."""
    return lambda: computing(f, a=nn.Linear(6, 8), b=nn.Linear(6, 8), last=nn.Linear(width, 3), **{name: make() for name, make in parts.items()})


def of_pixels(f, **parts):
    return lambda: computing(f, conv=nn.Conv2d(2, 4, 3), last=nn.Linear(4, 3), **{name: make() for name, make in parts.items()})


def weighed(x):
    """A mean over positions that sees their order."""
    positions, channels = x.shape[1:]
    return (x * torch.linspace(0.5, 1.5, positions * channels).reshape(positions, channels).to(x.dtype)).mean(1)


def rows_of(*shape):
    return lambda: nn.Parameter(1 + torch.randn(*shape) / 4)


if torch is not None:
    relu = torch.relu
    angles = torch.arange(4)[:, None] / 3 + torch.arange(8)
    cosines, sines = angles.cos(), angles.sin()
    SEQUENCES = {
        "all but the first": (of_positions(lambda m, x: m.last(weighed(relu(m.a(x))[:, 1:] * m.b(x)[:, :-1]))), ["slice_positions", "mul"]),
        "every second": (of_positions(lambda m, x: m.last(weighed(relu(m.a(x))[:, ::2] + m.b(x)[:, 1::2]))), ["slice_positions"]),
        "one in the middle": (of_positions(lambda m, x: m.last(relu(m.a(x))[:, 2] + m.b(x).narrow(1, 1, 1)[:, 0])), ["slice_positions"]),
        "rolled and flipped": (of_positions(lambda m, x: m.last(weighed(relu(m.a(x)).roll(1, 1) * m.b(x).flip(1)))), ["slice_positions", "place_positions"]),
        "by numbers": (of_positions(lambda m, x: m.last(weighed(relu(m.a(x))[:, [3, 1, 1]] * m.b(x).index_select(1, torch.tensor([0, 2, 2]))))), ["slice_positions", "place_positions"]),
        "joined": (of_positions(lambda m, x: m.last(weighed(m.n(torch.cat([relu(m.a(x)), m.b(x)], 1)).relu())), n=lambda: nn.LayerNorm(8)), ["place_positions", "residual"]),
        "stacked": (of_positions(lambda m, x: m.last(weighed(torch.stack([relu(m.a(x)), m.b(x)], 2).flatten(1, 2)[:, 1:7].tanh()))), ["place_positions"]),
        "split": (of_positions(lambda m, x: (lambda p, q: m.last(weighed(p * q)))(*(relu(m.a(x)) + m.b(x)).split(2, 1))), ["slice_positions"]),
        "a shift": (of_positions(lambda m, x: m.last(weighed((m.a(x) * 0.25 + F.pad(m.b(x), (0, 0, 1, -1)) * 0.75).relu()))), ["slice_positions", "place_positions"]),
        "a shift of half of the channels": (of_positions(lambda m, x: (lambda y: m.last(weighed(torch.cat([F.pad(y[..., :4], (0, 0, 1, -1)), y[..., 4:]], -1) * m.b(x))))(relu(m.a(x)))), ["slice_positions", "place_channels"]),
        "neighbours": (of_positions(lambda m, x: (lambda y: m.last(weighed(torch.cat([F.pad(y[:, 1:], (0, 0, 0, 1)), y, F.pad(y[:, :-1], (0, 0, 1, 0), value=0.5)], 2).relu())) + m.own(m.b(x)[:, 0]))(m.a(x)), width=24, own=lambda: nn.Linear(8, 3)), ["place_positions"]),
        "constants before": (of_positions(lambda m, x: m.last(weighed(torch.cat([torch.linspace(0, 1, 16).reshape(1, 2, 8).expand(len(x), -1, -1), relu(m.a(x) + m.b(x))], 1)))), ["place_positions", "position_embedding"]),
        "tokens before": (of_positions(lambda m, x: m.last(weighed(torch.cat([m.p.expand(len(x), -1, -1), relu(m.a(x) + m.b(x))], 1) ** 2)), p=rows_of(1, 2, 8)), ["place_positions", "place_rows", "position_embedding"]),
        "tokens within and behind": (of_positions(lambda m, x: (lambda y: m.last(weighed(torch.cat([y[:, :1], m.p.expand(len(x), 3, 8), y[:, 1:], m.q.expand(len(x), 1, 8)], 1) ** 2)))(relu(m.a(x) + m.b(x))), p=rows_of(3, 8), q=rows_of(8)), ["place_positions", "place_rows", "position_embedding"]),
        "class tokens": (of_positions(lambda m, x: m.last(weighed(torch.cat([m.p.expand(len(x), -1, -1), m.q.expand(len(x), 1, 8), relu(m.a(x) + m.b(x))], 1) ** 2)), p=rows_of(1, 1, 8), q=rows_of(8)), ["class_token", "class_token"]),
        "layers over positions": (of_positions(lambda m, x: m.last(weighed(m.a(x) + m.out(F.gelu(m.up(m.b(x).transpose(1, 2)))).transpose(1, 2))), up=lambda: nn.Linear(4, 5), out=lambda: nn.Linear(5, 4)), ["exchange", "gelu_erf"]),
        "channels of positions": (of_positions(lambda m, x: m.own(weighed(relu(m.a(x)).transpose(1, 2)[:, 1:5] * m.b(x)[:, :, 4:].transpose(1, 2))), own=lambda: nn.Linear(4, 3)), ["slice_positions", "exchange"]),
        "a constant for each element": (of_positions(lambda m, x: m.last(weighed(m.a(x) * cosines.to(x.dtype) + relu(m.b(x)) * sines.to(x.dtype)[None] - 1))), ["mul", "position_embedding"]),
    }
    IMAGES = {
        "channels last": (of_pixels(lambda m, x: m.last((m.conv(x) + m.g * m.out(F.gelu(m.up(m.n(m.conv(x).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)).mean((2, 3))), n=lambda: nn.LayerNorm(4), up=lambda: nn.Linear(4, 6), out=lambda: nn.Linear(6, 4), g=rows_of(4, 1, 1)), ["layer_norm", "conv2d"]),
        "channels last to the end": (of_pixels(lambda m, x: m.last((m.conv(x).permute(0, 2, 3, 1) * m.g).relu().mean((1, 2))), g=rows_of(4)), ["mean_pool"]),
        "merged patches": (of_pixels(lambda m, x: (lambda y: m.down(torch.cat([y[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)).flatten(1, 2).mean(1))(m.conv(x).permute(0, 2, 3, 1).relu()) + m.last(m.conv(x).mean((2, 3))), down=lambda: nn.Linear(16, 3)), ["slice_positions", "place_channels"]),
    }
SHAPES = {"SEQUENCES": (4, 6), "IMAGES": (2, 6, 6)}
ALL = [(kind, name) for kind in SHAPES for name in globals().get(kind, {})]


@needs_torch
@pytest.mark.parametrize("kind, name", ALL)
def test_positions_train_evaluate_and_predict_near_pytorch(folder, kind, name):
    make, due = globals()[kind][name]
    captured, predictions, logits = trained_near_pytorch(make, SHAPES[kind], ["adamw", "adam", "sgd"][len(name) % 3])
    assert set(due) <= set(operators(captured)) and operators(captured).count("class_token") == due.count("class_token"), operators(captured)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
@pytest.mark.parametrize("kind, name", ALL)
def test_gradients_are_as_near_to_fp64_as_pytorchs_in_fp32(kind, name, monkeypatch):
    batch = lambda: (torch.randn(2, *SHAPES[kind]), torch.randint(0, 3, (2,)))  # noqa: E731
    near_fp64(monkeypatch, name, (globals()[kind][name][0], batch))


MODELS = ["GPT-Neo", "Mistral, a window", "GLM", "Llama, scaled frequencies", "DINOv2 with registers", "BART's decoder"]


@needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_transformers_models_are_as_near(name, monkeypatch):
    imported_transformers()
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benches")
    models = importlib.import_module("captured_models").MODELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tiebreak.RunWarning)
        near_fp64(monkeypatch, name, models[name])


@needs_torch
def test_windows_of_a_decoder_write_the_tokens_of_pytorch(folder):
    transformers = imported_transformers()
    config = transformers.MistralConfig(vocab_size=19, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                        max_position_embeddings=8, sliding_window=2)  # fmt: skip

    def make():
        model = transformers.MistralForCausalLM(config).train()
        for tensor in model.parameters():
            if tensor.dim() > 1:
                nn.init.normal_(tensor, std=0.5)
        return model

    captured, _, _ = trained_near_pytorch(make, None, "sgd")
    assert operators(captured).count("window_attention") == 2
    windows = [node["attributes"]["window"] for node in json.loads(Path(captured.network).read_text())["nodes"] if node["operator"] == "window_attention"]
    assert windows == [2, 2]
    writes_pytorchs_tokens(transformers.MistralForCausalLM(config), captured)


@needs_torch
def test_parameters_that_the_loss_does_not_read_stay_as_they_are(folder):
    def make():
        return computing(lambda m, x: m.last(m.a(x)), a=nn.Linear(8, 4), other=nn.Linear(4, 2), last=nn.Linear(4, 3))

    with pytest.warns(tiebreak.RunWarning, match="the loss reads no other.weight, other.bias: "):
        captured, _, _ = trained_near_pytorch(make, (8,))
    assert "other" not in Path(captured.network).read_text()


@needs_torch
def test_a_parameter_whose_gradient_is_zeros_is_refused(folder):
    # Weight decay moves it, which a parameter without a gradient escapes.
    model = computing(lambda m, x: m.last(torch.cat([m.p.expand(2, -1, -1)[:, :0], torch.relu(m.a(x))], 1).mean(1)), a=nn.Linear(4, 4), last=nn.Linear(4, 3), p=nn.Parameter(torch.ones(1, 2, 4)))
    batch = torch.zeros(2, 3, 4), torch.zeros(2).long()
    assert "parameter p: the loss does not depend on it" in "\n".join(captured_error(model, batch=batch))


@needs_torch
def test_positions_that_are_counted_without_padding_take_texts_without_it(folder):
    transformers = imported_transformers()
    sizes = {"vocab_size": 19, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 9, "num_labels": 3,
             "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
    model = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**sizes)).train()
    draw = np.random.default_rng(3)
    ids, labels = torch.from_numpy(draw.integers(2, 19, (2, 6))), torch.tensor([0, 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captured = tiebreak.capture(model, mean_loss, optimizer, (ids, labels), out="captured", digits=4)
    with tiebreak.Recorder(captured, out="run", steps=2, progress=False) as recorder:
        recorder.step((ids, labels))
        with pytest.raises(tiebreak.BatchError, match="has the token id of padding, 1"):
            recorder.step((torch.where(ids == ids[0, 0], 1, ids), labels))
        recorder.step((ids, labels))
    for _ in range(2):
        optimizer.zero_grad()
        mean_loss(model(ids), labels).backward()
        optimizer.step()
    found = captured.state_dict(recorder.run)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=2e-5)
    # Windows of a text, and texts that are padded, may hold padding.
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    padded = {"input_ids": torch.where(mask == 0, 1, ids), "attention_mask": mask}
    with pytest.raises(tiebreak.CaptureError, match="counts positions over the ids that are not 1"):
        tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.1), (padded, labels), out="padded")


@needs_torch
@pytest.mark.parametrize("seen", ["holes", "later", "rows"])
def test_masks_that_are_no_windows_are_biases(folder, seen):
    mask = {"holes": torch.eye(5) + torch.ones(5, 5).tril(-2), "later": torch.ones(5, 5).triu(), "rows": torch.ones(5, 5).tril().triu(-1)}[seen].bool()
    if seen == "rows":
        mask[2, 1] = False
    heads = lambda x: x.view(*x.shape[:2], 2, 4).transpose(1, 2)  # noqa: E731
    model = computing(lambda m, x: m.last(F.scaled_dot_product_attention(*map(heads, m.q(m.e(x)).chunk(3, -1)), attn_mask=mask).transpose(1, 2).flatten(2)[:, 0]),
                      e=nn.Embedding(19, 8), q=nn.Linear(8, 24), last=nn.Linear(8, 3))  # fmt: skip
    batch = torch.zeros(2, 5).long(), torch.zeros(2).long()
    captured = tiebreak.capture(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), batch, out="captured")
    [node] = [node for node in json.loads(Path(captured.network).read_text())["nodes"] if node["operator"] == "biased_attention"]
    table = read_safetensors(captured.weights)[node["inputs"][3]].reshape(2, 5, 5)
    assert (table == np.where(mask, 0, np.float32(-2e30))).all()
