#!/usr/bin/env python3
"""Golden logits of decoders over caches, from the text of docs/INFERENCE.md and docs/ARITHMETIC.md alone.

The page says that chunks and batches change no bit. So each text is computed at once, by itself, and there are no caches here. Weights and texts
are those of tests/common/cached.rs. Writes inference.json beside itself. Needs only the standard library.

    python3 assets/vectors/inference.py
"""

import json
import math
import pathlib

from contract import philox
from decoders import Llama
from operators import INF, Tape, Tensor, columns, div, exp, f32, greatest, mul, of_pattern, pattern, product, sub, tree
from steps import Gpt

# A token whose embedding holds infinities.
BAD = 10
NAN, MARKED, LEAST = 0x7FC00000, 0x7F800000, 0x00800000


def by_units(row):
    """The unit of a head of values, and the values divided by it."""
    absmax = max(pattern(x) & 0x7FFFFFFF for x in row)
    if absmax >= MARKED:
        return of_pattern(NAN), [0.0] * len(row)
    unit = of_pattern(max(absmax & MARKED, LEAST))
    return unit, [div(x, unit) for x in row]


def weighted(p, units, values, digits):
    """Steps 4 and 5: probabilities [n][S] of the positions 0, 1, .., units [S] and values [S][D] -> [n][D]."""
    shares = [[0.0 if i < j else mul(x, unit) for j, (x, unit) in enumerate(zip(row, units))] for i, row in enumerate(p)]
    return product(shares, columns(values), (*digits[:2], 0))


class Inference(Tape):
    def __init__(self, digits, context):
        super().__init__(digits)
        self.context = context

    def loss(self, logits, labels, factor):
        return logits

    def attention(self, q, k, v, samples, heads, drop, number):
        n, d = len(q.rows), len(q.rows[0]) // heads
        parts = []
        for h in range(heads):
            qs, ks, vs = ([row[h * d:h * d + d] for row in x.rows] for x in (q, k, v))
            empty = [[0.0] * d] * (self.context - n)
            units, values = zip(*map(by_units, vs))
            keys, units, values = ks + empty + [[0.0] * d], [*units] + [0.0] * (len(empty) + 1), [*values] + empty + [[1.0] * d]
            r, p = div(1.0, sqrt_of(d)), []
            for i, row in enumerate(product(qs, keys, self.digits("scores"))):
                z = [-INF if i < j else mul(x, r) for j, x in enumerate(row)]
                e = [exp(sub(x, greatest(z))) for x in z]
                total = tree(e)
                p.append([div(x, total) for x in e])
            parts.append(weighted(p, units, values, self.digits("values")))
        return self.record([sum((part[i] for part in parts), []) for i in range(n)], None)


def sqrt_of(d):
    return f32(math.sqrt(d))


def weights(model, key):
    for number, parameter in enumerate(model.parameters()):
        count, width = math.prod(parameter.shape), parameter.shape[-1]
        flat = [f32(philox([key, 0], [i, 0, number, 0])[0] / 2**30 - 2.0) for i in range(count)]
        if parameter.name == "token_embedding":
            for i in range(BAD * width, (BAD + 1) * width):
                flat[i] = INF if i % 3 == 0 else flat[i]
        yield Tensor([flat[i:i + width] for i in range(0, count, width)])


def texts(context):
    text = lambda key, length: [(i * i + 3 * i * key + key) % BAD for i in range(length)]
    second = text(2, 7)
    second[5] = BAD
    return [text(1, context), second, text(5, 6)]


def logits(model, key, digits):
    for text in texts(model.context):
        tape = Inference(digits, model.context)
        rows = model.forward(tape, 1, list(weights(model, key)), [text, None], None, None).rows
        yield [[pattern(x) for x in row] for row in rows]


def main():
    # The page's example.
    units, values = zip(*map(by_units, [[3.0, -0.5], [0.375, 0.25]]))
    found = weighted([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]], [*units, 0.0], [*values, [1.0, 1.0]], (1, 1, 0))
    assert [pattern(x) for x in found[1]] == [0x3F840000, 0x3D800000], found

    gpt = Gpt({"vocabulary": 11, "context": 9, "layers": 2, "heads": 2, "width": 6})
    llama = Llama({"vocabulary": 11, "context": 8, "layers": 2, "heads": 4, "kv_heads": 2, "width": 8, "hidden": 12, "head_width": 4,
                   "qk_norm": True, "qkv_bias": True})
    decoders = [list(logits(gpt, 1, lambda kind: (3, 3, 0))), list(logits(llama, 2, lambda kind: (3, 2, 64) if kind == "values" else (2, 2, 0)))]
    comment = ("Made by inference.py. Of a GPT and of a Llama: for each of three texts the logits of its positions, as binary32 patterns. "
               "tests/common/cached.rs has the models, their weights and the texts.")
    lines = ",\n".join("    [\n" + ",\n".join("      " + json.dumps(text, separators=(",", ":")) for text in texts) + "\n    ]" for texts in decoders)
    path = pathlib.Path(__file__).with_name("inference.json")
    path.write_text(f'{{\n  "_comment": {json.dumps(comment)},\n  "decoders": [\n{lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
