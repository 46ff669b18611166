"""Channels that are chosen and joined, sums with scalars, and tables of positions that begin at a later row: steps and gradients beside PyTorch's."""

import re

import pytest
from captures import F, captured_error, imported_transformers, near_fp64, needs_torch, nn, torch, writes_pytorchs_tokens
from test_capture_decoders import tables
from test_capture_compositions import computing, heads_of, images, operators, rows, texts, trained_near_pytorch

import tiebreak



def seeing(f, **parts):
    return lambda: computing(f, **{name: make() for name, make in parts.items()})


if torch is not None:
    relu = torch.relu
    ROWS = {
        "one group of rows": (rows(lambda m, x: m.last(relu(m.n(m.a(x) + m.b(x)))), n=lambda: nn.GroupNorm(1, 8)), "layer_norm"),
        "joined": (rows(lambda m, x: m.last(torch.cat([relu(m.a(x)), torch.sigmoid(m.b(x))], -1)), width=16), "place_channels"),
        "joined with the inputs": (rows(lambda m, x: m.last(torch.cat([relu(m.a(x)), x, 2 * m.b(x)], 1)), width=24), "residual"),
        "one after another": (rows(lambda m, x: m.last(torch.hstack([torch.cat([relu(m.a(x)), x], 1), m.b(x).tanh()])), width=24), "tanh"),
        "joined with constants": (rows(lambda m, x: m.last(torch.cat([relu(m.a(x) + m.b(x)), torch.linspace(0, 1, 3).expand(len(x), 3)], 1)), width=11), "bias"),
        "the same twice": (rows(lambda m, x: m.last(torch.cat([relu(m.a(x))] * 2 + [m.b(x)], 1)), width=24), "place_channels"),
        "a slice behind an activation": (rows(lambda m, x: m.last(relu(m.a(x))[:, 2:7] + m.b(x).tanh()[:, -5:]), width=5), "slice_channels"),
        "a slice with steps": (rows(lambda m, x: m.last(relu(m.a(x))[:, 1:7:2] * m.b(x).tanh()[..., ::3]), width=3), "mul"),
        "narrowed": (rows(lambda m, x: m.last(relu(m.a(x)).narrow(1, 2, 4) + m.b(x).sigmoid().narrow(-1, 0, 4)), width=4), "slice_channels"),
        "split": (rows(lambda m, x: (lambda p, q: m.last(torch.cat([q, m.b(x)[:, :3] * p], 1)))(*relu(m.a(x)).split([3, 5], 1)) + m.more(m.b(x)[:, 3:]), more=lambda: nn.Linear(5, 3)), "mul"),
        "chunks": (rows(lambda m, x: (lambda p, q, r: m.last(torch.cat([r, q, p * m.b(x)[:, 5:]], 1)))(*relu(m.a(x)).chunk(3, -1)) + m.more(m.b(x)[:, :5]), more=lambda: nn.Linear(5, 3)), "mul"),
        "tensor_split": (rows(lambda m, x: m.last(sum(torch.tensor_split(relu(m.a(x) + m.b(x)), 2, -1))), width=4), "residual"),
        "stacked and unbound": (rows(lambda m, x: (lambda p, q: m.last(relu(p) + q))(*torch.stack([m.a(x), m.b(x)], 1).unbind(1))), "residual"),
        "a sum of a stack": (rows(lambda m, x: m.last(torch.stack([relu(m.a(x)), m.b(x), x]).sum(0))), "residual"),
        "a mean of a stack": (rows(lambda m, x: m.last(torch.stack([relu(m.a(x)), m.b(x)], -1).mean(-1) + torch.stack([m.a(x), x], 1).mean(1, keepdim=True).tanh().mean(1))), "gain"),
        "every other channel": (rows(lambda m, x: m.last(torch.stack([relu(m.a(x)), m.b(x)], -1).flatten(1)), width=16), "place_channels"),
        "other orders": (rows(lambda m, x: m.last(relu(m.a(x)).flip(1) + relu(m.b(x)).roll(2, 1))), "place_channels"),
        "by numbers": (rows(lambda m, x: m.last(relu(m.a(x))[:, [3, 2, 1, 1]] + relu(m.b(x)).index_select(1, torch.tensor([7, 0, 5, 5]))), width=4), "place_channels"),
        "repeated": (rows(lambda m, x: m.last(relu(m.a(x)).repeat(1, 2) + relu(m.b(x)).repeat_interleave(2, 1)), width=16), "place_channels"),
        "selected": (rows(lambda m, x: m.last(relu(m.a(x)).view(-1, 2, 4)[:, 1] * m.b(x).tanh().view(-1, 4, 2).select(2, 0)), width=4), "mul"),
        "padded": (rows(lambda m, x: m.last(F.pad(F.pad(relu(m.a(x)), ()), (1, 3)) + F.pad(m.b(x), (4, 0), value=0.5)), width=12), "bias"),
        "cuts of a layer that overlap": (rows(lambda m, x: m.last((lambda y: y[:, :4] * y[:, 2:6])(m.a(x)) + m.b(x).tanh()[:, :4]), width=4), "mul"),
        "a layer and a cut of it": (rows(lambda m, x: (lambda y: m.last(y + y.flip(-1)) + m.more(y[:, [0, 0, 1]]))(m.a(x) + m.b(x)), more=lambda: nn.Linear(3, 3)), "place_channels"),
        "alpha": (rows(lambda m, x: m.last(torch.add(m.a(x), relu(m.b(x)), alpha=0.25) - torch.sub(m.b(x), 1, alpha=2) + torch.sub(x, torch.linspace(0, 1, 8), alpha=3))), "gain"),
        "in place": (rows(lambda m, x: m.last(m.a(x).sub_(m.b(x), alpha=0.5).div_(2).neg_().tanh_())), "tanh"),
        "between": (rows(lambda m, x: m.last(torch.lerp(m.a(x), relu(m.b(x)), 0.25) + torch.lerp(torch.linspace(0, 1, 8), x, 0.3) + torch.lerp(m.g, m.a(x), 0.5)), g=lambda: nn.Parameter(torch.ones(8))), "residual"),
        "a product more": (rows(lambda m, x: m.last(torch.addcmul(x, m.a(x), relu(m.b(x)), value=0.5) + torch.addcmul(x, x, m.a(x)))), "mul"),
        "other names": (rows(lambda m, x: m.last(torch.concat([torch.multiply(m.a(x), x).subtract(m.b(x)).unsqueeze(0).squeeze().true_divide(2), torch.divide(x, 3).negative()], 1).absolute()), width=16), "mul"),
        "powers": (rows(lambda m, x: m.last(m.a(x) ** 4 + m.b(x) ** 5)), "mul"),
    }
    SEQUENCES = {
        "joined positions' channels": (lambda: computing(lambda m, x: m.last(torch.cat([relu(m.a(x)), x], -1).mean(1)), a=nn.Linear(6, 8), last=nn.Linear(14, 3)), "mean_positions"),
        "the last of them": (lambda: computing(lambda m, x: m.last(torch.cat([relu(m.a(x)), x], -1)[:, -1, ::2]), a=nn.Linear(6, 8), last=nn.Linear(7, 3)), "last_position"),
        "a gate by halves": (lambda: computing(lambda m, x: (lambda p, q: m.last((p * torch.sigmoid(q)).mean(1)))(*relu(m.a(x)).chunk(2, -1)), a=nn.Linear(6, 8), last=nn.Linear(4, 3)), "mul"),
    }
    IMAGES = {
        "normalised groups": (images(lambda m, x: m.last(relu(m.n(m.conv(x)) + m.o(m.conv(x))).mean((2, 3))), n=lambda: nn.GroupNorm(2, 4), o=lambda: nn.GroupNorm(1, 4, eps=1e-3, affine=False)), "group_norm"),
        "joined": (seeing(lambda m, x: m.wide(torch.cat([relu(m.conv(x)), torch.sigmoid(m.more(x))], 1).mean((2, 3))), conv=lambda: nn.Conv2d(2, 4, 3), more=lambda: nn.Conv2d(2, 3, 3), wide=lambda: nn.Linear(7, 3)), "conv2d"),
        "a dense block": (images(lambda m, x: (lambda y: m.last(m.head(m.bn(torch.cat([y, relu(m.grow(y))], 1))).mean((2, 3))))(m.conv(x)), grow=lambda: nn.Conv2d(4, 2, 3, padding=1), bn=lambda: nn.BatchNorm2d(6), head=lambda: nn.Conv2d(6, 4, 1)), "batch_norm"),
        "halves": (images(lambda m, x: (lambda p, q: m.last(torch.cat([m.of_half(p).tanh(), q], 1).mean((2, 3))))(*m.conv(x).tanh().chunk(2, 1)), of_half=lambda: nn.Conv2d(2, 2, 1)), "conv2d"),
        "pixels and padded channels": (seeing(lambda m, x: m.last(relu(F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1)) + m.down(x)).mean((2, 3))), down=lambda: nn.Conv2d(2, 4, 3, 2, 1), last=lambda: nn.Linear(4, 3)), "avg_pool"),
        "sources of other sizes": (seeing(lambda m, x: m.last(relu(torch.cat([m.down(x), relu(m.conv(x))[:, :, ::4, ::4]], 1)).mean((2, 3))), down=lambda: nn.Conv2d(2, 3, 3, 4, 1), conv=lambda: nn.Conv2d(2, 4, 3, padding=1), last=lambda: nn.Linear(7, 3)), "avg_pool"),
        "shuffled": (images(lambda m, x: (lambda y: m.last(relu(m.more(y.view(-1, 2, 2, 4, 4).transpose(1, 2).reshape(-1, 4, 4, 4)) + F.channel_shuffle(y, 2)).mean((2, 3))))(relu(m.conv(x))), more=lambda: nn.Conv2d(4, 4, 1, groups=2)), "grouped_conv2d"),
        "joined, then flat": (seeing(lambda m, x: m.flat(torch.cat([relu(m.conv(x)), relu(m.more(x))], 1).flatten(1)), conv=lambda: nn.Conv2d(2, 4, 3), more=lambda: nn.Conv2d(2, 1, 3), flat=lambda: nn.Linear(80, 3)), "flatten"),
    }


