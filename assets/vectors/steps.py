#!/usr/bin/env python3
"""Golden vectors of whole training steps, from the text of docs/ARITHMETIC.md, sections 6 to 8, alone.

Trains a few tiny models for three steps each. For every step it notes the learning rate, the loss, the norm, the clip factor and the SHA-256 of every
tensor of the state, and for the first step that of every gradient. Writes steps.json beside itself. Needs only the standard library.

    python3 assets/vectors/steps.py
"""

import fnmatch
import hashlib
import json
import math
import pathlib
import random
import tomllib

from adapters import Adapters
from bert import Bert
from contract import philox
from decoders import Llama
from jobs import JOBS
from operators import Tape, Tensor, add, div, f32, map_rows, mul, pattern, sqrt, sub, tree
from parameters import Parameter, linear, norm, weight
from vit import Vit

STEPS = 3


# Section 6.


def initial(key, number, parameter):
    """Rows along the last dimension."""
    count = math.prod(parameter.shape)
    if parameter.init in ("zeros", "ones"):
        flat = [float(parameter.init == "ones")] * count
    elif isinstance(parameter.init, tuple):
        c = div(parameter.init[1], 16777216.0)
        words = (philox(key, [i & 0xFFFFFFFF, i >> 32, number, 0xFFFFFFFE])[0] for i in range(count))
        flat = [mul(float(2 * (word // 256) - (2**24 - 1)), c) for word in words]
    else:
        c = div(mul(parameter.init, sqrt(1.5)), 131072.0)
        flat = []
        for i in range(count):
            words = philox(key, [i & 0xFFFFFFFF, i >> 32, number, 0xFFFFFFFE])
            n = 2 * sum((w & 0xFFFF) + (w >> 16) for w in words) - 8 * 65535
            flat.append(mul(float(n), c))
    width = parameter.shape[-1]
    return [flat[i:i + width] for i in range(0, count, width)]


def cosine(n, span):
    folded, sign = (span - n, -1.0) if 2 * n > span else (n, 1.0)
    x = float.fromhex("0x1.921fb54442d18p+1") * (folded / span)
    y, s = x * x, 1.0
    for k in range(11, 0, -1):
        s = 1.0 - y / ((2 * k - 1) * (2 * k)) * s
    return sign * s


def power(base, n):
    product = 1.0
    while n:
        product, base, n = product * base if n % 2 else product, base * base, n // 2
    return product


def learning_rate(schedule, t, steps):
    peak, warmup = f32(schedule["peak"]), schedule.get("warmup", 0)
    if t <= warmup:
        return f32(peak * t / warmup)
    kind = schedule.get("kind", "cosine" if "floor" in schedule else "constant")
    if kind == "constant":
        return peak
    if kind == "step":
        milestones = schedule.get("milestones") or range(schedule["every"], t, schedule["every"])
        return f32(peak * power(f32(schedule["gamma"]), sum(m < t for m in milestones)))
    floor, span = f32(schedule.get("floor", 0.0)), steps - warmup
    shape = (span - (t - warmup)) / span if kind == "linear" else 0.5 * (1.0 + cosine(t - warmup, span))
    return f32(floor + (peak - floor) * shape)


def correction(beta, t):
    power = 1.0
    for _ in range(t):
        power *= beta
    return f32(1.0 - power)


def drop_of(p, key, step, first_sample):
    """The draw of one element: (number of the dropout, sample of the micro-batch, element of the sample, value)."""
    if p == 0:
        return None
    kept = 1.0 - p
    threshold, scale = min(round(kept * 2**32), 2**32 - 1), f32(1.0 / kept)
    words = {}

    def drop(number, sample, element, value):
        counter = (step, first_sample + sample, number, element // 4)
        if counter not in words:
            words[counter] = philox(key, counter)
        return mul(value, scale) if words[counter][element % 4] < threshold else 0.0

    return drop


# Section 8.3.


class Gpt:
    def __init__(self, m):
        self.vocabulary, self.context = m.get("vocabulary", 256), m["context"]
        self.layers, self.heads, self.width = m["layers"], m["heads"], m["width"]
        self.dropout, self.tied = f32(m.get("dropout", 0.0)), m.get("tied", True)
        self.gelu, self.std = m.get("gelu", "tanh"), f32(m.get("init_std", 0.02))
        self.labels = self.context
        c, projections = self.width, []
        for layer in range(self.layers):
            theirs, ours = f"transformer.h.{layer}.", f"block{layer}."
            projections += [(theirs + "attn.c_attn", ours + "attention_in", [ours + part for part in ("query", "key", "value")], c, c)]
            projections += [(theirs + module, ours + name, [ours + name], outputs, inputs) for module, name, outputs, inputs in (
                ("attn.c_proj", "attention_out", c, c), ("mlp.c_fc", "mlp_in", 4 * c, c), ("mlp.c_proj", "mlp_out", c, 4 * c))]
        self.adapters = Adapters(m, projections, 3 * self.layers + 1)

    def parameters(self):
        c, std = self.width, self.std
        projection = div(std, sqrt(float(2 * self.layers)))
        table = [weight("token_embedding", [self.vocabulary, c], std), weight("position_embedding", [self.context, c], std)]
        for layer in range(self.layers):
            name = f"block{layer}."
            table += norm(name + "norm1", c)
            table += [p for part in ("query", "key", "value") for p in linear(name + part, c, c, std)]
            table += linear(name + "attention_out", c, c, projection) + norm(name + "norm2", c)
            table += linear(name + "mlp_in", 4 * c, c, std) + linear(name + "mlp_out", c, 4 * c, projection)
        return table + norm("final_norm", c) + ([] if self.tied else [weight("head", [self.vocabulary, c], std)])

    def draw(self, rng, samples):
        token = lambda: rng.randrange(self.vocabulary)
        return [[token() for _ in range(samples * self.context)] for _ in range(2)]

    def forward(self, tape, samples, parameters, batch, factor, drop):
        count = len(parameters) - len(self.adapters.parameters())
        p, beside = iter(parameters[:count]), self.adapters.layers(tape, parameters[count:], samples)
        dropped = lambda x, number: tape.dropout(x, drop, number, samples)
        linear = lambda x, name: beside(f"block{layer}.{name}", x, next(p), next(p))
        tokens = next(p)
        x = dropped(tape.positions(tape.embedding(tokens, batch[0]), next(p)), 0)
        for layer in range(self.layers):
            u = tape.layer_norm(x, next(p), next(p))
            q, k, v = (linear(u, name) for name in ("query", "key", "value"))
            a = tape.attention(q, k, v, samples, self.heads, drop, 3 * layer + 1)
            y = dropped(linear(a, "attention_out"), 3 * layer + 2)
            x = tape.residual(x, y)
            u = tape.layer_norm(x, next(p), next(p))
            y = linear(u, "mlp_in")
            y = tape.gelu_tanh(y) if self.gelu == "tanh" else tape.gelu_erf(y)
            y = dropped(linear(y, "mlp_out"), 3 * layer + 3)
            x = tape.residual(x, y)
        x = tape.layer_norm(x, next(p), next(p))
        logits = tape.linear(x, tokens if self.tied else next(p), None, "head")
        return tape.loss(logits, batch[1], factor)


NORMALIZE = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    "mnist": ([0.1307], [0.3081]),
    "fashion_mnist": ([0.2860], [0.3530]),
    "half": ([0.5], [0.5]),
}


def pixel_of(m):
    """The number that a model makes of a byte of a plane, and how many planes have constants."""
    of_name = NORMALIZE.get(m.get("normalize"), ([], []))
    means, stds = ([f32(x) for x in m.get(key, own)] for key, own in zip(("image_mean", "image_std"), of_name))

    def pixel(byte, plane):
        value = div(float(byte), 255.0)
        plane = min(plane, len(means) - 1)
        return div(sub(value, means[plane]), stds[plane]) if means else value

    return pixel, max(len(means), 1)


class Images:
    """What models of images share."""

    labels = 1

    def draw(self, rng, samples):
        pixels = [rng.randrange(256) for _ in range(samples * self.bytes)]
        return [pixels, [rng.randrange(self.classes) for _ in range(samples)]]


class Mlp(Images):
    def __init__(self, m):
        self.bytes, self.classes, self.dropout = m["inputs"], m["classes"], f32(m.get("dropout", 0.0))
        self.widths = [m["inputs"], *m["hidden"], m["classes"]]
        self.pixel, self.planes = pixel_of(m)

    def parameters(self):
        pairs = enumerate(zip(self.widths, self.widths[1:]))
        return [p for layer, (i, o) in pairs for p in linear(f"layer{layer}", o, i, sqrt(div(2.0, float(i))))]

    def forward(self, tape, samples, parameters, batch, factor, drop):
        values = [self.pixel(v, i % self.bytes // (self.bytes // self.planes)) for i, v in enumerate(batch[0])]
        x = Tensor([values[i:i + self.bytes] for i in range(0, len(values), self.bytes)])
        last = len(parameters) // 2 - 1
        for layer in range(last):
            x = tape.relu(tape.linear(x, *parameters[2 * layer:2 * layer + 2]))
            x = tape.dropout(x, drop, layer, samples)
        return tape.loss(tape.linear(x, *parameters[2 * last:], "head"), batch[1], factor)


class Convolutions(Images):
    """What networks of convolutions share: the image, and batch normalisations with their running averages."""

    def __init__(self, m):
        self.image, self.planes, self.classes = (m["height"], m["width"]), m["planes"], m["classes"]
        self.bytes, self.dropout = m["height"] * m["width"] * m["planes"], 0.0
        self.epsilon, self.momentum = f32(m.get("norm_epsilon", 1e-5)), f32(m.get("norm_momentum", 0.1))
        self.version = m.get("convolution", 1)
        self.pixel, _ = pixel_of(m)

    @staticmethod
    def kernel(name, outputs, size, inputs):
        return [weight(name + ".weight", [outputs, size, size, inputs], sqrt(div(2.0, float(size * size * inputs))))]

    def buffers(self):
        if self.norm != "batch":
            return []
        gains = [p for p in self.parameters() if p.name.endswith(".gain")]
        return [Parameter(f"{p.name.removesuffix('.gain')}.{part}", p.shape, init, False) for p in gains
                for part, init in (("running_mean", "zeros"), ("running_var", "ones"))]

    def normed(self, tape, x, p):
        if self.norm == "layer":
            return tape.layer_norm(x, next(p), next(p), self.epsilon)
        y, moments = tape.batch_norm(x, next(p), next(p), self.epsilon)
        tape.moments.append(moments)
        return y

    def pixels(self, samples, batch):
        height, width = self.image
        byte = lambda b, y, x, c: batch[0][((b * self.planes + c) * height + y) * width + x]
        places = [(b, y, x) for b in range(samples) for y in range(height) for x in range(width)]
        return Tensor([[self.pixel(byte(*place, c), c) for c in range(self.planes)] for place in places])


class Resnet(Convolutions):
    def __init__(self, m):
        super().__init__(m)
        self.norm, self.post, self.imagenet = m.get("norm", "layer"), m.get("order") == "post", m.get("stem") == "imagenet"
        widths, blocks = m["stages"], m["blocks"]
        blocks = blocks if isinstance(blocks, list) else [blocks] * len(widths)
        self.first, inputs = widths[0], widths[0]
        self.groups = m.get("groups", 1)
        # Of each block: name, inputs, convolutions as (kernel, stride, inputs, outputs), and the stride of its shortcut if it has one.
        self.blocks = []
        for s, (width, count) in enumerate(zip(widths, blocks)):
            for b in range(count):
                stride = 2 if b == 0 and s > 0 else 1
                if m.get("block") == "bottleneck":
                    inner = width * m.get("width_per_group", 64) // 64 * self.groups
                    layers = [(1, 1, inputs, inner), (3, stride, inner, inner), (1, 1, inner, 4 * width)]
                else:
                    layers = [(3, stride, inputs, width), (3, 1, width, width)]
                outputs = layers[-1][3]
                self.blocks.append((f"stage{s}.block{b}.", inputs, layers, stride if stride == 2 or inputs != outputs else None))
                inputs = outputs
        self.last = inputs

    def parameters(self):
        table = self.kernel("stem", self.first, 7 if self.imagenet else 3, self.planes)
        table += norm("stem_norm", self.first) if self.post else []
        for name, inputs, layers, stride in self.blocks:
            shortcut = self.kernel(name + "shortcut", layers[-1][3], 1, inputs) if stride else []
            for i, (size, _, of, to) in enumerate(layers):
                conv = self.kernel(f"{name}conv{i}", to, size, of // self.groups_of(layers, size))
                if self.post:
                    table += conv + norm(f"{name}norm{i}", to)
                else:
                    table += norm(f"{name}norm{i}", of) + (shortcut if i == 0 else []) + conv
            if self.post and stride:
                table += shortcut + norm(name + "shortcut_norm", layers[-1][3])
        return table + ([] if self.post else norm("norm", self.last)) + linear("head", self.classes, self.last, sqrt(div(1.0, float(self.last))))

    def groups_of(self, layers, size):
        """A bottleneck's 3 x 3 convolution has groups."""
        return self.groups if len(layers) == 3 and size == 3 else 1

    def conv(self, tape, y, p, image, size, step, layers):
        groups = self.groups_of(layers, size)
        if groups > 1:
            return tape.grouped_conv2d(y, next(p), image, size, step, (size - 1) // 2, groups)
        return tape.conv2d(y, next(p), image, size, step, None, self.version)

    def block(self, tape, x, p, image, layers, stride):
        shortcut, y, before = x, x, image
        for i, (size, step, _, _) in enumerate(layers):
            if self.post:
                y, image = self.conv(tape, y, p, image, size, step, layers)
                y = self.normed(tape, y, p)
                y = y if i == len(layers) - 1 else tape.relu(y)
            else:
                y = tape.relu(self.normed(tape, y, p))
                if i == 0 and stride:
                    shortcut = tape.conv2d(y, next(p), before, 1, stride, None, self.version)[0]
                y, image = self.conv(tape, y, p, image, size, step, layers)
        if self.post and stride:
            shortcut = self.normed(tape, tape.conv2d(x, next(p), before, 1, stride, None, self.version)[0], p)
        x = tape.residual(shortcut, y)
        return (tape.relu(x) if self.post else x), image

    def forward(self, tape, samples, parameters, batch, factor, drop):
        p = iter(parameters)
        size, stride = (7, 2) if self.imagenet else (3, 1)
        x, image = tape.conv2d(self.pixels(samples, batch), next(p), self.image, size, stride, None, self.version)
        if self.post:
            x = tape.relu(self.normed(tape, x, p))
        if self.imagenet:
            x, image = tape.max_pool(x, image, 3, 2, 1)
        for _, _, layers, stride in self.blocks:
            x, image = self.block(tape, x, p, image, layers, stride)
        if not self.post:
            x = tape.relu(self.normed(tape, x, p))
        x = tape.mean_pool(x, image[0] * image[1])
        return tape.loss(tape.linear(x, next(p), next(p), "head"), batch[1], factor)


class Vgg11(Convolutions):
    def __init__(self, m):
        super().__init__(m)
        self.norm, self.dropout, self.classifier = m.get("norm", "none"), f32(m.get("dropout", 0.5)), m["classifier"]
        self.channels = m["channels"]

    def parameters(self):
        table, inputs = [], self.planes
        for i, outputs in enumerate(self.channels):
            table += self.kernel(f"conv{i}", outputs, 3, inputs) + [Parameter(f"conv{i}.bias", [outputs], "zeros", False)]
            table += norm(f"norm{i}", outputs) if self.norm == "batch" else []
            inputs = outputs
        std = lambda square, n: sqrt(div(square, float(n)))
        pooled, width = inputs * 49, self.classifier
        table += linear("hidden0", width, pooled, std(2.0, pooled)) + linear("hidden1", width, width, std(2.0, width))
        return table + linear("head", self.classes, width, std(1.0, width))

    def forward(self, tape, samples, parameters, batch, factor, drop):
        p, x, image = iter(parameters), self.pixels(samples, batch), self.image
        for i in range(len(self.channels)):
            x = tape.bias(tape.conv2d(x, next(p), image, 3, 1)[0], next(p))
            x = tape.relu(self.normed(tape, x, p) if self.norm == "batch" else x)
            if i in (0, 1, 3, 5, 7):
                x, image = tape.max_pool(x, image, 2, 2, 0)
        x = tape.flatten(tape.adaptive_avg_pool(x, image, (7, 7)), 49)
        for number in range(2):
            x = tape.dropout(tape.relu(tape.linear(x, next(p), next(p))), drop, number, samples)
        return tape.loss(tape.linear(x, next(p), next(p), "head"), batch[1], factor)


MODELS = {"bert": Bert, "gpt": Gpt, "llama": Llama, "mlp": Mlp, "resnet": Resnet, "vgg11": Vgg11, "vit": lambda m: Vit(m, pixel_of(m)[0])}


def digits_of(job):
    table = job.get("digits", {})

    def digits(kind):
        if kind in table.get("class", {}):
            own = table["class"][kind]
            return own["digits_a"], own["digits_b"], own.get("block", 0)
        if "all" in table:
            return table["all"], table["all"], 0
        return 3, 3, 0

    return digits


def loss_of(job, tape):
    rule = job.get("loss", {})
    smoothing, ignore = f32(rule.get("smoothing", 0.0)), rule.get("ignore")
    if smoothing == 0.0 and ignore is None:
        return tape.cross_entropy
    part = counts_labels(job)
    return lambda logits, labels, factor: tape.weighted_cross_entropy(logits, labels, factor, smoothing, ignore, part)


def counts_labels(job):
    return "ignore" in job.get("loss", {}) and job["batch"].get("micro_batches", 1) > 1


# Section 7.


def pooled(a, b):
    """The moments of the rows of both."""
    (na, means_a, m2s_a), (nb, means_b, m2s_b) = a, b
    n = add(na, nb)
    deltas = [sub(y, x) for x, y in zip(means_a, means_b)]
    means = [add(x, mul(delta, div(nb, n))) for x, delta in zip(means_a, deltas)]
    m2s = [add(add(x, y), mul(mul(delta, delta), div(mul(na, nb), n))) for x, y, delta in zip(m2s_a, m2s_b, deltas)]
    return n, means, m2s


def add_gradients(a, b):
    gradients = [map_rows(add, x, y) for x, y in zip(a[0], b[0])]
    return gradients, add(a[1], b[1]), [pooled(x, y) for x, y in zip(a[2], b[2])], add(a[3], b[3])


def tree_of_gradients(level):
    while len(level) > 1:
        level = [add_gradients(*level[i:i + 2]) if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
    return level[0]


# Section 8.4.


def clip(gradients, max_norm):
    sums = [tree([tree([mul(g, g) for g in row]) for row in gradient]) for gradient in gradients]
    size = sqrt(tree(sums))
    return size, div(max_norm, size) if max_norm < size else 1.0


class Adamw:
    slots = ("m", "v")

    def __init__(self, o, t):
        self.b1, self.b2, self.epsilon, self.decay = (f32(o[k]) for k in ("beta1", "beta2", "epsilon", "weight_decay"))
        self.c1, self.c2 = correction(self.b1, t), correction(self.b2, t)

    def update(self, p, slots, g, lr, decay):
        m = add(mul(self.b1, slots[0]), mul(sub(1.0, self.b1), g))
        v = add(mul(self.b2, slots[1]), mul(sub(1.0, self.b2), mul(g, g)))
        kept = sub(p, mul(mul(lr, decay), p)) if decay else p
        return sub(kept, mul(lr, div(div(m, self.c1), add(sqrt(div(v, self.c2)), self.epsilon)))), (m, v)


class Sgd:
    slots = ("momentum",)

    def __init__(self, o, t):
        self.momentum, self.decay = f32(o["momentum"]), f32(o["weight_decay"])

    def update(self, p, slots, g, lr, decay):
        buffer = add(mul(self.momentum, slots[0]), g)
        kept = sub(p, mul(mul(lr, decay), p)) if decay else p
        return sub(kept, mul(lr, buffer)), (buffer,)


OPTIMIZERS = {"adamw": Adamw, "sgd": Sgd}


def group_of(job, parameter):
    """The first group that names a parameter."""
    groups = job["optimizer"].get("group", [])
    return next((g for g in groups if any(fnmatch.fnmatchcase(parameter.name, n) for n in g["parameters"])), {})


def updated(optimizer, job, parameter, tensors, gradient, factor, lr):
    """The new rows of a parameter and its slots."""
    group, coupled = group_of(job, parameter), job["optimizer"].get("decay") == "coupled"
    decay = f32(group["weight_decay"]) if "weight_decay" in group else optimizer.decay if parameter.decay else 0.0
    lr = mul(lr, f32(group.get("rate_factor", 1.0)))
    pull = lambda g, p: add(g, mul(decay, p)) if coupled and decay else g
    decoupled = 0.0 if coupled else decay
    rows = [[] for _ in tensors]
    for row, values in zip(zip(*tensors), gradient):
        news = [optimizer.update(p, slots, pull(mul(g, factor), p), lr, decoupled) for (p, *slots), g in zip(zip(*row), values)]
        rows[0].append([p for p, _ in news])
        for i in range(len(tensors) - 1):
            rows[1 + i].append([slots[i] for _, slots in news])
    return rows


def moved(model, buffers, moments):
    """The running averages after a step with these moments."""
    move = lambda old, new: add(old, mul(model.momentum, sub(new, old)))
    averages = []
    for (n, means, m2s), mean, variance in zip(moments, buffers[::2], buffers[1::2]):
        k = sub(n, 1.0) if 1 < n else 1.0
        averages.append([[move(old, new) for old, new in zip(mean[0], means)]])
        averages.append([[move(old, div(m2, k)) for old, m2 in zip(variance[0], m2s)]])
    return averages


def sha256(rows):
    data = b"".join(pattern(x).to_bytes(4, "little") for row in rows for x in row)
    return hashlib.sha256(data).hexdigest()


def train(text, key, rng):
    job = tomllib.loads(text)
    model, optimizer = MODELS[job["model"]["kind"]](job["model"]), OPTIMIZERS[job["optimizer"]["kind"]]
    samples, micro_batches = job["batch"]["micro_batch"], job["batch"].get("micro_batches", 1)
    adapters = model.adapters.parameters() if hasattr(model, "adapters") else []
    table = model.parameters() + adapters
    # Beside adapters nothing else is trained.
    frozen = len(table) - len(adapters) if adapters else 0
    # For each parameter: its rows, then those of its slots.
    state = [[initial(key, i, p)] for i, p in enumerate(table)]
    state = [[rows] + [[[0.0] * len(row) for row in rows] for _ in optimizer.slots if i >= frozen] for i, [rows] in enumerate(state)]
    averages = model.buffers() if hasattr(model, "buffers") else []
    buffers = [initial(key, len(table) + i, b) for i, b in enumerate(averages)]
    factor = div(1.0, float(samples * micro_batches * model.labels))
    steps = []
    for t in range(1, STEPS + 1):
        batches = [model.draw(rng, samples) for _ in range(micro_batches)]
        level = []
        for micro, batch in enumerate(batches):
            parameters = [Tensor(tensors[0]) for tensors in state]
            tape = Tape(digits_of(job))
            tape.moments = []
            tape.loss = loss_of(job, tape)
            drop = drop_of(model.dropout, key, t, micro * samples)
            of_scores = getattr(model, "attention_dropout", model.dropout)
            tape.drop_of_scores = drop_of(of_scores, key, t, micro * samples)
            tape.drop_of_adapters = drop_of(model.adapters.dropout, key, t, micro * samples) if adapters else None
            loss = model.forward(tape, samples, parameters, batch, factor, drop)
            tape.backward()
            level.append(([p.gradient for p in parameters[frozen:]], loss, tape.moments, getattr(tape, "labels", 0.0)))
        summed, loss, moments, count = tree_of_gradients(level)
        gradients, share = summed, 1.0
        if counts_labels(job):
            share = div(float(samples * micro_batches * model.labels), count) if count else 0.0
            gradients, loss = [[[mul(g, share) for g in row] for row in rows] for rows in summed], mul(loss, share)
        size, factor_of_clip = clip(gradients, f32(job.get("clip_norm", math.inf)))
        lr = learning_rate(job["schedule"], t, job["steps"])
        rule = optimizer(job["optimizer"], t)
        trained = zip(table[frozen:], state[frozen:], gradients)
        state = state[:frozen] + [updated(rule, job, p, tensors, g, factor_of_clip, lr) for p, tensors, g in trained]
        buffers = moved(model, buffers, moments) if averages else []
        names = ["param", *optimizer.slots]
        hashes = {f"{name}/{p.name}": sha256(tensors[i]) for i, name in enumerate(names) for p, tensors in zip(table, state) if i < len(tensors)}
        hashes |= {f"buffer/{b.name}": sha256(rows) for b, rows in zip(averages, buffers)}
        scalars = {"learning_rate": lr, "loss": loss, "norm": size, "clip": factor_of_clip}
        step = {name: pattern(value) for name, value in scalars.items()} | {"batches": batches, "state": hashes}
        if t == 1:
            step["gradients"] = {f"grad/{p.name}": sha256(g) for p, g in zip(table[frozen:], summed)}
            if counts_labels(job):
                step["gradients"]["labels"] = sha256([[count]])
            for b, (n, mean, m2) in zip(averages[::2], moments):
                name = "buffer/" + b.name.removesuffix(".running_mean")
                step["gradients"] |= {f"{name}.count": sha256([[n]]), f"{name}.mean": sha256([mean]), f"{name}.m2": sha256([m2])}
        steps.append(step)
    return {"job": text, "key": key, "steps": steps}


SCHEDULES = ["peak = 1e-3\nwarmup = 10\nfloor = 1e-4", "peak = 3e-3\nwarmup = 7", "peak = 0.1\nfloor = 0.0", "peak = 1\nwarmup = 200\nfloor = 0.3",
             "peak = 3e-3\nwarmup = 7\nkind = \"linear\"", "peak = 0.1\nkind = \"linear\"\nfloor = 1e-3", "peak = 0.1\nwarmup = 4\nkind = \"cosine\"",
             "peak = 0.1\nkind = \"step\"\nevery = 3\ngamma = 0.7", "peak = 0.1\nwarmup = 5\nkind = \"step\"\nmilestones = [5, 8, 50]\ngamma = 0.1"]
# The last one rounds to another number if it is not rounded to binary64 first.
DECIMALS = ["0.1", "1e-8", "3", "1e-45", "1e-46", "3.4028235e38", "1.00000017881393432617187499"]


def scalars():
    """Learning rates [table, steps, step, pattern], corrections [beta, step, pattern], decimals [text, pattern]."""
    rates = [[text, steps, t, pattern(learning_rate(tomllib.loads(text), t, steps))]
             for text in SCHEDULES for steps in (11, 110) for t in range(1, steps + 1)]
    corrections = [[beta, t, pattern(correction(f32(float(beta)), t))]
                   for beta in ("0.8", "0.9", "0.95", "0.99", "0.999", "0.0") for t in (1, 2, 3, 10, 100, 1000, 5000)]
    return {"learning_rates": rates, "corrections": corrections,
            "decimals": [[text, pattern(f32(float(text)))] for text in DECIMALS]}


def main():
    rng = random.Random(20261122)
    runs = [{"name": name} | train(text, [rng.getrandbits(32) for _ in range(2)], rng) for name, text in JOBS.items()]
    comment = ("Made by steps.py. Scalars are binary32 patterns; batches are the integers of each micro-batch's tensors, row-major; "
               "hashes are SHA-256 over a tensor's canonical bytes, after the step; gradients are the sums of the micro-batches', not clipped. "
               + (scalars.__doc__ or ""))
    parts = [f'  "_comment": {json.dumps(comment)}']
    for name, rows in {**scalars(), "runs": runs}.items():
        body = ",\n".join("    " + json.dumps(row, separators=(",", ":")) for row in rows)
        parts.append(f'  "{name}": [\n{body}\n  ]')
    pathlib.Path(__file__).with_name("steps.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
