"""Each operator that capture refuses is refused with what to do instead of it."""

import os
import re
from pathlib import Path

import pytest
from captures import F, captured_error, needs_torch, nn, torch
from test_capture_compositions import computing

if torch is not None:
    ROW, IMAGE, TEXT = (torch.zeros(2, 8), (2,)), (torch.zeros(2, 3, 8, 8), (2,)), (torch.zeros(2, 5).long(), (2,))

    def of_rows(f, **parts):
        return computing(lambda m, x: m.last(f(m, m.a(x))), a=nn.Linear(8, 8), last=nn.Linear(8, 3), **parts), ROW

    def of_images(f, channels=4, **parts):
        return computing(lambda m, x: m.last(f(m, m.a(x)).mean((2, 3))), a=nn.Conv2d(3, 4, 3), last=nn.Linear(channels, 3), **parts), IMAGE

    def of_texts(f, **parts):
        return computing(lambda m, x: m.last(f(m, x)), e=nn.Embedding(19, 8), last=nn.Linear(8, 3), **parts), TEXT

    REFUSED = {
        "elu": (of_rows(lambda m, x: F.elu(x)), "use nn.ReLU, nn.LeakyReLU"),
        "softplus": (of_rows(lambda m, x: F.softplus(x)), "use nn.ReLU"),
        "mish": (of_rows(lambda m, x: F.mish(x)), "use nn.ReLU"),
        "selu": (of_rows(lambda m, x: F.selu(x)), "use nn.ReLU"),
        "celu": (of_rows(lambda m, x: F.celu(x)), "use nn.ReLU"),
        "log_sigmoid": (of_rows(lambda m, x: F.logsigmoid(x)), "use nn.ReLU"),
        "exp": (of_rows(lambda m, x: x.exp()), "use nn.ReLU"),
        "sign": (of_images(lambda m, x: m.pool(x), pool=nn.LPPool2d(2, 2)), "use nn.ReLU"),
        "softmax": (of_rows(lambda m, x: x.softmax(-1)), "leave the softmax before the loss out"),
        "gt": (of_rows(lambda m, x: torch.where(x > 0, x, 2 * x)), "make the mask of an attention alone"),
        "where": (of_rows(lambda m, x: torch.where(torch.arange(8) > 3, x, 2 * x)), "make the mask of an attention alone"),
        "einsum": (of_rows(lambda m, x: torch.einsum("nc,mc->nm", x, m.a.weight)), "write x @ weight"),
        "minimum": (of_rows(lambda m, x: torch.minimum(x, 2 * x)), "x.clamp"),
        "sqrt": (of_rows(lambda m, x: x.sqrt()), "divide by numbers alone"),
        "unfold": (of_rows(lambda m, x: x.unfold(1, 4, 4).flatten(1)), "cut tensors by slices"),
        "rot90": (of_images(lambda m, x: x.rot90(1, (2, 3))), "join and choose channels, dimension 1"),
        "alpha_dropout": (of_rows(lambda m, x: F.alpha_dropout(x, 0.1, True)), "use nn.Dropout"),
        "feature_alpha_dropout": (of_rows(lambda m, x: F.feature_alpha_dropout(x, 0.1, True)), "use nn.Dropout"),
        "feature_dropout": (of_images(lambda m, x: F.dropout2d(x)), "use nn.Dropout"),
        "instance_norm": (of_images(lambda m, x: F.instance_norm(x)), "use nn.BatchNorm2d or nn.GroupNorm"),
        "conv_transpose2d": (of_images(lambda m, x: m.b(x), b=nn.ConvTranspose2d(4, 4, 2)), "reduce the size of images"),
        "upsample_nearest2d": (of_images(lambda m, x: F.interpolate(x, scale_factor=2)), "reduce the size of images"),
        "upsample_bilinear2d": (of_images(lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear")), "reduce the size of images"),
        "pixel_shuffle": (of_images(lambda m, x: F.pixel_shuffle(x, 2), 1), "reduce the size of images"),
        "amax": (of_images(lambda m, x: x.amax((2, 3), keepdim=True)), "use a mean"),
        "adaptive_max_pool2d": (of_images(lambda m, x: F.adaptive_max_pool2d(x, 1)), "use a mean"),
        "embedding_bag": (of_texts(lambda m, x: m.bag(x), bag=nn.EmbeddingBag(19, 8)), "use nn.Embedding, and a mean"),
        "lstm": (of_texts(lambda m, x: m.r(m.e(x))[0][:, -1], r=nn.LSTM(8, 8, batch_first=True)), "use attention"),
        "gru": (of_texts(lambda m, x: m.r(m.e(x))[0][:, -1], r=nn.GRU(8, 8, batch_first=True)), "use attention"),
        "mul": (of_texts(lambda m, x: m.t(*[m.e(x)] * 3)[0][:, 0], t=nn.MultiheadAttention(8, 2, batch_first=True)), "need_weights=False"),
        "argmax": (of_texts(lambda m, x: m.e(x)[torch.arange(2), x.argmax(1)]), "take the first or the last position"),
        "cumsum": (of_texts(lambda m, x: (m.e(x) + m.p(x.cumsum(1)))[:, 0], p=nn.Embedding(99, 8)), "number the positions by torch.arange"),
        "column_stack": (of_rows(lambda m, x: torch.column_stack([x[:, :4], x[:, 4:]])), "write torch.cat([x, y], 1)"),
        "fliplr": (of_rows(lambda m, x: x.fliplr()), "write x.flip(-1)"),
        "view_as": (of_rows(lambda m, x: x.relu().view_as(x)), "x.reshape with the sizes"),
        "zeros_like": (of_rows(lambda m, x: x + torch.zeros_like(x)), "write torch.zeros"),
        "fft_fft": (of_rows(lambda m, x: torch.fft.fft(x).real), "or train a built-in model, by `kind`"),
    }


@needs_torch
@pytest.mark.parametrize("name", REFUSED if torch is not None else [])
def test_each_refused_operator_has_a_hint(folder, name):
    (model, (inputs, labels)), hint = REFUSED[name]
    refused = captured_error(model, batch=(inputs, torch.zeros(labels).long()))
    assert any(re.match(rf"aten\.{name}\.", line) and hint in line for line in refused), refused
    # The hint for operators that nobody thought of is for these alone.
    assert any("by `kind`" in line for line in refused) == (name == "fft_fft"), refused


@needs_torch
def test_what_the_program_cannot_have_is_said_of_the_models_line(folder):
    wide = computing(lambda m, x: m.last(m.a(x).mean((2, 3))), a=nn.Conv2d(3, 4, 2, padding=3), last=nn.Linear(4, 3))
    [refused] = captured_error(wide, batch=(torch.zeros(2, 3, 8, 8), torch.zeros(2).long()))
    due = r"aten.conv2d.default in a at \S+test_capture_compositions.py:\d+: its operator `conv2d` cannot be made: padding \(3\) must be below .*; use padding below the kernel's size"
    assert re.fullmatch(due, refused), refused
    named = computing(lambda m, x: m.last(getattr(m, "schön")(x)), **{"schön": nn.Linear(8, 8)}, last=nn.Linear(8, 3))
    [refused] = captured_error(named, batch=(torch.zeros(2, 8), torch.zeros(2).long()))
    assert refused.startswith("the model: ") and "network.json" not in refused and refused.endswith("give modules and parameters shorter names of ASCII"), refused


def test_no_operator_has_two_hints_or_is_captured():
    from tiebreak._graph import HANDLERS
    from tiebreak._instead import _HINTS, ALSO, INSTEAD, instead_of

    names = [name for _, names in _HINTS for name in names.split()]
    assert len(names) == len(set(names)) == len(INSTEAD)
    captured = {target.split(".")[1] for target in (*HANDLERS, *ALSO)}
    assert not captured & set(names)
    assert set(ALSO.values()) <= set(HANDLERS) and not set(ALSO) & set(HANDLERS)
    assert instead_of("aten.elu_.default") == instead_of("aten.elu.default") != instead_of("aten.fft_fft.default")


@needs_torch
def test_each_operator_that_the_page_names_is_one_of_pytorch():
    from tiebreak._cut import CUTS
    from tiebreak._graph import HANDLERS
    from tiebreak._instead import ALSO

    for target in (*HANDLERS, *CUTS, *ALSO):
        _, name, overload = target.split(".")
        assert overload in getattr(torch.ops.aten, name).overloads(), target


def test_the_page_lists_the_operators_of_the_code():
    from tiebreak._instead import table

    page = Path(__file__).parents[2] / "docs/how-to/capture.md"
    begin, end = "<!-- TIEBREAK_WRITE=1 python/tests writes this table. -->\n\n", "\n<!-- The end of the table. -->\n"
    head, rest = page.read_text().split(begin)
    found, tail = rest.split(end)
    if "TIEBREAK_WRITE" in os.environ:
        page.write_text(head + begin + table() + end + tail)
        return
    assert found == table(), "TIEBREAK_WRITE=1 writes the table again"
