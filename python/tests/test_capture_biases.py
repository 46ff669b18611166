"""Attention whose scores have addends: ALiBi, masks of constants, and entries of a parameter by the distance of two positions."""

import importlib
import json
import re
import warnings
from pathlib import Path

import pytest
from captures import F, captured_error, imported_transformers, near_fp64, needs_torch, nn, torch
from test_capture_compositions import computing, operators, trained_near_pytorch

import tiebreak

POSITIONS, HEADS = 5, 2


def attending(f, **parts):
    """A model of texts with two heads; `f(module, q, k, v)` attends."""

    def forward(m, x):
        q, k, v = (part.view(*x.shape, HEADS, 4).transpose(1, 2) for part in m.qkv(m.e(x)).chunk(3, -1))
        return m.last(f(m, q, k, v).transpose(1, 2).flatten(2))

    return lambda: computing(forward, e=nn.Embedding(19, 8), qkv=nn.Linear(8, 24), last=nn.Linear(8, 19), **{name: make() for name, make in parts.items()})


def by_hand(bias, hides=None):
    """Attention as two products, with an addend of the scores."""

    def f(m, q, k, v):
        scores = q @ k.transpose(-2, -1) / 2 + bias(m)
        scores = scores if hides is None else scores.masked_fill(hides, float("-inf"))
        return F.dropout(scores.softmax(-1), 0.0) @ v

    return f


def masked(mask):
    return lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype) if mask.is_floating_point() else mask)


if torch is not None:
    distance = torch.arange(POSITIONS)[None] - torch.arange(POSITIONS)[:, None]
    behind, bucket = distance > 0, distance + POSITIONS - 1
    slopes = torch.tensor([0.5, 0.0625])[:, None, None]
    alibi = slopes * distance.masked_fill(behind, 0)
    waves = slopes * torch.arange(1 - POSITIONS, 1)
    rows_of = lambda *shape: lambda: nn.Parameter(torch.randn(*shape) / 2)  # noqa: E731
    looked_up = lambda m: m.p[bucket.view(-1)].view(POSITIONS, POSITIONS, -1).permute(2, 0, 1).contiguous().unsqueeze(0)  # noqa: E731
    BIASES = {
        "ALiBi": attending(masked((alibi + torch.zeros(POSITIONS, POSITIONS).masked_fill(behind, float("-inf")))[None])),
        "ALiBi by hand": attending(by_hand(lambda m: waves.to(m.last.weight.dtype), behind)),
        "holes": attending(masked(torch.eye(POSITIONS).bool() | (distance < -1))),
        "another mask for each head": attending(masked(torch.stack([distance <= 0, distance >= 0])[None])),
        "distances": attending(by_hand(lambda m: m.t(bucket).permute(2, 0, 1).unsqueeze(0)), t=lambda: nn.Embedding(2 * POSITIONS - 1, HEADS)),
        "distances of earlier positions": attending(by_hand(lambda m: m.t(bucket).permute(2, 0, 1)[None].expand(1, -1, -1, -1), behind), t=lambda: nn.Embedding(12, HEADS)),
        "entries": attending(by_hand(looked_up), p=rows_of(2 * POSITIONS - 1, HEADS)),
        "entries of heads, and a constant": attending(by_hand(lambda m: m.p[:, bucket] + alibi.to(m.p.dtype)), p=rows_of(HEADS, 2 * POSITIONS - 1)),
        # True is 1 in a sum, and no position that is seen.
        "earlier positions as ones": attending(by_hand(lambda m: distance <= 0)),
        "holes as ones": attending(by_hand(lambda m: torch.eye(POSITIONS).bool() | (distance < -1))),
        "entries, and two constants as ones": attending(by_hand(lambda m: m.p[:, bucket] + (distance <= 0) + (distance >= 0)), p=rows_of(HEADS, 2 * POSITIONS - 1)),
        "entries as a mask": attending(lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=looked_up(m)), p=rows_of(2 * POSITIONS - 1, HEADS)),
        "merged heads": attending(lambda m, q, k, v: (lambda q, k, v: (waves.to(q.dtype).repeat(len(q) // 2, 1, 1).baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=0.5)
                                  .view(-1, HEADS, POSITIONS, POSITIONS).masked_fill(behind, float("-inf")).softmax(-1).flatten(0, 1).bmm(v)))(*(x.flatten(0, 1) for x in (q, k, v))).view(-1, HEADS, POSITIONS, 4)),
    }  # fmt: skip


@needs_torch
@pytest.mark.parametrize("name", BIASES if torch is not None else [])
def test_biases_train_evaluate_and_predict_near_pytorch(folder, name):
    captured, predictions, logits = trained_near_pytorch(BIASES[name], None, ["adamw", "adam", "sgd"][len(name) % 3])
    assert operators(captured).count("biased_attention") == 1, operators(captured)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
