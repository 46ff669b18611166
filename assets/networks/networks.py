#!/usr/bin/env python3
"""Writes the network files beside it: the built-in models as lists of nodes, an encoder of padded texts, and a decoder that is no built-in model.

`network::tests` compares the programs of the built-in models with the built-in ones; for the Llama tests compare logits.

    python3 assets/networks/networks.py
"""

import json
import struct
from pathlib import Path


def f32(x):
    """The double that is the binary32 nearest to x."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def parameter(name, shape, init="zeros", decay=0.1):
    """A parameter; matrices, tables and kernels decay."""
    made = {"name": name, "shape": shape, "init": init}
    return {**made, "weight_decay": decay} if len(shape) > 1 else made


def weight(name, shape, std):
    return parameter(name, shape, {"normal": f32(std)})


def node(name, operator, *inputs, **attributes):
    made = {"name": name, "operator": operator, "inputs": list(inputs)}
    return {**made, "attributes": attributes} if attributes else made


def network(inputs, labels, parameters, nodes, **more):
    optimizer = {"kind": "adamw", "beta1": 0.5, "beta2": 0.95, "epsilon": 1.0}
    return {"format": "tiebreak network 1", "micro_batch": 2, "micro_batches": 3, "inputs": inputs, "labels": labels,
            "parameters": parameters, "nodes": nodes, "optimizer": optimizer, "clip_norm": 1.0, **more}


def mlp():
    parameters, nodes, x = [], [node("pixels", "pixels", "inputs")], "pixels"
    for layer, (inputs, outputs) in enumerate([(7, 5), (5, 3)]):
        name = f"layer{layer}"
        std = f32(f32(2 / f32(inputs)) ** 0.5)
        parameters += [weight(f"{name}.weight", [outputs, inputs], std), parameter(f"{name}.bias", [outputs])]
        nodes.append(node(name, "linear", x, f"{name}.weight", f"{name}.bias"))
        x = name
        if layer == 0:
            nodes += [node("layer0.relu", "relu", x), node("layer0.dropout", "dropout", "layer0.relu", p=0.25)]
            x = "layer0.dropout"
    return network({"name": "pixels", "shape": [2, 7], "below": 256}, {"shape": [2], "below": 3}, parameters, nodes)


def resnet():
    """torchvision's order of layers, two stages of one basic block."""
    parameters, nodes = [], [node("pixels", "pixel_image", "inputs")]

    def conv(name, x, inputs, outputs, kernel, stride):
        std = f32(f32(2 / f32(kernel * kernel * inputs)) ** 0.5)
        parameters.append(weight(f"{name}.weight", [outputs, kernel, kernel, inputs], std))
        nodes.append(node(name, "conv2d_v2", x, f"{name}.weight", stride=stride, padding=kernel // 2))
        return name

    def norm(name, x, channels):
        parameters.extend([parameter(f"{name}.gain", [channels], "ones"), parameter(f"{name}.bias", [channels])])
        nodes.append(node(name, "batch_norm", x, f"{name}.gain", f"{name}.bias", epsilon=1e-5))
        return name

    def plain(name, operator, *x):
        nodes.append(node(name, operator, *x))
        return name

    x = plain("stem_norm.relu", "relu", norm("stem_norm", conv("stem", "pixels", 2, 3, 3, 1), 3))
    inputs = 3
    for stage, outputs in enumerate([3, 5]):
        name = f"stage{stage}.block0"
        stride = 1 if stage == 0 else 2
        y = norm(f"{name}.norm0", conv(f"{name}.conv0", x, inputs, outputs, 3, stride), outputs)
        y = plain(f"{name}.norm0.relu", "relu", y)
        y = norm(f"{name}.norm1", conv(f"{name}.conv1", y, outputs, outputs, 3, 1), outputs)
        if stage == 1:
            x = norm(f"{name}.shortcut_norm", conv(f"{name}.shortcut", x, inputs, outputs, 1, 2), outputs)
        x = plain(f"{name}.relu", "relu", plain(f"{name}.residual", "residual", x, y))
        inputs = outputs
    x = plain("pool", "mean_pool", x)
    parameters += [weight("head.weight", [4, 5], f32(f32(1 / f32(5)) ** 0.5)), parameter("head.bias", [4])]
    plain("head", "linear", x, "head.weight", "head.bias")
    inputs = {"name": "pixels", "shape": [2, 2, 6, 6], "below": 256}
    return network(inputs, {"shape": [2], "below": 4}, parameters, nodes, norm_momentum=0.1)


def gpt():
    vocabulary, context, layers, heads, width = 19, 5, 2, 2, 8
    projection = f32(f32(0.02) / f32((2 * layers) ** 0.5))
    parameters = [weight("token_embedding", [vocabulary, width], 0.02), weight("position_embedding", [context, width], 0.02)]
    nodes = []

    def made(name, operator, *x, **attributes):
        nodes.append(node(name, operator, *x, **attributes))
        return name

    def norm(name, x):
        parameters.extend([parameter(f"{name}.gain", [width], "ones"), parameter(f"{name}.bias", [width])])
        return made(name, "layer_norm", x, f"{name}.gain", f"{name}.bias", epsilon=1e-5)

    def linear(name, x, outputs, inputs, std=0.02):
        parameters.extend([weight(f"{name}.weight", [outputs, inputs], std), parameter(f"{name}.bias", [outputs])])
        return made(name, "linear", x, f"{name}.weight", f"{name}.bias")

    x = made("tokens_embedded", "embedding", "token_embedding", "inputs")
    x = made("embedding", "position_embedding", x, "position_embedding")
    x = made("embedding.dropout", "dropout", x, p=0.1)
    for layer in range(layers):
        name = f"block{layer}"
        y = norm(f"{name}.norm1", x)
        qkv = [linear(f"{name}.{part}", y, width, width) for part in ("query", "key", "value")]
        y = made(f"{name}.attention", "attention", *qkv, heads=heads, p=0.1)
        y = linear(f"{name}.attention_out", y, width, width, projection)
        y = made(f"{name}.attention_out.dropout", "dropout", y, p=0.1)
        x = made(f"{name}.residual1", "residual", x, y)
        y = linear(f"{name}.mlp_in", norm(f"{name}.norm2", x), 4 * width, width)
        y = linear(f"{name}.mlp_out", made(f"{name}.gelu", "gelu", y), width, 4 * width, projection)
        y = made(f"{name}.mlp_out.dropout", "dropout", y, p=0.1)
        x = made(f"{name}.residual2", "residual", x, y)
    made("head", "matmul", norm("final_norm", x), "token_embedding")
    rows = 2 * context
    return network({"name": "tokens", "shape": [rows], "below": vocabulary}, {"shape": [rows], "below": vocabulary},
                   parameters, nodes)


def encoder():
    """A classifier of texts of six positions or fewer, by the token 0 behind them."""
    vocabulary, context, heads, width = 19, 6, 2, 8
    parameters, nodes = [weight("words", [vocabulary, width], 0.5), weight("positions", [context, width], 0.5)], []

    def made(name, operator, *x, **attributes):
        nodes.append(node(name, operator, *x, **attributes))
        return name

    def linear(name, x, outputs):
        parameters.extend([weight(f"{name}.weight", [outputs, width], 0.5), parameter(f"{name}.bias", [outputs])])
        return made(name, "linear", x, f"{name}.weight", f"{name}.bias")

    x = made("embedded", "padded_embedding", "words", "inputs", ignore=0)
    x = made("placed", "position_embedding", x, "positions")
    for layer in range(2):
        name = f"block{layer}"
        qkv = [linear(f"{name}.{part}", x, width) for part in ("query", "key", "value")]
        y = made(f"{name}.attention", "padded_attention", *qkv, "inputs", heads=heads, ignore=0, p=0.1)
        y = made(f"{name}.residual", "residual", x, linear(f"{name}.out", y, width))
        parameters.extend([parameter(f"{name}.norm.gain", [width], "ones"), parameter(f"{name}.norm.bias", [width])])
        x = made(f"{name}.norm", "layer_norm", y, f"{name}.norm.gain", f"{name}.norm.bias", epsilon=1e-5)
    linear("head", made("first", "first_position", x), 3)
    return network({"name": "ids", "shape": [2, context], "below": vocabulary}, {"shape": [2], "below": 3}, parameters, nodes)


def llama():
    """The built-in model makes its rotary tables before the first block, so that its program has another order."""
    vocabulary, context, layers, heads, own, width, hidden = 19, 5, 2, 4, 2, 8, 12
    keys = width // heads * own
    parameters, nodes = [weight("token_embedding", [vocabulary, width], 0.5)], []

    def made(name, operator, *x, **attributes):
        nodes.append(node(name, operator, *x, **attributes))
        return name

    def norm(name, x):
        parameters.append(parameter(f"{name}.gain", [width], "ones"))
        return made(name, "rms_norm", x, f"{name}.gain", epsilon=1e-5)

    def linear(name, x, outputs, inputs):
        parameters.append(weight(f"{name}.weight", [outputs, inputs], 0.5))
        return made(name, "matmul", x, f"{name}.weight")

    x = made("embedding", "embedding", "token_embedding", "inputs")
    for layer in range(layers):
        name = f"block{layer}"
        y = norm(f"{name}.norm1", x)
        q, k, v = [linear(f"{name}.{part}", y, size, width) for part, size in (("query", width), ("key", keys), ("value", keys))]
        q, k = [made(f"{x}_rotary", "rotary", x, heads=of, theta=10000) for x, of in ((q, heads), (k, own))]
        y = linear(f"{name}.attention_out", made(f"{name}.attention", "grouped_attention", q, k, v, heads=heads, p=0), width, width)
        x = made(f"{name}.residual1", "residual", x, y)
        y = norm(f"{name}.norm2", x)
        gate, up = [linear(f"{name}.{part}", y, hidden, width) for part in ("gate", "up")]
        y = linear(f"{name}.down", made(f"{name}.swiglu", "swiglu", gate, up), width, hidden)
        x = made(f"{name}.residual2", "residual", x, y)
    x = norm("final_norm", x)
    parameters.append(weight("head", [vocabulary, width], 0.5))
    made("logits", "matmul", x, "head")
    rows = 2 * context
    return network({"name": "tokens", "shape": [rows], "below": vocabulary}, {"shape": [rows], "below": vocabulary},
                   parameters, nodes)


def decoder():
    """Positions by a table and by rotation, heads that share keys, layers beside one another, and operators that no decoder has."""
    vocabulary, context, width, hidden = 11, 7, 8, 12
    parameters, nodes = [], []

    def tensor(name, *shape):
        is_gain = len(shape) == 1 and not name.endswith("bias")
        parameters.append(weight(name, [*shape], 0.5) if len(shape) > 1 else parameter(name, [*shape], "ones" if is_gain else "zeros"))
        return name

    def made(name, operator, *x, **attributes):
        nodes.append(node(name, operator, *x, **attributes))
        return name

    x = made("embedded", "padded_embedding", tensor("token_embedding", vocabulary, width), "inputs", ignore=0)
    x = made("placed", "position_embedding", x, tensor("positions", context + 2, width))
    x = made("typed", "first_row", x, tensor("kinds", 2, width))
    x = made("dropped", "dropout", x, p=0.25)
    normed = made("normed", "rms_norm", x, tensor("norm", width), epsilon=1e-5)
    q = made("query0", "matmul", normed, tensor("query", width, width))
    q = made("query1", "head_rms_norm", q, tensor("query_norm", 2), heads=4, epsilon=1e-5)
    q = made("query2", "rotary", q, heads=4, theta=100)
    k = made("key1", "rotary", made("key0", "matmul", normed, tensor("key", width // 2, width)), heads=2, theta=100)
    v = made("value0", "matmul", normed, tensor("value", width // 2, width))
    attended = made("attended", "grouped_attention", q, k, v, heads=4, p=0.25)
    y, gate = [made(name, "matmul", normed, tensor(f"mlp_{name}", hidden, width)) for name in ("in", "gate")]
    y = made("scaled", "gain", made("gated", "swiglu", gate, y), tensor("mlp_scale", hidden))
    y = made("out", "linear", y, tensor("mlp_out", width, hidden), tensor("mlp_bias", width))
    x = made("stream", "residual", x, made("beside", "residual", attended, y))
    u = made("biased", "bias", made("rowed", "rows", x), tensor("more_bias", width))
    clipped, erf, gate, swish, tanh, gelu = [
        made(f"curve_{name}", name, u) for name in ("relu", "gelu_erf", "sigmoid", "silu", "tanh", "gelu")]
    curves = made("curves", "residual", made("clipped", "mul", clipped, gate), made("erfs", "mul", erf, tanh))
    x = made("bent", "residual", x, made("more", "residual", curves, made("swished", "residual", swish, gelu)))
    x = made("both", "residual", x, made("again", "attention", x, normed, x, heads=1, p=0))
    x = made("last", "layer_norm", x, tensor("last_norm", width), tensor("last_bias", width), epsilon=1e-5)
    made("logits", "matmul", x, tensor("head", vocabulary, width))
    return network({"name": "tokens", "shape": [2, context], "below": vocabulary}, {"shape": [2 * context], "below": vocabulary},
                   parameters, nodes)


if __name__ == "__main__":
    for made in (mlp, resnet, gpt, llama, encoder, decoder):
        text = json.dumps(made(), indent=1)
        (Path(__file__).parent / f"{made.__name__}.json").write_text(text + "\n")
