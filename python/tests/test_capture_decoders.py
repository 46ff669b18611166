"""Capture of decoders as Llama, Qwen2, Qwen3 and Mistral are: the bits of the built-in model, PyTorch's numbers, and what is refused."""

import json
import math
import re
from pathlib import Path

import pytest
from captures import F, captured_error, imported_transformers, mean_loss, needs_torch, nn, torch, trains_as_the_built_in_one
from conftest import command
from test_capture_compositions import operators, trained_near_pytorch

import tiebreak

SIZES = {
    "vocab_size": 19, "max_position_embeddings": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_size": 16, "intermediate_size": 11, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "rms_norm_eps": 1e-5,
}
TABLE = {"kind": "llama", "vocabulary": 19, "context": 5, "layers": 2, "heads": 4, "kv_heads": 2, "width": 16, "hidden": 11}


def turning(theta, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def decoder(kind, **more):
    """A decoder of transformers with random numbers in each parameter."""
    transformers = imported_transformers()
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **more})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def by_hand():
    """A decoder of modules of torch.nn: heads turned before they are transposed, halves by chunk, and grouped heads by the attention."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(16, width, bias=False) for width in (16, 8, 8))
            self.out = nn.Linear(16, 16, bias=False)

        def turned(self, x):
            frequencies = 10000.0 ** -(torch.arange(2) / 2)
            angles = torch.arange(5)[:, None] * frequencies
            angles = torch.cat([angles, angles], -1)[None, :, None]
            low, high = x.chunk(2, -1)
            return torch.cat((-high, low), -1) * angles.sin() + x * angles.cos()

        def forward(self, x):
            q, k, v = (layer(x).view(2, 5, -1, 4) for layer in (self.q, self.k, self.v))
            q, k, v = (heads.transpose(1, 2) for heads in (self.turned(q), self.turned(k), v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.out(y.transpose(1, 2).reshape(2, 5, 16))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.attention, self.norm2 = nn.RMSNorm(16, eps=1e-5), Attention(), nn.RMSNorm(16, eps=1e-5)
            self.gate, self.up, self.down = nn.Linear(16, 11, bias=False), nn.Linear(16, 11, bias=False), nn.Linear(11, 16, bias=False)

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            y = self.norm2(x)
            gate = F.silu(self.gate(y))
            return x + self.down(self.up(y) * gate)

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.blocks, self.norm = nn.Embedding(19, 16), nn.Sequential(Block(), Block()), nn.RMSNorm(16, eps=1e-5)
            self.head = nn.Linear(16, 19, bias=False)

        def forward(self, tokens):
            # PyTorch trains on batches of twice as many samples.
            if len(tokens) != 2:
                return torch.cat([self(part) for part in tokens.split(2)])
            return self.head(self.norm(self.blocks(self.table(tokens))))

    return Decoder()


def norms_behind_values(names):
    """The order of the built-in model: the normalisations of queries and keys behind the layers of queries, keys and values."""
    found, held = [], []
    for name in names:
        if ".o_proj." in name:
            found, held = found + held, []
        (held if ".q_norm." in name or ".k_norm." in name else found).append(name)
    return found


BIASED = {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "tied": True, "kv_heads": 4}
# A model, what its table has more, and the optimizer.
DECODERS = {
    "llama": (lambda: decoder("Llama", **turning(500000.0)), {"rope_theta": 500000.0}, "sgd"),
    "llama, biases and a tied head": (
        lambda: decoder("Llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True, num_key_value_heads=4, attn_implementation="eager"),
        BIASED, "adamw",
    ),
    "qwen2": (lambda: decoder("Qwen2", attn_implementation="eager", **turning(1000000.0)), {"qkv_bias": True, "rope_theta": 1000000.0}, "adam"),
    "mistral": (
        lambda: decoder("Mistral", sliding_window=5, num_key_value_heads=1, head_dim=6), {"kv_heads": 1, "head_width": 6}, "sgd",
    ),
    "by hand": (by_hand, {}, "adamw"),
}


@needs_torch
@pytest.mark.parametrize("name", DECODERS)
def test_a_captured_decoder_trains_to_the_bits_of_the_built_in_one_and_near_pytorch(folder, name):
    torch.manual_seed(1)
    make, more, optimizer = DECODERS[name]
    trains_as_the_built_in_one(make(), {**TABLE, **more}, None, optimizer)


@needs_torch
@pytest.mark.parametrize("name", ["llama", "by hand"])
def test_a_captured_decoder_writes_what_pytorch_does(folder, name):
    """The most likely tokens, in windows as docs/INFERENCE.md has them."""
    torch.manual_seed(1)
    model, context = DECODERS[name][0](), 5
    Path("text.txt").write_bytes(bytes(i * i * 7 % 251 % 19 for i in range(400)))
    batch = torch.zeros(2, context, dtype=torch.int64), torch.zeros(2, context, dtype=torch.int64)
    captured = tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.01), batch, out="captured")
    run = tiebreak.train(captured.job({"kind": "bytes", "path": "text.txt"}, steps=2), out="run")
    asked = ["run", "--prompt", "\t\x01\x02", "--length", 12, "--temperature", 0, "--receipt", "receipt.json"]
    found = command("generate", *asked)["ids"]
    assert command("receipt", "check", "receipt.json", "run")["result"] == "matches"
    model.load_state_dict(captured.state_dict(run))
    text = [9, 1, 2]
    for _ in range(12):
        first = math.ceil(max(len(text) - context, 0) / (context // 2 + 1)) * (context // 2 + 1)
        window = text[first:]
        output = model.eval()(torch.tensor([(window + [0] * context)[:context]] * 2))
        text.append(int(getattr(output, "logits", output)[0, len(window) - 1].argmax()))
    assert text[3:] == found and len(set(found)) > 1


@needs_torch
def test_queries_and_keys_are_normalised_as_the_built_in_model_does(folder):
    torch.manual_seed(1)
    table = {**TABLE, "qk_norm": True, "head_width": 6}
    # A clipped gradient's norm adds the parameters in their order, which here is another one.
    trains_as_the_built_in_one(decoder("Qwen3", head_dim=6), table, None, "adamw", clip_norm=None, in_order=norms_behind_values)


@needs_torch
def test_dropout_of_attentions_is_captured_in_training_mode_alone(folder):
    batch = torch.zeros(2, 5).long(), torch.zeros(2, 5).long()
    for mode, due in ((True, 0.25), (False, 0.0)):
        model = decoder("Llama", attention_dropout=0.25).train(mode)
        captured = tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.5), batch, out=f"captured-{mode}")
        nodes = json.loads(Path(captured.network).read_text())["nodes"]
        found = [node["attributes"] for node in nodes if node["operator"] == "grouped_attention"]
        assert found == [{"heads": 4, "p": due}] * 2, found


def refused(model, positions=5):
    tokens = torch.zeros(2, positions, dtype=torch.int64)
    return "\n".join(captured_error(model, batch=(tokens, tokens)))


@needs_torch
@pytest.mark.parametrize(
    "kind, more, why",
    [
        ("Llama", {"hidden_act": "mish"}, "aten.mish.default in model.layers.0.mlp.act_fn at .*"),
        ("DiffLlama", {}, "aten.mul.Tensor in model.layers.0.self_attn at .*modeling_diffllama.py:"),
    ],
)
def test_decoders_without_a_counterpart_are_refused_with_their_place(folder, kind, more, why):
    said = refused(decoder(kind, **more))
    assert re.search(why, said), said


@needs_torch
@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3", "wide"])
def test_other_frequencies_are_constants(folder, kind):
    more = {
        "linear": turning(1e4, rope_type="linear", factor=4.0),
        "yarn": turning(1e4, rope_type="yarn", factor=4.0),
        "llama3": {"head_dim": 16, **turning(1e4, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)},
        "wide": {"head_dim": 258},
    }[kind]
    captured, predictions, logits = trained_near_pytorch(lambda: decoder("Llama", **more), None, "sgd")
    assert "rotary" not in operators(captured) and operators(captured).count("position_embedding") == 4, operators(captured)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


def rms(x, gain, of=None, power=2, dim=-1, epsilon=1e-5):
    return gain * (x * torch.rsqrt((x if of is None else of).pow(power).mean(dim, keepdim=True) + epsilon))


def turned(x, wrong):
    """Heads of one position, turned: rightly, by the other half, or by one channel in three."""
    samples = x.shape[0]
    x = x.view(samples, 1, 8).view(samples, 1, 2, 4)
    cos, sin, cut = torch.ones(1, 1, 1, 4), torch.zeros(1, 1, 1, 4), 1 if wrong == "cut" else 2
    low, high = x[..., :cut], x[..., cut:]
    halves = (-low, high) if wrong == "half" else (-high, low)
    return (x * cos + torch.cat(halves, -1) * sin).view(samples, 1, 8).view(samples, 8)


# What a model computes of two linear layers and a parameter: the operators behind the layers, or why it is refused. None: other operators than `rotary`.
FORMULAS = {
    "rms norm": (lambda x, y, gain: rms(x, gain) + y, ["rms_norm", "residual"]),
    "rms norm, gain behind": (lambda x, y, gain: (y * y.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()) * gain + x, ["rms_norm", "residual"]),
    "swiglu": (lambda x, y, gain: rms(y * F.silu(x), gain), ["swiglu", "rms_norm"]),
    "turned": (lambda x, y, gain: turned(rms(x, gain), "") + y, ["rms_norm", "rotary", "residual"]),
    "another tensor's mean": (lambda x, y, gain: rms(x, gain, of=y), "aten.mean.dim .*no part of"),
    "cubes": (lambda x, y, gain: rms(x, gain, power=3) + y, "aten.mean.dim .*no part of"),
    "a mean over samples": (lambda x, y, gain: rms(x, gain, dim=0) + y, "aten.mean.dim .*but over \\[0\\] of \\[2, 8\\]"),
    "no epsilon": (lambda x, y, gain: rms(x, gain, epsilon=0.0) + y, "eps is 0.0; give eps above 0"),
    "1 + gain": (lambda x, y, gain: rms(x, 1 + gain) + y, ["bias", "rms_norm", "residual"]),
    "2 * gain": (lambda x, y, gain: rms(x, 2 * gain) + y, "aten.(mean.dim .*no part of|mul.Tensor .*it multiplies \\[8\\] \\(parameter\\) and 2)"),
    "no gain": (lambda x, y, gain: rms(x, y) + gain, ["rms_norm", "mul", "bias"]),
    "two gates": (lambda x, y, gain: rms(F.silu(x) * F.silu(y), gain), ["silu", "swiglu", "rms_norm"]),
    "twice": (lambda x, y, gain: rms(F.silu(x) * 2, gain) + y, ["silu", "gain", "rms_norm", "residual"]),
    "the negative": (lambda x, y, gain: rms(-x, gain) + y, ["gain", "rms_norm", "residual"]),
    "the other half": (lambda x, y, gain: turned(rms(x, gain), "half") + y, None),
    "another cut": (lambda x, y, gain: turned(rms(x, gain), "cut") + y, None),
    "part of the channels": (lambda x, y, gain: rms(torch.cat([F.silu(x)[:, 4:], F.silu(y)[:, :4]], -1), gain), ["silu", "silu", *["slice_channels", "place_channels"] * 2, "residual", "rms_norm"]),
}


@needs_torch
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_one_operator_or_refused(folder, name):
    computed, due = FORMULAS[name]

    class Computed(nn.Module):
        def __init__(self):
            super().__init__()
            self.x, self.y, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, values):
            return self.head(computed(self.x(values), self.y(values), self.gain))

    model = Computed()
    if isinstance(due, str):
        said = "\n".join(captured_error(model))
        assert re.search(due, said) and "test_capture_decoders.py:" in said, said
        return
    if due is None:
        captured, predictions, logits = trained_near_pytorch(Computed, (4,))
        assert "rotary" not in operators(captured)
        torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)
        return
    batch = torch.zeros(2, 4), torch.zeros(2).long()
    captured = tiebreak.capture(model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.5), batch, out="captured")
    nodes = json.loads(Path(captured.network).read_text())["nodes"]
    assert [node["operator"] for node in nodes] == ["linear", "linear", *due, "linear"], nodes


def tables(theta, channels, positions, first=0, factor=1.0):
    """Cosines and sines as transformers makes them."""
    frequencies = 1.0 / (theta ** (torch.arange(0, channels, 2).float() / channels))
    angles = torch.arange(first, first + positions)[:, None].float() * (frequencies / factor)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


@needs_torch
def test_the_base_of_rotary_positions_is_read_from_the_tables():
    from tiebreak._matcher import Refused
    from tiebreak._rotary import theta_of

    for theta in (1.0, 1.75, 10000.0, 500000.0, 1000000.0, 123456.0, 8000000.0, 100000000.0):
        for channels in (4, 6, 64, 80, 128, 256):
            for positions in (2, 5, 1000):
                assert theta_of(tables(theta, channels, positions), 2, True, (2, 3, positions, channels)) == theta, (theta, channels, positions)
    # One position, and one pair of channels, have the same tables for any base.
    assert theta_of(tables(5.0, 8, 1), 2, True, (2, 3, 1, 8)) == theta_of(tables(5.0, 2, 9), 2, True, (2, 3, 9, 2)) == 10000.0
    cos, sin = tables(10000.0, 8, 9)
    by_position = [table[None, :, None] for table in (cos, sin)]
    assert theta_of(by_position, 2, False, (2, 9, 3, 8)) == 10000.0
    of_samples = [table.expand(2, 1, 9, 8) for table in (cos, sin)]
    assert theta_of(of_samples, 2, True, (2, 3, 9, 8)) == 10000.0
    moved, other = sin.clone(), torch.stack([cos, cos.flip(0)])[:, None]
    moved[7, 2] += 2e-4
    moved[7, 6] += 2e-4
    interleaved = [table[:, :4].repeat_interleave(2, -1) for table in (cos, sin)]
    for wrong in [
        (cos, moved), (cos, -sin), (sin, cos), (other, other), interleaved, (cos * 1.1, sin * 1.1), (cos.long(), sin.long()), (cos[:, :4], sin[:, :4]),
        tables(10000.0, 8, 9, first=1), tables(10000.0, 8, 9, factor=2.0), tables(0.5, 8, 9),
    ]:
        with pytest.raises(Refused):
            theta_of(tuple(wrong), 2, True, (2, 3, 9, 8))
    for shape, why in [((3, 3, 9, 8), "each sample"), ((2, 3, 65537, 8), "at most 65536"), ((2, 3, 9, 7), "an even number")]:
        with pytest.raises(Refused) as error:
            theta_of((cos, sin), 2, True, shape)
        assert why in error.value.instead


@needs_torch
def test_only_what_the_loss_depends_on_has_to_have_a_counterpart(folder):
    class Traced(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            torch.special.erfcx(x).flip(0)
            return self.layer(x)

    model = Traced()
    captured = tiebreak.capture(
        model, mean_loss, torch.optim.SGD(model.parameters(), lr=0.5), (torch.zeros(2, 4), torch.zeros(2).long()), out="captured"
    )
    assert [node["operator"] for node in json.loads(Path(captured.network).read_text())["nodes"]] == ["linear"]
