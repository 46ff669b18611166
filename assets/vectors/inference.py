#!/usr/bin/env python3
"""Golden logits of decoders over caches, and tokens that are drawn from logits, from the text of docs/INFERENCE.md and docs/ARITHMETIC.md alone.

The page says that chunks and batches change no bit. So each text is computed at once, by itself, and there are no caches here. Weights and texts
are those of tests/common/cached.rs. Writes inference.json beside itself. Needs only the standard library.

    python3 assets/vectors/inference.py
"""

import json
import math
import pathlib
from fractions import Fraction

from contract import philox
from decoders import Llama
from game_example import Key, b64
from hashes import blake3, derive, merkle_root
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


def weighted(p, units, values, digits, starts=None):
    """Steps 4 and 5: probabilities [n][S] of the positions 0, 1, .., units [S] and values [S][D] -> [n][D]."""
    first = starts or [0] * len(p)
    shares = [[0.0 if i < j or j < first[i] else mul(x, unit) for j, (x, unit) in enumerate(zip(row, units))] for i, row in enumerate(p)]
    return product(shares, columns(values), (*digits[:2], 0))


class Inference(Tape):
    def __init__(self, digits, context):
        super().__init__(digits)
        self.context = context

    def loss(self, logits, labels, factor):
        return logits

    def attention(self, q, k, v, samples, heads, drop, number, causal=True, starts=None):
        assert causal, "a cache holds earlier positions alone"
        n, d = len(q.rows), len(q.rows[0]) // heads
        parts = []
        for h in range(heads):
            qs, ks, vs = ([row[h * d:h * d + d] for row in x.rows] for x in (q, k, v))
            empty = [[0.0] * d] * (self.context - n)
            units, values = zip(*map(by_units, vs))
            keys, units, values = ks + empty + [[0.0] * d], [*units] + [0.0] * (len(empty) + 1), [*values] + empty + [[1.0] * d]
            r, p = div(1.0, sqrt_of(d)), []
            for i, row in enumerate(product(qs, keys, self.digits("scores"))):
                z = [-INF if i < j or starts and j < starts[i] else mul(x, r) for j, x in enumerate(row)]
                e = [exp(sub(x, greatest(z))) for x in z]
                total = tree(e)
                p.append([div(x, total) for x in e])
            parts.append(weighted(p, units, values, self.digits("values"), starts))
        return self.record([sum((part[i] for part in parts), []) for i in range(n)], None)


def sqrt_of(d):
    return f32(math.sqrt(d))


def weights(model, key):
    for number, parameter in enumerate(model.parameters() + model.adapters.parameters()):
        count, width = math.prod(parameter.shape), parameter.shape[-1]
        flat = [f32(philox([key, 0], [i, 0, number, 0])[0] / 2**30 - 2.0) for i in range(count)]
        if parameter.name == "token_embedding":
            for i in range(BAD * width, (BAD + 1) * width):
                flat[i] = INF if i % 3 == 0 else flat[i]
        yield Tensor([flat[i:i + width] for i in range(0, count, width)])


def texts(context, bad):
    text = lambda key, length: [(i * i + 3 * i * key + key) % BAD for i in range(length)]
    second = text(2, 7)
    second[bad] = BAD
    return [text(1, context), second, text(5, 6)]


def logits(model, key, digits):
    # A row whose window does not reach the bad token is finite.
    for text in texts(model.context, 5 if getattr(model, "window", None) is None else 1):
        tape = Inference(digits, model.context)
        rows = model.forward(tape, 1, list(weights(model, key)), [text, None], None, None).rows
        yield [[pattern(x) for x in row] for row in rows]


# The tokens of the page's example.
PAGE = [2, 0, 0, 2]


def token(logits, unknown, temperature, top_k, top_p, seed, number):
    """sampling.v1 of a row of patterns; None where the row gives no token."""
    x = {i: of_pattern(word) for i, word in enumerate(logits) if i not in unknown}
    order = sorted(x, key=lambda i: (-x[i], i))
    if not x or not all(math.isfinite(value) for value in x.values()):
        return None
    if temperature == 0:
        return order[0]
    kept = order[:top_k] if top_k else order
    weight = {i: math.floor(Fraction(exp(div(sub(x[i], x[order[0]]), of_pattern(temperature)))) * 2**32) for i in kept}
    share = math.floor(Fraction(of_pattern(top_p)) * 2**32)
    prefix = next(n for n in range(1, len(kept) + 1) if sum(weight[i] for i in kept[:n]) * 2**32 >= share * sum(weight.values()))
    kept = sorted(kept[:prefix])
    block = philox([seed & 0xFFFFFFFF, seed >> 32], [number, 0, 0, 0xFFFFFFFA])
    drawn = ((block[0] | block[1] << 32) * sum(weight[i] for i in kept)) >> 64
    return next(i for n, i in enumerate(kept) if sum(weight[i] for i in kept[:n + 1]) > drawn)