@pytest.mark.parametrize("name", BIASES if torch is not None else [])
def test_gradients_are_as_near_to_fp64_as_pytorchs_in_fp32(name, monkeypatch):
    batch = lambda: (lambda ids: (ids[:, :-1], ids[:, 1:]))(torch.randint(0, 19, (2, POSITIONS + 1)))  # noqa: E731
    near_fp64(monkeypatch, name, (BIASES[name], batch))


@needs_torch
@pytest.mark.parametrize("name", ["BLOOM", "MPT", "XGLM", "NanoChat", "MPNet", "Gemma 2, capped scores", "Persimmon", "SqueezeBERT", "AST"])
def test_gradients_of_transformers_models_are_as_near(name, monkeypatch):
    imported_transformers()
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benches")
    models = importlib.import_module("captured_models").MODELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tiebreak.RunWarning)
        make, batch = models[name]
        # MPNet's id of padding, 1, may be in no text.
        without = lambda: (lambda ids, labels: (ids.clamp(min=2), labels))(*batch())  # noqa: E731
        near_fp64(monkeypatch, name, (make, without if name == "MPNet" else batch))


@needs_torch
def test_addends_that_are_no_biases_are_refused(folder):
    ids = torch.zeros(2, POSITIONS).long(), torch.zeros(2, POSITIONS).long()
    hidden = torch.ones(POSITIONS, POSITIONS).bool()
    hidden[2] = False
    table = lambda: nn.Parameter(torch.ones(9, HEADS))  # noqa: E731
    for make, why in [
        (attending(masked(hidden)), "hides all positions from one"),
        (attending(masked(torch.rand(2, HEADS, POSITIONS, POSITIONS))), "differs between samples"),
        (attending(by_hand(lambda m: m.p[bucket].permute(2, 0, 1) + m.q[bucket].permute(2, 0, 1)), p=table, q=table), "it adds|no operator of the contract|no part of"),
        (attending(by_hand(lambda m: m.p[bucket][..., :1].permute(2, 0, 1)), p=table), "otherwise than by row and head"),
        (attending(by_hand(lambda m: m.p[bucket, 0]), p=table), "it takes number 0 of dimension 1"),
        (attending(by_hand(lambda m: m.p[bucket[:, :, None], torch.zeros(2).long()].permute(2, 0, 1)), p=table), "otherwise than by row and head"),
        (attending(lambda m, q, k, v: torch.max(q @ k.transpose(-2, -1), torch.zeros(())).softmax(-1) @ v), "aten.max.other"),
    ]:
        said = "\n".join(captured_error(make(), batch=ids))
        assert re.search(why, said), (why, said)


if torch is not None:
    seen = lambda hidden: lambda m, q, k, v: (3 * (q @ k.transpose(-2, -1) * 0.75 / 3).tanh()).masked_fill(hidden, float("-inf")).softmax(-1) @ v  # noqa: E731
    CAPPED = {"earlier": (attending(seen(behind)), 65536), "a window": (attending(seen(behind | (distance <= -2))), 2)}


@needs_torch
@pytest.mark.parametrize("name", CAPPED if torch is not None else [])
def test_bounded_scores_train_near_pytorch(folder, name):
    make, window = CAPPED[name]
    captured, predictions, logits = trained_near_pytorch(make, None)
    [node] = [node for node in json.loads(Path(captured.network).read_text())["nodes"] if node["operator"] == "capped_attention"]
    assert node["attributes"] == {"heads": HEADS, "window": window, "cap": 3.0, "p": 0.0}
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
@pytest.mark.parametrize("name", CAPPED if torch is not None else [])
def test_gradients_of_bounded_scores_are_as_near_to_fp64(name, monkeypatch):
    batch = lambda: (lambda ids: (ids[:, :-1], ids[:, 1:]))(torch.randint(0, 19, (2, POSITIONS + 1)))  # noqa: E731
    near_fp64(monkeypatch, name, (CAPPED[name][0], batch))


@needs_torch
def test_other_bounds_of_scores_are_refused(folder):
    ids = torch.zeros(2, POSITIONS).long(), torch.zeros(2, POSITIONS).long()
    for f, why in [
        (lambda m, q, k, v: (q @ k.transpose(-2, -1)).tanh().softmax(-1) @ v, "have another mask than a causal one"),
        (lambda m, q, k, v: (-(q @ k.transpose(-2, -1)).tanh() * -2).masked_fill(behind, float("-inf")).softmax(-1) @ v, "it multiplies .* \\(scores\\) and -1"),
        (lambda m, q, k, v: (q @ k.transpose(-2, -1)).tanh().tanh().masked_fill(behind, float("-inf")).softmax(-1) @ v, "take the hyperbolic tangent of scores once"),
        (lambda m, q, k, v: (q @ k.transpose(-2, -1)).masked_fill(behind, float("-inf")).tanh().softmax(-1) @ v, "behind their mask"),
    ]:
        said = "\n".join(captured_error(attending(f)(), batch=ids))
        assert re.search(why, said), (why, said)
