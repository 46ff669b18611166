"""What to do in place of PyTorch's operators that neither the contract nor a composition of its operators has."""

from __future__ import annotations

from typing import Dict, Sequence, Tuple

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
    (ACTIVATION, "elu selu celu mish softplus log_sigmoid rrelu threshold hardshrink rrelu_with_noise erf exp expm1 log log1p sin cos atan sign sgn"),
    (MEAN, "amax amin max min adaptive_max_pool2d adaptive_max_pool1d max_pool1d max_pool3d median logsumexp topk sort norm linalg_vector_norm std var prod"),
    ("use nn.AvgPool2d or nn.AdaptiveAvgPool2d of images", "avg_pool1d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool3d fractional_max_pool2d"),
    (POSITION, "argmax argmin gather take_along_dim masked_select nonzero nonzero_numpy"),
    (NORMS, "instance_norm _weight_norm_interface local_response_norm"),
    ("use attention over the positions", "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
    ("give nn.MultiheadAttention need_weights=False, or use scaled_dot_product_attention", "bmm baddbmm"),
    (MASK, "where gt lt ge le eq ne logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not tril triu masked_scatter"),
    (SMALLER, "conv_transpose1d conv_transpose2d conv_transpose3d pixel_shuffle pixel_unshuffle grid_sampler im2col col2im"),
    (SMALLER, "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d"),
    (SMALLER, "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa affine_grid_generator"),
    ("use nn.Conv2d of images [B, C, H, W]", "conv1d conv3d"),
    ("use nn.Dropout", "feature_dropout alpha_dropout feature_alpha_dropout bernoulli rand_like randn_like"),
    ("use nn.Embedding, and a mean over dimension 1 of [B, T, C]", "embedding_bag"),
    ("give the convolution padding, as one number", "reflection_pad2d replication_pad2d"),
    ("number the positions by torch.arange(T), from 0 in each sample", "cumsum"),
    ("write x @ weight, or use nn.Linear", "einsum bilinear tensordot mv dot outer"),
    ("write products and sums one after another", "addcdiv"),
    (JOINED, "rot90 fliplr flipud vstack dstack column_stack scatter scatter_add"),
    ("write min and max with a number as x.clamp(max=1) and x.clamp(min=0)", "minimum maximum"),
    ("divide by numbers alone, or use nn.LayerNorm or nn.RMSNorm", "reciprocal sqrt true_divide linalg_norm"),
    (CUT, "dsplit unfold as_strided diagonal"),
    ("use torch.nn.CrossEntropyLoss(), of classes", "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div nll_loss2d"),
)
INSTEAD: Dict[str, str] = {name: hint for hint, names in _HINTS for name in names.split()}
# What is said of an operator that nobody thought of.
ELSE = "write it with what docs/how-to/capture.md lists, or train a built-in model, by `kind` of a job's [model]"


def instead_of(target: str) -> str:
    """What to do in place of an operator, by its name in a graph, such as `aten.elu.default`."""
    name = target.split(".")[1] if target.startswith("aten.") else ""
    return INSTEAD.get(name) or INSTEAD.get(name.rstrip("_"), ELSE)


def table() -> str:
    """The operators of `torch.export` by name, as docs/how-to/capture.md has them: those that are captured, and what to do in place of others."""
    from ._cut import CUTS
    from ._graph import HANDLERS
    from ._mask import OF_ELEMENTS

    names = sorted({name.split(".")[1] for name in (*HANDLERS, *CUTS)})
    masks = sorted({name.split(".")[1] for name in OF_ELEMENTS} - set(names))
    rows = ["| operators | captured |", "|---|---|", f"| {_listed(names)} | as the table above says |", f"| {_listed(masks)} | in masks of padding alone |"]
    rows += [f"| {_listed(sorted(name for name in hinted.split() if name not in masks))} | no: {hint} |" for hint, hinted in _HINTS]
    return "".join(f"{row}\n" for row in rows)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