SHAPES = {"ROWS": (8,), "SEQUENCES": (4, 6), "IMAGES": (2, 6, 6)}
ALL = [(kind, name) for kind in SHAPES for name in globals().get(kind, {})]


@needs_torch
@pytest.mark.parametrize("kind, name", ALL)
def test_chosen_and_joined_channels_train_evaluate_and_predict_near_pytorch(folder, kind, name):
    make, operator = globals()[kind][name]
    captured, predictions, logits = trained_near_pytorch(make, SHAPES[kind], ["adamw", "adam", "sgd"][len(name) % 3])
    assert operator in operators(captured), operators(captured)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
@pytest.mark.parametrize("kind, name", ALL)
def test_gradients_are_as_near_to_fp64_as_pytorchs_in_fp32(kind, name, monkeypatch):
    batch = lambda: (torch.randn(2, *SHAPES[kind]), torch.randint(0, 3, (2,)))  # noqa: E731
    near_fp64(monkeypatch, name, (globals()[kind][name][0], batch))


@needs_torch
def test_a_head_of_a_cut_layer_may_be_repeated(folder):
    def parts(m, x):
        q, *others = m.qkv(x).split([8, 4, 4], -1)
        return [heads_of(q), *(part.view(*x.shape[:2], 1, 4).transpose(1, 2).expand(-1, 2, -1, -1) for part in others)]

    captured, predictions, logits = trained_near_pytorch(texts(parts, qkv=16), None)
    assert operators(captured) == ["embedding", "linear", "slice_channels", *["slice_channels", "place_channels", "slice_channels", "place_channels", "residual"] * 2, "attention", "linear"]
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
def test_a_part_of_normalised_heads_is_rotated(folder):
    cos, sin = tables(100.0, 2, 5)

    def rotated(x):
        x, rest = x[..., :2], x[..., 2:]
        return torch.cat([x * cos + torch.cat([-x[..., 1:], x[..., :1]], -1) * sin, rest], -1)

    parts = lambda m, x: [rotated(m.n(part)) if number < 2 else part for number, part in enumerate(map(heads_of, m.qkv(x).chunk(3, -1)))]  # noqa: E731
    captured, predictions, logits = trained_near_pytorch(texts(parts, n=lambda: nn.RMSNorm(4)), None)
    assert [operators(captured).count(name) for name in ("head_rms_norm", "rotary", "matmul", "attention")] == [2, 2, 0, 1]
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
def test_one_head_is_rotated(folder):
    def parts(m, x):
        q, k, v = (part.unsqueeze(1) for part in m.qkv(x).chunk(3, -1))
        return torch.cat([-q[..., 4:], q[..., :4]], -1), k, v

    captured, predictions, logits = trained_near_pytorch(texts(parts), None)
    assert "attention" in operators(captured)
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)


