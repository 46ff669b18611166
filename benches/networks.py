"""Networks over images in PyTorch, on weights under this project's names and in its layouts: what `gradient_error.py` compares gradients with.

`trained_weights` gives random weights for steps whose time is measured (`costs.py`, `speed.py`). Each has SAMPLES, the bytes of a record of its data, a table of parameters (name, shape, standard deviation or, of vectors, the value) as
docs/ARITHMETIC.md, section 8.3, lists them, and a forward pass.
"""

import numpy as np
import torch
import torch.nn.functional as F

EPSILON, RECORD, PIXELS, CLASSES = 1e-5, 3073, 3 * 32 * 32, 10


def trained_weights(network):
    """Random weights by name, and the leaves that an optimizer updates. A kernel's leaf lies in memory as PyTorch's own layers have it."""
    weights, leaves = {}, []
    for name, shape, value in network.table():
        if len(shape) == 1:
            leaf = torch.full(shape, float(value))
        else:
            leaf = torch.randn(shape if len(shape) == 2 else [shape[i] for i in (0, 3, 1, 2)]) * float(value)
        leaves.append(leaf.requires_grad_())
        weights[name] = leaf if len(shape) < 4 else leaf.permute(0, 2, 3, 1)
    return weights, leaves


def root(square):
    return np.sqrt(np.float32(square))


def linear(name, outputs, inputs, square):
    return [(f"{name}.weight", (outputs, inputs), root(square)), (f"{name}.bias", (outputs,), 0)]


def kernel(name, outputs, size, inputs):
    return (f"{name}.weight", (outputs, size, size, inputs), root(np.float32(2.0) / np.float32(size * size * inputs)))


def norm(name, channels):
    return [(f"{name}.gain", (channels,), 1), (f"{name}.bias", (channels,), 0)]


def conv(w, x, name, stride=1, padding=1):
    return F.conv2d(x, w[f"{name}.weight"].permute(0, 3, 1, 2), w.get(f"{name}.bias"), stride, padding)


def batch_norm(w, x, name):
    return F.batch_norm(x, None, None, w[f"{name}.gain"], w[f"{name}.bias"], True, 0.0, EPSILON)


class Mlp:
    SAMPLES, RECORD = 64, RECORD

    def __init__(self, hidden, inputs=PIXELS, classes=CLASSES):
        self.widths = [inputs, *hidden, classes]

    def table(self):
        pairs = enumerate(zip(self.widths, self.widths[1:]))
        return sum((linear(f"layer{i}", o, n, np.float32(2.0) / np.float32(n)) for i, (n, o) in pairs), [])

    def forward(self, w, x):
        x = x.flatten(1)
        for i in range(len(self.widths) - 1):
            x = F.linear(F.relu(x) if i else x, w[f"layer{i}.weight"], w[f"layer{i}.bias"])
        return x


class Vgg11:
    """Without dropout."""

    SAMPLES, RECORD, CHANNELS, POOLED = 16, RECORD, [64, 128, 256, 256, 512, 512, 512, 512], (0, 1, 3, 5, 7)

    def __init__(self, classifier, normed):
        self.classifier, self.normed = classifier, normed

    def table(self):
        table, inputs = [], 3
        for i, outputs in enumerate(self.CHANNELS):
            table += [kernel(f"conv{i}", outputs, 3, inputs), (f"conv{i}.bias", (outputs,), 0)]
            table += norm(f"norm{i}", outputs) if self.normed else []
            inputs = outputs
        pooled, k = 49 * inputs, self.classifier
        table += linear("hidden0", k, pooled, np.float32(2.0) / np.float32(pooled)) + linear("hidden1", k, k, np.float32(2.0) / np.float32(k))
        return table + linear("head", CLASSES, k, np.float32(1.0) / np.float32(k))

    def forward(self, w, x):
        for i in range(len(self.CHANNELS)):
            x = conv(w, x, f"conv{i}")
            x = F.relu(batch_norm(w, x, f"norm{i}") if self.normed else x)
            x = F.max_pool2d(x, 2) if i in self.POOLED else x
        x = F.adaptive_avg_pool2d(x, 7).flatten(1)
        for name in ("hidden0", "hidden1"):
            x = F.relu(F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"]))
        return F.linear(x, w["head.weight"], w["head.bias"])


class Resnet50:
    """As torchvision's, with the stem of networks for small images."""

    SAMPLES, RECORD, STAGES, BLOCKS = 16, RECORD, [64, 128, 256, 512], [3, 4, 6, 3]

    def blocks(self):
        """For each block: name, inputs, width, stride, and True if it has a shortcut convolution."""
        inputs = self.STAGES[0]
        for stage, (width, count) in enumerate(zip(self.STAGES, self.BLOCKS)):
            for block in range(count):
                stride = 2 if stage and not block else 1
                yield f"stage{stage}.block{block}", inputs, width, stride, stride == 2 or inputs != 4 * width
                inputs = 4 * width

    def table(self):
        table = [kernel("stem", self.STAGES[0], 3, 3), *norm("stem_norm", self.STAGES[0])]
        for name, inputs, width, _, projects in self.blocks():
            for i, (of, to, size) in enumerate([(inputs, width, 1), (width, width, 3), (width, 4 * width, 1)]):
                table += [kernel(f"{name}.conv{i}", to, size, of), *norm(f"{name}.norm{i}", to)]
            if projects:
                table += [kernel(f"{name}.shortcut", 4 * width, 1, inputs), *norm(f"{name}.shortcut_norm", 4 * width)]
        last = 4 * self.STAGES[-1]
        return table + linear("head", CLASSES, last, np.float32(1.0) / np.float32(last))

    def forward(self, w, x):
        x = F.relu(batch_norm(w, conv(w, x, "stem"), "stem_norm"))
        for name, _, _, stride, projects in self.blocks():
            y = F.relu(batch_norm(w, conv(w, x, f"{name}.conv0", 1, 0), f"{name}.norm0"))
            y = F.relu(batch_norm(w, conv(w, y, f"{name}.conv1", stride), f"{name}.norm1"))
            y = batch_norm(w, conv(w, y, f"{name}.conv2", 1, 0), f"{name}.norm2")
            if projects:
                x = batch_norm(w, conv(w, x, f"{name}.shortcut", stride, 0), f"{name}.shortcut_norm")
            x = F.relu(x + y)
        return F.linear(x.mean((2, 3)), w["head.weight"], w["head.bias"])
