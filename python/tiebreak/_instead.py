"""What to do in place of PyTorch's operators that neither the contract nor a composition of its operators has."""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

from ._joined import JOINED

ACTIVATION = "use nn.ReLU, nn.LeakyReLU, nn.Hardswish, nn.SiLU, nn.GELU, nn.Tanh or nn.Sigmoid"
MEAN = "use a mean over the pixels or the positions"
POSITION = "take the first or the last position of each sample, x[:, 0] or x[:, -1]"
NORMS = "use nn.BatchNorm2d or nn.GroupNorm, or nn.LayerNorm or nn.RMSNorm over the last dimension"
MASK = "use it to make the mask of an attention alone, of token ids or constants"
SMALLER = "keep or reduce the size of images, by strides, nn.MaxPool2d, nn.AvgPool2d or nn.AdaptiveAvgPool2d"
CUT = "cut tensors by slices, split or chunk"

# Each hint, and the operators that have it: names of `aten`, without their overloads.
_HINTS: Tuple[Tuple[str, str], ...] = (
    (ACTIVATION, "elu selu celu mish softplus log_sigmoid rrelu threshold hardshrink rrelu_with_noise exp expm1 log log1p sin cos atan sign sgn"),
    (MEAN, "amax amin max min adaptive_max_pool2d adaptive_max_pool1d max_pool1d max_pool3d median logsumexp topk sort norm linalg_vector_norm std var prod"),
    ("use nn.AvgPool2d or nn.AdaptiveAvgPool2d of images", "avg_pool1d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool3d fractional_max_pool2d"),
    (POSITION, "argmax argmin gather take_along_dim masked_select nonzero nonzero_numpy"),
    (NORMS, "instance_norm _weight_norm_interface local_response_norm"),
    ("use attention over the positions", "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
    (MASK, "gt lt ge le eq ne logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not tril triu masked_scatter"),
    (SMALLER, "conv_transpose1d conv_transpose2d conv_transpose3d pixel_shuffle pixel_unshuffle grid_sampler im2col col2im"),
    (SMALLER, "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d"),
    (SMALLER, "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa affine_grid_generator"),
    ("use nn.Conv2d of images [B, C, H, W]", "conv3d"),
    ("use nn.Dropout", "feature_dropout alpha_dropout feature_alpha_dropout bernoulli rand_like randn_like"),
    ("use nn.Embedding, and a mean over dimension 1 of [B, T, C]", "embedding_bag"),
    ("give the convolution padding, as one number", "reflection_pad2d replication_pad2d"),
    ("number the positions by torch.arange(T), from 0 in each sample", "cumsum"),
    ("write x @ weight, or use nn.Linear", "einsum bilinear tensordot mv dot outer"),
    ("write products and sums one after another", "addcdiv"),
    (JOINED, "rot90 vstack dstack scatter scatter_add"),
    ("write torch.cat([x, y], 1)", "column_stack"),
    ("write x.flip(-1), of channels alone", "fliplr flipud"),
    ("write x.flatten(1) or x.reshape with the sizes", "ravel view_as"),
    ("write torch.zeros, torch.ones or torch.full with the sizes", "zeros_like ones_like full_like new_zeros new_ones new_full"),
    ("write min and max with a number as x.clamp(max=1) and x.clamp(min=0)", "minimum maximum"),
    ("divide by numbers alone, or use nn.LayerNorm or nn.RMSNorm", "reciprocal sqrt linalg_norm"),
    (CUT, "dsplit unfold as_strided diagonal"),
    ("use torch.nn.CrossEntropyLoss(), of classes", "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div nll_loss2d"),
)
INSTEAD: Dict[str, str] = {name: hint for hint, names in _HINTS for name in names.split()}
# What is said of an operator that nobody thought of.
ELSE = "write it with what docs/how-to/capture.md lists, or train a built-in model, by `kind` of a job's [model]"


# Other names that PyTorch has for operators.
_ALSO: Tuple[Tuple[str, str], ...] = (
    ("sub.Tensor", "subtract.Tensor"), ("sub_.Tensor", "subtract_.Tensor"), ("mul.Tensor", "multiply.Tensor"), ("mul_.Tensor", "multiply_.Tensor"),
    ("div.Tensor", "divide.Tensor true_divide.Tensor"), ("div_.Tensor", "divide_.Tensor true_divide_.Tensor"), ("cat.default", "concat.default concatenate.default"),
    ("transpose.int", "swapdims.default"), ("movedim.int", "moveaxis.int"), ("neg.default", "negative.default"), ("neg_.default", "negative_.default"),
    ("abs.default", "absolute.default"),
)  # fmt: skip
ALSO = {f"aten.{name}": f"aten.{usual}" for usual, names in _ALSO for name in names.split()}


def named_once(graph: Any) -> None:
    """Gives each operator of a graph its usual name."""
    import torch

    for node in graph.nodes:
        usual = ALSO.get(str(node.target))
        if usual is not None:
            _, name, overload = usual.split(".")
            node.target = getattr(getattr(torch.ops.aten, name), overload)


def instead_of(target: str) -> str:
    """What to do in place of an operator, by its name in a graph, such as `aten.elu.default`."""
    name = target.split(".")[1] if target.startswith("aten.") else ""
    return INSTEAD.get(name) or INSTEAD.get(name.rstrip("_"), ELSE)


def table() -> str:
    """The operators of `torch.export` by name, as docs/how-to/capture.md has them: those that are captured, and what to do in place of others."""
    from ._cut import CUTS
    from ._graph import HANDLERS
    from ._mask import COUNTED, GATHER, OF_ELEMENTS

    names = sorted({_short(name) for name in (*HANDLERS, *CUTS, *ALSO)})
    masks = sorted({_short(name) for name in (*OF_ELEMENTS, GATHER, COUNTED)} - set(names))
    of_masks = {name.split(".")[0] for name in masks}
    rows = ["| operators | captured |", "|---|---|", f"| {_listed(names)} | as the table above says |", f"| {_listed(masks)} | in masks of padding alone |"]
    rows += [f"| {_listed(sorted(name for name in hinted.split() if name not in of_masks))} | no: {hint} |" for hint, hinted in _HINTS if not {*hinted.split()} <= of_masks]
    return "".join(f"{row}\n" for row in rows)


def _short(target: str) -> str:
    """An operator's name with its overload, unless that is the default."""
    return target[len("aten.") :].replace(".default", "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