@needs_torch
def test_layers_of_blocks_that_stay_whole_are_found_by_one_more_pass(folder, monkeypatch):
    from tiebreak import _match as matching

    passes, match = [], matching._match
    monkeypatch.setattr(matching, "_match", lambda *given: passes.append(0) or match(*given))
    blocks = lambda: nn.Sequential(*(computing(lambda m, x: (lambda y: F.pad(y[:, :4] * y[:, 1:5], (0, 1)))(m.a(x)), a=nn.Linear(5, 5)) for _ in range(5)))  # noqa: E731
    model = computing(lambda m, x: m.last(m.blocks(x)), blocks=blocks(), last=nn.Linear(5, 3))
    batch = torch.zeros(2, 5), torch.zeros(2).long()
    captured = tiebreak.capture(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), batch, out="captured")
    assert operators(captured).count("linear") == 6 and len(passes) == 2


@needs_torch
def test_nothing_is_computed_where_channels_stay_as_they_are(folder):
    make = rows(lambda m, x: (lambda y: m.last(torch.cat([y[:, :3], y[:, 3:]], 1)))(torch.stack([relu(m.a(x)) + m.b(x)], 1).squeeze(1)))
    captured, _, _ = trained_near_pytorch(make, (8,))
    assert operators(captured) == ["linear", "linear", "relu", "residual", "linear"] or sorted(operators(captured)) == ["linear"] * 3 + ["relu", "residual"]


