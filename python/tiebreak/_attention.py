"""Attention: `scaled_dot_product_attention`, and what is the same: two products with a softmax between them."""

from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

from . import _biases
from ._biases import Bias
from ._mask import HIDDEN, inverse, padding_of
from ._matcher import INPUTS, Matcher, Refused, Value, same
from ._positions import exchanged

PADDING = (
    "use is_causal=True, or no mask for attention over all positions, or one that hides padding by its token id; in transformers, an "
    "attention_mask of encoders alone"
)


# The greatest window, which has all positions up to each.
WINDOW_MAX = 2**16


class Window(NamedTuple):
    """So many of the last positions up to each, its own included."""

    positions: int


class Scores(NamedTuple):
    """The products of heads of queries and keys, and what was done with them: a scale, a mask, a softmax, dropout."""

    q: Value
    k: Value
    scale: Optional[float] = None
    # "earlier" positions, a window of them, "all", or the id of padding, which hides its positions.
    seen: Union[str, int, Window, None] = None
    # What is added to the scores besides.
    bias: Optional[Bias] = None
    # The bound of the scaled scores, which a hyperbolic tangent approaches.
    cap: Optional[float] = None
    softmax: bool = False
    p: float = 0.0


def seen_by(mask: Any) -> Union[str, Window, None]:
    """Which positions a constant mask lets each one see: "earlier" ones, the last ones, or "all"; None if it is another mask."""
    if not isinstance(mask, Value) or mask.layout != "constant" or mask.name.dim() < 2:
        return None
    # A mask that is repeated for each sample and head is looked at once.
    tensor = mask.name[tuple(slice(0, 1 if stride == 0 else None) for stride in mask.name.stride()[:-2])]
    if str(tensor.dtype) == "torch.bool":
        seen = tensor
    elif tensor.is_floating_point() and bool(((tensor == 0) | (tensor <= HIDDEN)).all()):
        seen = tensor == 0
    else:
        return None
    rows, columns = mask.shape[-2:]
    if bool(seen.all()):
        return "all"
    if rows != columns:
        return None
    earlier = seen.new_ones(rows, columns).tril()
    if bool((seen == earlier).all()):
        return "earlier"
    # The last row says how many positions each one sees.
    window = int(seen.reshape(-1, rows, columns)[0, -1].sum())
    return Window(window) if window and bool((seen == earlier.triu(1 - window)).all()) else None