def draws():
    """Rows of logits, with settings that matter, and the tokens of the first numbers."""
    word, huge = lambda x: pattern(f32(x)), 0x7F7FFFFF
    row = [word(philox([3, 0], [i, 0, 0, 0])[0] / 2**29 - 4.0) for i in range(12)]
    ties = [word(x) for x in (1, 2, -0.0, 2, 0, 1, 2, -3)]
    zeros = [0x80000000, 0, word(-1), 0x80000001]
    far = [huge, huge | 0x80000000, huge - 1, 0, 0x00000001]
    one = word(1)
    yield row, [], 0, 0, one, 5
    yield row, [], one, 0, one, 5
    yield row, [], one, 0, one, 2**64 - 1
    yield row, [], word(0.25), 0, one, 6
    yield row, [0, 3, 11], word(3), 0, one, 6
    yield row, [], word(2), 3, one, 7
    yield row, [], word(2), 0, word(0.6), 7
    yield row, [], word(2), 5, word(0.7), 2**32
    yield ties, [], 0, 0, one, 1
    yield ties, [1], word(0.5), 2, one, 1
    yield ties[1:4:2], [], one, 0, word(0.5), 2
    yield ties[1:4:2], [], one, 0, word(0.5) + 1, 2
    yield zeros, [], 0, 0, one, 3
    yield zeros, [], word(0.125), 1, one, 3
    yield far, [], word(1e30), 0, one, 4
    yield far, [], 1, 50, one, 4
    yield row, [], word(9), 0, 1, 4
    yield [*row, NAN], [12], one, 0, one, 8
    yield [*row, NAN], [], one, 1, one, 8
    yield [MARKED, 0], [], 0, 0, one, 8
    yield [0, 0], [0, 1], one, 0, one, 8