@needs_torch
@pytest.mark.parametrize("kind", ["OPT", "BioGpt", "GPTNeoX", "Phi"])
def test_decoders_with_later_tables_and_partial_rotations_train_and_write_near_pytorch(folder, kind):
    transformers = imported_transformers()
    sizes = {"vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 7, "pad_token_id": 1}
    more = {"OPT": {"ffn_dim": 12, "word_embed_proj_dim": 8, "dropout": 0.0, "bos_token_id": 2, "eos_token_id": 2},
            "BioGpt": {"intermediate_size": 12, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "activation_dropout": 0.0, "layerdrop": 0.0},
            "GPTNeoX": {"intermediate_size": 12, "rotary_pct": 0.5, "bos_token_id": 0, "eos_token_id": 2},
            "Phi": {"intermediate_size": 12, "bos_token_id": 0, "eos_token_id": 2}}[kind]  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)

    def make():
        model = getattr(transformers, f"{kind}ForCausalLM")(config).train()
        for tensor in model.parameters():
            # Attentions that see no difference between positions would hide errors.
            if tensor.dim() > 1:
                nn.init.normal_(tensor, std=0.5)
        return model

    captured, predictions, logits = trained_near_pytorch(make, None, "sgd")
    torch.testing.assert_close(torch.from_numpy(predictions.logits), logits, rtol=1e-3, atol=1e-4)
    assert operators(captured).count("attention") == 2 and ("rotary" in operators(captured)) == (kind in ("GPTNeoX", "Phi"))
    # The pass over caches has the same tables and rotations.
    writes_pytorchs_tokens(getattr(transformers, f"{kind}ForCausalLM")(config), captured)