def scaled_dot_product(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    scale = a["scale"] if a["scale"] is not None else _usual_scale(a["query"])
    scores = Scores(a["query"], a["key"], scale, "earlier" if a["is_causal"] else None)
    if a["attn_mask"] is not None:
        scores = _with(m, scores, a["attn_mask"], "attn_mask")
    return _attend(m, scores._replace(softmax=True, p=a["dropout_p"]), a["value"], out, a["enable_gqa"])


def _with(m: Matcher, scores: Scores, mask: Any, name: str) -> Scores:
    """Scores with a mask, or with another addend."""
    known = isinstance(mask, Value) and (mask.layout == "entries" or (mask.layout == "constant" and seen_by(mask) is None and mask.name.dim() > 1))
    if known and (mask.layout == "entries" or mask.name.is_floating_point() or str(mask.name.dtype) == "torch.bool"):
        return scores._replace(bias=_biases.both(scores.bias, _biases.of_scores(mask)))
    return scores._replace(seen=_both(scores.seen, _of_mask(m, mask, name)))


def _of_mask(m: Matcher, mask: Any, name: str) -> Union[str, int, Window]:
    if isinstance(mask, Value) and mask.layout == "mask":
        padding = padding_of(mask, m.batch, mask.shape[-1])
        if padding is None:
            why = f"{name} does not hide the positions of padding from all positions of a sample, and no others"
            raise Refused(why, "mask padding alone: attention to earlier positions, or windows, have no counterpart with padding")
        return padding
    seen = seen_by(mask)
    if seen is None:
        raise Refused(f"{name} is no constant, and no mask of padding: other masks have no counterpart", PADDING)
    return seen


def _usual_scale(q: Value) -> float:
    return q.shape[-1] ** -0.5


def _attend(m: Matcher, scores: Scores, v: Value, out: Any, enable_gqa: bool = False) -> Value:
    q, k, v = (_one_head(value) for value in (scores.q, scores.k, v))
    if q.layout != "heads" or k.layout not in ("heads", "grouped") or k.layout != v.layout:
        raise Refused("it takes tensors that are not [B, H, T, D] of [B, T, H D]", "view and transpose q, k and v")
    (samples, heads, positions, channels), key = q.shape, k.shape
    same("the first dimension", samples, m.batch, "attend over the positions of each sample")
    groups = key[1] in (1, heads) or (k.layout == "heads" and enable_gqa)
    if key[2] != positions or key != v.shape or key[3] != channels or not groups:
        raise Refused("q, k and v have other positions or heads", "use self-attention, with enable_gqa=True for groups of heads")
    q = _usually_scaled(m, q, 1.0 if scores.scale is None else scores.scale)
    kind = "attention" if k.layout == "heads" and key[1] == heads else "grouped_attention"
    if k.layout == "grouped":
        same("the heads of k and v", k.name[1], v.name[1], "repeat both as often")
        k, v = (x._replace(name=x.name[0]) for x in (k, v))
    if scores.cap is not None:
        return _capped(m, scores, q, k, v, out)
    if scores.bias is not None:
        return _biased(m, scores, q, k, v, out)
    if isinstance(scores.seen, int):
        _one_padding(m, scores.seen)
        name = m.node("padded_attention", q.name, k.name, v.name, INPUTS, heads=heads, ignore=scores.seen, p=scores.p)
        return Value(name, "heads", tuple(out.meta["val"].shape))
    if isinstance(scores.seen, Window):
        name = m.node("window_attention", q.name, k.name, v.name, heads=heads, window=scores.seen.positions, p=scores.p)
        return Value(name, "heads", tuple(out.meta["val"].shape))
    if scores.seen != "earlier":
        kind = "bidirectional_attention"
    name = m.node(kind, q.name, k.name, v.name, heads=heads, p=scores.p)
    return Value(name, "heads", tuple(out.meta["val"].shape))


def _capped(m: Matcher, scores: Scores, q: Value, k: Value, v: Value, out: Any) -> Value:
    if scores.bias is not None or (scores.seen != "earlier" and not isinstance(scores.seen, Window)):
        raise Refused("its bounded scores have another mask than a causal one or a sliding window", "mask later positions, or leave out the bound")
    window = scores.seen.positions if isinstance(scores.seen, Window) else WINDOW_MAX
    name = m.node("capped_attention", q.name, k.name, v.name, heads=q.shape[1], window=window, cap=scores.cap, p=scores.p)
    return Value(name, "heads", tuple(out.meta["val"].shape))


def _biased(m: Matcher, scores: Scores, q: Value, k: Value, v: Value, out: Any) -> Value:
    import torch

    samples, heads, positions, channels = q.shape
    if isinstance(scores.seen, int):
        raise Refused(f"it hides the padding {scores.seen}, and adds something else to its scores", "leave one of them out")
    places, hidden = torch.arange(positions), None
    if scores.seen in ("earlier",) or isinstance(scores.seen, Window):
        behind = places - places[:, None]
        hidden = behind > 0
        if isinstance(scores.seen, Window):
            hidden = hidden | (behind <= -scores.seen.positions)
    # The network adds the bias before it divides the products by sqrt(D).
    bias = _biases.made(m, scores.bias, hidden, (samples, heads, positions, positions), math.sqrt(channels))
    name = m.node("biased_attention", q.name, k.name, v.name, bias, heads=heads, p=scores.p)
    return Value(name, "heads", tuple(out.meta["val"].shape))


def _one_head(x: Value) -> Value:
    """Rows [B, 1, T, D] as heads: both stand in one order."""
    return x._replace(layout="heads") if x.layout == "rows" and len(x.shape) == 4 and x.shape[1] == 1 else x


def _usually_scaled(m: Matcher, q: Value, scale: float) -> Value:
    """The queries, times the number by which the scale of their products differs from 1 / sqrt(D)."""
    if math.isclose(scale, _usual_scale(q), rel_tol=1e-12):
        return q
    if not math.isfinite(scale):
        raise Refused(f"scale is {scale}", "leave scale out, or give a finite number")
    return q._replace(name=m.node("gain", q.name, m.vector(q.shape[1] * q.shape[3], scale / _usual_scale(q)), tail="scale"))


def _one_padding(m: Matcher, padding: int) -> None:
    if m.padding not in (None, padding):
        raise Refused(f"it hides the id {padding}, and another attention {m.padding}", "let one id be that of padding")
    m.padding = padding


# Attention as two products.


def matmul(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    x, y = a["self"], a["other"]
    if (queries := scaled_heads(x)) is not None and isinstance(y, Value) and y.layout == "turned":
        return Value(Scores(queries[0], y.name, scale=queries[1]), "scores", tuple(out.meta["val"].shape))
    if isinstance(x, Value) and isinstance(y, Value):
        if x.layout == "heads" and y.layout == "rows" and y.shape == (*x.shape[:2], x.shape[3], x.shape[2]) and y.shape[0] == m.batch:
            # Rows [B, H D, T] that were cut into heads.
            y = Value(Value(exchanged(m, y.name), "heads", x.shape), "turned", y.shape)
        if x.layout == "heads" and y.layout == "turned":
            return Value(Scores(x, y.name), "scores", tuple(out.meta["val"].shape))
        if x.layout == "scores" and x.name.softmax and y.layout in ("heads", "grouped"):
            return _attend(m, x.name, y, out)
    why = "it is no product of attention: heads of queries and keys, then the softmax of these and heads of values"
    raise Refused(why, "use nn.Linear, or scaled_dot_product_attention; give nn.MultiheadAttention need_weights=False")


def _split_heads(x: Any) -> Any:
    """Heads that stand one behind the other, [B H, T, D], as [B, H, T, D]."""
    return x.name if isinstance(x, Value) and x.layout == "merged" else x


def batched(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    """A product of an attention whose heads stand one behind the other, [B H, T, D]."""
    x, y = map(_split_heads, (a["self"], a["mat2"]))
    made = matmul(m, {"self": x, "other": y}, out)
    if made.layout == "scores":
        return made
    return Value(made._replace(shape=y.shape[:1] + x.name.q.shape[1:3] + y.shape[3:]), "merged", tuple(out.meta["val"].shape))


def scaled_heads(x: Any) -> Optional[Tuple[Value, float]]:
    """Heads of queries that are multiplied by a number before their product with keys; None if it is another value."""
    if not isinstance(x, Value) or x.layout != "formula" or x.name.op != "mul":
        return None
    heads = [arg for arg in x.name.args if isinstance(arg, Value) and arg.layout == "heads"]
    numbers = [float(arg) for arg in x.name.args if isinstance(arg, (int, float))]
    return (heads[0], numbers[0]) if len(heads) == len(numbers) == 1 else None


def scaled(x: Value, factor: Any) -> Value:
    """Scores times a number."""
    scores = x.name
    if not isinstance(factor, (int, float)) or scores.seen is not None or scores.bias is not None or scores.softmax:
        raise Refused("the scores of an attention are multiplied by something else than numbers before mask and softmax", "use scaled_dot_product_attention")
    # c tanh(s x) is c tanh(c s x / c).
    cap = None if scores.cap is None else scores.cap * factor
    if cap is not None and not cap > 0:
        raise Refused(f"it multiplies bounded scores by {factor}", "multiply them by the number by which they were divided")
    return x._replace(name=scores._replace(scale=(1.0 if scores.scale is None else scores.scale) * factor, cap=cap))


def bounded(x: Value) -> Value:
    """The hyperbolic tangent of scores."""
    scores = x.name
    if scores.seen is not None or scores.bias is not None or scores.softmax or scores.cap is not None:
        raise Refused("it takes scores behind their mask, or bounded ones", "take the hyperbolic tangent of scores once, before their mask and their softmax")
    return x._replace(name=scores._replace(scale=1.0 if scores.scale is None else scores.scale, cap=1.0))


def divided(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    x, divisor = a["self"], a["other"]
    if not isinstance(x, Value) or x.layout != "scores" or not isinstance(divisor, (int, float)) or divisor == 0:
        raise Refused("the contract divides no tensors", "use the modules of torch.nn; only the scores of an attention may be divided by a number")
    return scaled(x, 1 / divisor)


def masked(m: Matcher, x: Value, mask: Any) -> Value:
    """Scores plus a mask of 0 and very negative numbers."""
    if x.name.softmax:
        raise Refused("the scores of an attention are masked after their softmax", "mask them before it")
    shape = tuple(getattr(mask, "shape", ()))
    if len(shape) > 4 or any(size not in (1, due) for size, due in zip(shape[::-1], x.shape[::-1])):
        raise Refused(f"its mask is {list(shape)}, and the scores are {list(x.shape)}", "give a mask of the shape of the scores")
    return x._replace(name=_with(m, x.name, mask, "the mask of its scores"))


def increased(m: Matcher, x: Value, addend: Value) -> Value:
    """Scores plus an addend. True and False are the numbers 1 and 0 there, and no mask."""
    if addend.layout == "mask" and str(addend.name.real.dtype) == "torch.bool":
        raise Refused("it adds True and False to the scores of an attention", "hide positions by masked_fill, or add numbers")
    if addend.layout == "constant" and str(addend.name.dtype) == "torch.bool":
        addend = addend._replace(name=addend.name.float())
    return masked(m, x, addend)


def added(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    """`baddbmm`: an addend times a number, and a product of queries and keys times a number."""
    x, addend = batched(m, {"self": a["batch1"], "mat2": a["batch2"]}, out), a["self"]
    if x.layout != "scores" or not isinstance(addend, Value) or addend.layout != "constant" or not addend.name.is_floating_point():
        raise Refused("it is no product of queries and keys with an addend of constants", "give nn.MultiheadAttention need_weights=False, or use scaled_dot_product_attention")
    shape, scores = x.name.q.shape, scaled(x, a["alpha"]).name
    each = addend.name.expand(addend.name.shape[:1] + x.shape[1:]) if addend.name.dim() == 3 else addend.name
    if each.dim() != 3 or each.shape[0] not in (1, shape[0] * shape[1]):
        raise Refused(f"its addend is {list(addend.shape)}, and the scores are {list(x.shape)}", "give an addend of the shape of the scores")
    each = each.reshape(shape[0], shape[1], *each.shape[1:]) if each.shape[0] > 1 else each[None]
    bias = _biases.of_scores(addend._replace(name=each), a["beta"])
    return x._replace(name=scores._replace(bias=_biases.both(scores.bias, bias)))


def _both(first: Any, second: Any) -> Any:
    """What two masks let each position see."""
    if first is None or first == second or first == "all":
        return second
    if second == "all" or (first != second and isinstance(first, Window) and second == "earlier"):
        return first
    if first == "earlier" and isinstance(second, Window):
        return second
    if isinstance(first, Window) and isinstance(second, Window):
        return min(first, second)
    raise Refused("the scores of an attention have two masks", "join the masks")


def chosen(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    """`torch.where` of scores, with a very negative number where a position is not seen."""
    x, mask, other = a["self"], a["condition"], a["other"]
    known = isinstance(mask, Value) and mask.layout in ("constant", "mask")
    number = other if isinstance(other, (int, float)) else float(other.name) if isinstance(other, Value) and other.layout == "constant" and not other.shape else 0
    if not isinstance(x, Value) or x.layout != "scores" or not known or not number <= HIDDEN:
        raise Refused("it chooses elements of activations", "use it to make the mask of an attention alone, of token ids or constants")
    return masked(m, x, mask)


def filled(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    x, mask = a["self"], a["mask"]
    known = isinstance(mask, Value) and mask.layout in ("constant", "mask")
    if not isinstance(x, Value) or x.layout != "scores" or not known or not a["value"] <= HIDDEN:
        raise Refused("it fills a part of a tensor", "use it for the scores of an attention alone, with a mask of constants or of padding, and -inf")
    if mask.layout == "mask":
        return masked(m, x, inverse(mask))
    return masked(m, x, mask._replace(name=~mask.name))


def softmax(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    x = a["self"]
    if not isinstance(x, Value) or x.layout != "scores" or a["dim"] % len(x.shape) != len(x.shape) - 1 or x.name.softmax:
        raise Refused("it is no softmax of the scores of an attention", "leave the softmax before the loss out, which cross_entropy has")
    same("dtype", str(out.meta["val"].dtype), "torch.float32", "compute in float32")
    return x._replace(name=x.name._replace(softmax=True))


def dropped(x: Value, p: float) -> Value:
    """The probabilities of an attention with dropout."""
    if not x.name.softmax or x.name.p:
        raise Refused("the scores of an attention are dropped before their softmax, or twice", "drop the probabilities once")
    return x._replace(name=x.name._replace(p=p))