def sampling():
    for logits, unknown, temperature, top_k, top_p, seed in draws():
        tokens = [token(logits, unknown, temperature, top_k, top_p, seed, number) for number in range(8)]
        yield {"logits": logits, "unknown": unknown, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": str(seed), "tokens": tokens}


def listed(items):
    """A list of RUN-FORMAT.md: the count, then the items' bytes."""
    return len(items).to_bytes(4, "little") + b"".join(items)


def sized(data):
    return len(data).to_bytes(4, "little") + data


def words(row):
    return b"".join(word.to_bytes(4, "little") for word in row)


def tensor_digest(shape, row):
    """F32 has the code 1."""
    return derive("tiebreak 2 tensor", b"\x01" + listed([words([d]) for d in shape]) + blake3(words(row)))


def siblings(leaves, index):
    """The inclusion proof of RFC 6962: siblings from the leaf up."""
    if len(leaves) < 2:
        return []
    split = 1 << (len(leaves) - 1).bit_length() - 1
    if index < split:
        return [*siblings(leaves[:split], index), merkle_root(leaves[split:])]
    return [*siblings(leaves[split:], index - split), merkle_root(leaves[:split])]


def verdict(fields, rows):
    """A verdict on a signer who has another last token than its own row gives. Token 9 ends texts."""
    lie = {**fields, "answer": [*fields["answer"][:-1], (fields["answer"][-1] + 1) % 9]}
    leaves = [words([n, id]) + tensor_digest([len(row)], row) for n, (id, row) in enumerate(zip(lie["answer"], rows))]
    key = Key("liar.example", bytes([3]) * 32)
    del lie["root"]
    lie |= {"tokenizer": derive("tiebreak 2 tokenizer", listed([]) + listed([words([9])])).hex(), "root": merkle_root(leaves).hex(), "signer": key.text()}
    order = ["format", "model", "parameters", "tokenizer", "temperature", "top_k", "top_p", "seed", "length", "prompt", "answer", "root", "signer"]
    text = lambda fields: json.dumps(fields, separators=(",", ":")) + "\n"
    lie = {name: lie[name] for name in order}
    signed = text(lie | {"signature": b64(key.sign(b"tiebreak 2 receipt\n" + text(lie).encode()))})
    number = len(rows) - 1
    claim = {"kind": "token", "number": number, "row": b64(words(rows[-1])), "proof": [hash.hex() for hash in siblings(leaves, number)]}
    return json.dumps({"answer": 1, "receipt": signed, "claim": claim}, separators=(",", ":"))


def receipt(gpt, key, digits):
    """A receipt of the GPT, whose answer goes on beyond the context. The bad token is no candidate, and token 9 ends texts."""
    context, unknown, ends = gpt.context, [BAD], [9]
    parameters = list(weights(gpt, key))
    leaves = [sized(f"param/{parameter.name}".encode()) + tensor_digest(parameter.shape, [pattern(x) for row in tensor.rows for x in row])
              for parameter, tensor in zip(gpt.parameters(), parameters)]
    keys = {"context": "9", "gelu": "tanh", "heads": "2", "kind": "gpt", "layers": "2", "norm_epsilon": "3727c5ac", "tied": "true", "vocabulary": "11",
            "width": "6"}
    settings = [(f"model.{name}", value) for name, value in keys.items()] + [(f"digits.{name}", "3 3 0") for name in ("linear", "head", "scores", "values")]
    settings = [sized(name.encode()) + sized(value.encode()) for name, value in sorted(settings)]
    temperature, top_k, top_p, seed, length = pattern(f32(60)), 8, pattern(f32(0.9)), 2**63 + 10, 40
    prompt, answer, rows = [7, 1, 2, 3], [], []
    while len(answer) < length and not set(answer[-1:]) & set(ends):
        text = prompt + answer
        stride = context // 2 + 1
        first = max(0, -(-(len(text) - context) // stride)) * stride
        row = gpt.forward(Inference(digits, context), 1, parameters, [text[first:], None], None, None).rows[-1]
        row = [pattern(x) for x in row]
        answer.append(token(row, unknown, temperature, top_k, top_p, seed, len(answer)))
        rows.append(row)
    leaves_of_answer = [words([n, id]) + tensor_digest([len(row)], row) for n, (id, row) in enumerate(zip(answer, rows))]
    assert len(prompt + answer) > context + stride, "one window tells little"
    fields = {"format": "tiebreak receipt 1", "model": derive("tiebreak 2 answering model", listed(settings)).hex(), "parameters": merkle_root(leaves).hex(),
              "temperature": f"{temperature:08x}", "top_k": top_k, "top_p": f"{top_p:08x}", "seed": f"{seed:016x}", "length": length, "prompt": prompt,
              "answer": answer, "root": merkle_root(leaves_of_answer).hex()}
    return fields, rows


def main():
    # The example of sampling.v1 on the page.
    row = [0x40000000, 0x3F800000, 0x40000000, 0]
    assert [token(row, [], 0x3F800000, 3, 0x3F19999A, 7, n) for n in range(4)] == PAGE, "the page's tokens"

    # The page's example.
    units, values = zip(*map(by_units, [[3.0, -0.5], [0.375, 0.25]]))
    found = weighted([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]], [*units, 0.0], [*values, [1.0, 1.0]], (1, 1, 0))
    assert [pattern(x) for x in found[1]] == [0x3F840000, 0x3D800000], found

    gpt = Gpt({"vocabulary": 11, "context": 9, "layers": 2, "heads": 2, "width": 6})
    llama = Llama({"vocabulary": 11, "context": 8, "layers": 2, "heads": 4, "kv_heads": 2, "width": 8, "hidden": 12, "head_width": 4,
                   "qk_norm": True, "qkv_bias": True, "lora": {"rank": 2, "alpha": 0.5, "dropout": 0.3, "targets": ["v_proj", "1.mlp.*"]}})
    windowed = Llama({"vocabulary": 11, "context": 8, "layers": 2, "heads": 4, "kv_heads": 2, "width": 8, "hidden": 12, "sliding_window": 2})
    decoders = [list(logits(gpt, 1, lambda kind: (3, 3, 0))), list(logits(llama, 2, lambda kind: (3, 2, 64) if kind == "values" else (2, 2, 0))),
                list(logits(windowed, 4, lambda kind: (3, 3, 0)))]
    comment = ("Made by inference.py. Of a GPT, of a Llama and of a Llama with windows: for each of three texts the logits of its positions, as binary32 patterns. "
               "tests/common/cached.rs has the models, their weights and the texts. "
               "`receipt`: the GPT's answer to a prompt. `verdict`: a verdict on a signer who changed the last token. `sampling`: rows of logits as patterns, settings, and the tokens of numbers 0, 1, ..; none where the row gives no token.")
    lines = ",\n".join("    [\n" + ",\n".join("      " + json.dumps(text, separators=(",", ":")) for text in texts) + "\n    ]" for texts in decoders)
    drawn = ",\n".join("    " + json.dumps(case, separators=(",", ":")) for case in sampling())
    path = pathlib.Path(__file__).with_name("inference.json")
    fields, rows = receipt(gpt, 1, lambda kind: (3, 3, 0))
    answered, judged = json.dumps(json.dumps(fields, separators=(",", ":")) + "\n"), json.dumps(verdict(fields, rows))
    path.write_text(f'{{\n  "_comment": {json.dumps(comment)},\n  "decoders": [\n{lines}\n  ],\n  "sampling": [\n{drawn}\n  ],\n  "receipt": {answered},\n  "verdict": {judged}\n}}\n')


if __name__ == "__main__":
    main()