@needs_torch
def test_what_is_chosen_otherwise_is_refused(folder):
    ids = torch.zeros(2, 5).long()
    text = lambda f, **parts: (computing(f, e=nn.Embedding(19, 8), last=nn.Linear(8, 3), **parts), (ids, ids[:, 0]))  # noqa: E731
    pixels = torch.zeros(2, 2, 6, 6), torch.zeros(2).long()
    seen = lambda f, **parts: (computing(f, conv=nn.Conv2d(2, 4, 3), last=nn.Linear(4, 3), **parts), pixels)  # noqa: E731
    wide = lambda f, **parts: (computing(f, a=nn.Linear(4, 4), last=nn.Linear(4, 3), **parts), None)  # noqa: E731
    here, channels = "in the model at .*test_capture_compositions.py:[0-9]+: ", "join and choose channels, dimension 1"
    for (model, batch), why in [
        (text(lambda m, x: m.last(torch.cat([m.e(x), m.e(x).relu()])[1:3, 0])), "it (makes|cuts)"),
        (text(lambda m, x: m.last(m.e(x).flip(0).mean(1))), f"aten.flip.default {here}it makes \\[2, 5, 8\\], whose channels are not.*whose positions are no positions of the same sample; {channels}"),
        (text(lambda m, x: m.last(m.e(x).reshape(5, 2, 8).transpose(0, 1)[:, 0])), f"{here}it takes a part of a tensor whose elements were moved"),
        (text(lambda m, x: m.last(torch.stack([m.e(x)[:1], m.e(x).relu()[1:]], 1).mean((0, 2)))), f"{here}it (makes|cuts|is no mean)"),
        (text(lambda m, x: m.last((m.e(x) + m.p(torch.arange(5) * 2))[:, 0]), p=nn.Embedding(9, 8)), "the constant numbers are \\[0, 2, 4, 6, 8\\]; look up torch.arange\\(T\\), also with a number added"),
        (text(lambda m, x: m.last((m.e(x) + m.p(torch.arange(5) + 2))[:, 0]), p=nn.Embedding(6, 8)), "the table has 4 positions, and a sample 5"),
        (seen(lambda m, x: m.last(torch.cat([m.conv(x), m.conv(x)], 2).mean((2, 3)))), f"aten.cat.default {here}it joins tensors along dimension 2"),
        (seen(lambda m, x: m.last(m.conv(x)[:, :, 1:, 1:].mean((2, 3)))), f"aten.slice.Tensor {here}it cuts 1 to 4 out of dimension 2 of .*; {channels}.*pixels every k-th"),
        (seen(lambda m, x: m.last(m.conv(x)[:, :, ::2, ::3].mean((2, 3)))), f"aten.slice.Tensor {here}it makes \\[2, 4, 2, 2\\]"),
        (seen(lambda m, x: m.last(F.pad(m.conv(x), (1, 1, 1, 1), value=1.0).mean((2, 3)))), f"aten.pad.default {here}it pads \\[1, 1, 1, 1\\] .*pad images by zeros alone"),
        (seen(lambda m, x: m.last(m.conv(x)[:, :, 0, 0])), f"aten.select.int {here}it makes \\[2, 4\\]"),
        (seen(lambda m, x: torch.cat([m.last(m.conv(x).mean((2, 3))), torch.eye(2)], 1)), f"aten.cat.default {here}it makes \\[2, 5\\]"),
        (wide(lambda m, x: m.last(relu(m.a(x))[:, x.argmax(0)])), "aten.argmax.default"),
        (wide(lambda m, x: (lambda y: m.last(y) + m.wide(torch.cat([y, y.flip(0)], 1)))(relu(m.a(x))), wide=nn.Linear(8, 3)), f"aten.cat.default {here}it makes \\[2, 8\\]"),
        (wide(lambda m, x: (lambda p, q: m.last(torch.stack([p, q.flip(0)])))(*relu(m.a(x)).unbind(0))), f"aten.stack.default {here}it makes \\[2, 4\\]"),
        (wide(lambda m, x: m.last(m.n(m.a(x))), n=nn.GroupNorm(2, 4)), "aten.group_norm.default in n at .*it normalises \\[2, 4\\] \\(rows\\); normalise images"),
        (wide(lambda m, x: m.last(torch.add(m.a(x), m.p, alpha=3)), p=nn.Parameter(torch.ones(4))), f"aten.add.Tensor {here}alpha is 3, of a parameter; leave alpha out"),
        (wide(lambda m, x: m.last(torch.stack([m.a(x), x]).sum(None).expand(2, 4))), f"aten.sum.* {here}it adds up \\[2, 2, 4\\].* along dimension None"),
        (wide(lambda m, x: m.last(torch.stack([m.a(x)] * 65).mean(0))), f"aten.mean.dim {here}it adds up .*; add at most 64 tensors"),
        (wide(lambda m, x: m.last(torch.stack([m.a(x), torch.ones(2, 4)]).sum(0))), f"aten.sum.dim_IntList {here}.*; add constants by x \\+ constant"),
        (wide(lambda m, x: m.last(m.a(x) ** 0.5)), "aten.pow.Tensor_Scalar .*no part of"),
        (wide(lambda m, x: m.last(m.a(x) ** 9)), "aten.pow.Tensor_Scalar .*no part of"),
        (wide(lambda m, x: m.last(2 / m.a(x))), "aten.(reciprocal|div)"),
    ]:
        said = "\n".join(captured_error(model, batch=batch))
        assert re.search(why, said), (why, said)


if torch is not None:
    one = lambda *shape: nn.Parameter(torch.ones(shape))  # noqa: E731
    row = lambda f, width=4, **parts: (computing(f, a=nn.Linear(4, width), last=nn.Linear(width, 3), **parts), torch.zeros(2, 4))  # noqa: E731
    sequence = lambda f, **parts: (computing(f, a=nn.Linear(6, 8), last=nn.Linear(8, 3), **parts), torch.zeros(2, 4, 6))  # noqa: E731
    text = lambda f, **parts: (computing(f, e=nn.Embedding(19, 8), last=nn.Linear(8, 3), **parts), torch.zeros(2, 5).long())  # noqa: E731
    image = lambda f, **parts: (computing(f, conv=nn.Conv2d(2, 4, 3), last=nn.Linear(4, 3), **parts), torch.zeros(2, 2, 6, 6))  # noqa: E731
    REPEATED = {
        "a row at each position": row(lambda m, x: m.last(relu(m.a(x).unsqueeze(1) + m.p).mean(1)), p=one(4, 4)),
        "a mean at each position": sequence(lambda m, x: m.last((m.a(x).mean(1, keepdim=True) + m.p).relu().mean(1)), p=one(4, 8)),
        "a later table": sequence(lambda m, x: m.last((relu(m.a(x))[:, :1] + m.p(torch.arange(4) + 2)).mean(1)), p=nn.Embedding(7, 8)),
        "a table": sequence(lambda m, x: m.last((relu(m.a(x))[:, :1] + m.p(torch.arange(4))).mean(1)), p=nn.Embedding(7, 8)),
        "a first row": sequence(lambda m, x: m.last((relu(m.a(x))[:, :1] + m.p(torch.zeros(4).long())).mean(1)), p=nn.Embedding(7, 8)),
        "a patch": image(lambda m, x: m.last((m.conv(x).flatten(2).transpose(1, 2)[:, :1] + m.p).mean(1)), p=one(16, 4)),
        "a difference": text(lambda m, x: m.last((m.e(x)[:, -1:] - m.p).mean(1)), p=one(1, 5, 8)),
        "a constant": sequence(lambda m, x: m.last((m.a(x)[:, :1] + torch.ones(4, 8)).mean(1))),
        "one channel": row(lambda m, x: m.last(relu(m.a(x) + m.a(x))[:, :1] + m.p), p=one(4)),
        "products of one position": sequence(lambda m, x: m.last(torch.addcmul(m.a(x), x[:, :1] @ m.p, x[:, :1] @ m.p).mean(1)), p=one(6, 8)),
        "a number of more dimensions": row(lambda m, x: m.last((m.a(x) * torch.full((1, 1, 1), 2.0)).squeeze(0))),
        "rows that are added to a product": row(lambda m, x: m.last(torch.addmm(m.p, x, m.w)), p=one(2, 4), w=one(4, 4)),
        "rows that are added to a product which is cut": (
            computing(lambda m, x: m.last(torch.addmm(m.p, x, m.w)[:, :2]), last=nn.Linear(2, 3), p=one(2, 4), w=one(4, 4)), torch.zeros(2, 4)),
        "positions that begin again": (
            computing(lambda m, x: m.last((m.a(x).view(2, 4, 2, 8) + m.p(torch.arange(2).repeat(4, 1))).view(2, 8, 8).mean(1)),
                      a=nn.Linear(6, 8), last=nn.Linear(8, 3), p=nn.Embedding(8, 8)), torch.zeros(2, 8, 6)),
    }


@needs_torch
@pytest.mark.parametrize("name", REPEATED if torch is not None else [])
def test_a_tensor_that_pytorch_repeats_to_the_shape_of_another_is_refused(folder, name):
    model, inputs = REPEATED[name]
    said = "\n".join(captured_error(model, batch=(inputs, torch.zeros(2).long())))
    assert re.search("it (adds|multiplies) \\[.*compute with tensors of one shape|what it adds is \\[2, 4\\]", said), said
