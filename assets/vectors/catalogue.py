#!/usr/bin/env python3
"""Golden vectors of single operators with their gradients, from the text of docs/ARITHMETIC.md, sections 8.1 and 8.2, alone: those that no model of
steps.py reaches in all their cases. Writes catalogue.json beside itself. Needs only the standard library.

    python3 assets/vectors/catalogue.py
"""

import json
import math
import pathlib
import random

import decoders
import encoders
from operators import DIGITS, INF, Tape, Tensor, f32, pattern


def tensor(rng, shape, special, part):
    """Numbers of few values, so that maxima tie, with some special ones."""
    flat = [rng.choice(special) if special and rng.random() < part else f32(rng.randrange(-8, 9) / 7) for _ in range(math.prod(shape))]
    return Tensor([flat[i:i + shape[-1]] for i in range(0, len(flat), shape[-1])])


def words(rows):
    return [pattern(x) for row in rows for x in row]


def case(rng, operator, shapes, attributes, run, special=(), part=0.1, infinite=None, upstream=None):
    """`run(tape, inputs)` gives the output; operators with a gradient then get one of the output's shape, whose row `infinite` is infinite.
    `upstream` draws that one, by default as all else. Inputs without a gradient have none in the case."""
    inputs = [tensor(rng, shape, special, part) for shape in shapes]
    tape = Tape(lambda kind: (2, 2, 0))
    y = run(tape, inputs)
    entry = {"operator": operator, "attributes": attributes, "inputs": [[s, words(x.rows)] for s, x in zip(shapes, inputs)],
             "output": words(y.rows)}
    if all(gradient for _, gradient in tape.entries):
        y.gradient = [[f32((upstream or rng).randrange(-64, 65) / 9) for _ in row] for row in y.rows]
        if infinite is not None:
            y.gradient[infinite] = [INF] * len(y.gradient[infinite])
        dy = words(y.gradient)
        tape.backward()
        entry |= {"dy": dy, "gradients": [words(x.gradient) for x in inputs if x.gradient is not None]}
    return entry


def cases(rng):
    image = lambda b, h, w, c: [b, h, w, c]
    for kernel, stride, padding, (h, w) in [(2, 2, 0, (5, 4)), (3, 2, 1, (5, 6)), (3, 1, 1, (4, 3)), (1, 1, 0, (2, 3)), (5, 3, 2, (4, 6))]:
        attributes = {"kernel": kernel, "stride": stride, "padding": padding}
        for special in ((), (-0.0, 0.0, -INF, math.nan, INF)):
            run = lambda tape, x: tape.max_pool(x[0], (h, w), kernel, stride, padding)[0]
            yield case(rng, "max_pool", [image(2, h, w, 2)], attributes, run, special)
        run = lambda tape, x: tape.avg_pool(x[0], (h, w), kernel, stride, padding)[0]
        yield case(rng, "avg_pool", [image(2, h, w, 2)], attributes, run)
    # Many pixels are the least number that there is: padding still does not win.
    run = lambda tape, x: tape.max_pool(x[0], (4, 5), 3, 2, 1)[0]
    yield case(rng, "max_pool", [image(1, 4, 5, 1)], {"kernel": 3, "stride": 2, "padding": 1}, run, (-INF,), 0.8)
    for (h, w), size in [((1, 1), (7, 7)), ((2, 3), (7, 7)), ((7, 7), (7, 7)), ((6, 4), (3, 2)), ((5, 7), (3, 4)), ((4, 5), (1, 1))]:
        run = lambda tape, x: tape.adaptive_avg_pool(x[0], (h, w), size)
        yield case(rng, "adaptive_avg_pool", [image(2, h, w, 2)], {"windows": list(size)}, run)
    for groups, channels, outputs, kernel, stride, padding in [(2, 4, 6, 3, 2, 1), (3, 3, 3, 1, 1, 0), (1, 2, 3, 3, 1, 1), (4, 4, 8, 2, 1, 0)]:
        run = lambda tape, x: tape.grouped_conv2d(x[0], x[1], (5, 4), kernel, stride, padding, groups)[0]
        yield case(rng, "grouped_conv2d", [image(2, 5, 4, channels), [outputs, kernel, kernel, channels // groups]],
                   {"groups": groups, "stride": stride, "padding": padding}, run)
    yield case(rng, "bias", [image(2, 3, 2, 5), [5]], {}, lambda tape, x: tape.bias(*x))
    yield case(rng, "flatten", [image(2, 3, 2, 5)], {}, lambda tape, x: tape.flatten(x[0], 6))
    for epsilon in (1e-5, 0.25):
        yield evaluation(rng, epsilon)
    extreme = (-0.0, 0.0, -INF, math.nan, INF, 87.5, -88.0, -104.0, 1e-40)
    for special in ((), extreme):
        yield case(rng, "silu", [[3, 11]], {}, lambda tape, x: decoders.silu(tape, *x), special, 0.4)
        yield case(rng, "swiglu", [[3, 11]] * 2, {}, lambda tape, x: decoders.swiglu(tape, *x), special, 0.2)
    for epsilon in (1e-5, 0.25):
        yield case(rng, "rms_norm", [[5, 7], [7]], {"epsilon": epsilon}, lambda tape, x: decoders.rms_norm(tape, *x, f32(epsilon)), (0.0, 1e-30))
    for samples, heads, theta, shape in [(2, 2, 10000.0, [10, 12]), (1, 1, 500000.0, [7, 70]), (3, 4, 1.0, [6, 8])]:
        attributes = {"samples": samples, "heads": heads, "theta": theta}
        yield case(rng, "rotary", [shape], attributes, lambda tape, x: decoders.rotary(tape, x[0], samples, heads, theta))
    for samples, heads, kv_heads, d in [(2, 4, 2, 3), (1, 6, 2, 2), (1, 3, 1, 4), (2, 2, 2, 2)]:
        run = lambda tape, x: decoders.grouped_attention(tape, *x, samples, heads)
        shapes = [[4 * samples, heads * d]] + [[4 * samples, kv_heads * d]] * 2
        yield case(rng, "grouped_attention", shapes, {"samples": samples, "heads": heads}, run)


def later_cases(rng):
    """Cases with a generator of their own, so that the tables stay as they are."""
    for heads, channels in [(2, 3), (5, 4)]:
        run = lambda tape, x: decoders.rms_norm(tape, *x, f32(1e-5), heads)
        yield case(rng, "rms_norm", [[3, heads * channels], [channels]], {"epsilon": 1e-5, "heads": heads}, run, (0.0, 1e-30))


def encoder_cases(rng):
    """Cases of encoders' operators, with a generator of their own."""
    for samples, heads, kv_heads, d in [(2, 4, 2, 3), (1, 6, 2, 2), (1, 3, 1, 4), (2, 2, 2, 2)]:
        run = lambda tape, x: decoders.grouped_attention(tape, *x, samples, heads, causal=False)
        shapes = [[4 * samples, heads * d]] + [[4 * samples, kv_heads * d]] * 2
        yield case(rng, "bidirectional_attention", shapes, {"samples": samples, "heads": heads}, run)
    extreme = (-0.0, 0.0, -INF, math.nan, INF, 9.1, -1e-40)
    for special in ((), extreme):
        yield case(rng, "tanh", [[3, 11]], {}, lambda tape, x: encoders.hyperbolic_tangent(tape, *x), special, 0.4)
        for samples, rows, c in [(3, 4, 5), (1, 7, 3), (4, 1, 1)]:
            run = lambda tape, x: encoders.class_token(tape, *x, samples)
            yield case(rng, "class_token", [[samples * rows, c], [c]], {"samples": samples}, run, special)
            run = lambda tape, x: encoders.first_position(tape, *x, samples)
            yield case(rng, "first_position", [[samples * rows, c]], {"samples": samples}, run, special)
    for samples, positions, rows, c in [(3, 4, 4, 5), (2, 3, 7, 4), (6, 1, 2, 3)]:
        run = lambda tape, x: encoders.position_embedding(tape, *x, samples)
        yield case(rng, "position_embedding", [[samples * positions, c], [rows, c]], {"samples": samples}, run)
    for padding in (None, 2, 0):
        tokens = [rng.choice([0, 1, 2, 2, 4]) for _ in range(9)]
        entry = case(rng, "embedding", [[6, 3]], {} if padding is None else {"ignore": padding}, lambda tape, x: encoders.padded_embedding(tape, *x, tokens, padding))
        entry["inputs"].append([[9], tokens])
        yield entry


def padded_cases(rng):
    """Cases of attention with padding, with a generator of their own: some padding, a sample of padding alone, and none."""
    for samples, heads, kv_heads, d, lengths in [(2, 4, 2, 3, (4, 2)), (1, 6, 2, 2, (1,)), (3, 2, 2, 4, (3, 0, 1)), (2, 1, 1, 3, (4, 4)), (2, 2, 1, 2, (2, 3))]:
        ids = sum(([rng.choice([0, 1, 3, 9]) for _ in range(n)] + [7] * (4 - n) for n in lengths), [])
        if lengths == (2, 3):
            ids = [7, 0, 7, 2, 1, 7, 7, 0]
        run = lambda tape, x: encoders.padded_attention(tape, *x, samples, heads, ids, 7)
        shapes = [[4 * samples, heads * d]] + [[4 * samples, kv_heads * d]] * 2
        for special in ((), (-0.0, 0.0, math.nan, INF)):
            entry = case(rng, "padded_attention", shapes, {"samples": samples, "heads": heads, "ignore": 7}, run, special, 0.03)
            entry["inputs"].append([[4 * samples], ids])
            yield entry


def document_cases(rng):
    """Cases of attention within documents, with a generator of their own: several documents, one, documents of one token, an end at either end."""
    texts = [(2, 4, 2, 3, [1, 7, 0, 3, 2, 2, 0, 7]), (1, 6, 2, 2, [7, 7, 1, 7, 0, 2]), (1, 1, 1, 3, [7]), (2, 2, 2, 4, [0, 1, 2, 3, 7, 3, 7, 7])]
    for samples, heads, kv_heads, d, ids in texts:
        run = lambda tape, x: encoders.document_attention(tape, *x, samples, heads, ids, 7)
        shapes = [[len(ids), heads * d]] + [[len(ids), kv_heads * d]] * 2
        for special in ((), (-0.0, 0.0, math.nan, INF)):
            entry = case(rng, "document_attention", shapes, {"samples": samples, "heads": heads, "ignore": 7}, run, special, 0.03)
            entry["inputs"].append([[len(ids)], ids])
            yield entry


def hidden_cases(rng):
    """Attention where one row's gradient is infinite: the positions that this row does not see get no gradient from it."""
    for samples, heads, kv_heads, d, ids, row in [(1, 2, 1, 3, [1, 0, 7, 2, 3, 7], 1), (2, 2, 2, 2, [7, 1, 2, 7, 1, 7, 3, 0], 6)]:
        shapes = [[len(ids), heads * d]] + [[len(ids), kv_heads * d]] * 2
        for name in ("document_attention", "padded_attention"):
            run = lambda tape, x: getattr(encoders, name)(tape, *x, samples, heads, ids, 7)
            entry = case(rng, name, shapes, {"samples": samples, "heads": heads, "ignore": 7}, run, infinite=row)
            entry["inputs"].append([[len(ids)], ids])
            yield entry


def window_cases(rng):
    """Cases of attention within windows, with a generator of their own: a window of one position, of some, of all, and of more; then a row whose
    gradient is infinite."""
    for samples, heads, kv_heads, d, t, window in [(2, 4, 2, 3, 4, 2), (1, 6, 2, 2, 6, 3), (1, 1, 1, 3, 5, 1), (2, 2, 2, 4, 4, 4), (1, 2, 1, 2, 3, 9)]:
        run = lambda tape, x: decoders.window_attention(tape, *x, samples, heads, window)
        shapes = [[samples * t, heads * d]] + [[samples * t, kv_heads * d]] * 2
        for special, infinite in [((), None), ((-0.0, 0.0, math.nan, INF), None), ((), t - 1)]:
            yield case(rng, "window_attention", shapes, {"samples": samples, "heads": heads, "window": window}, run, special, 0.03, infinite)


def captured_cases(rng):
    """Cases of operators that network files have beside the models', with a generator of their own."""
    extreme = (-0.0, 0.0, -INF, math.nan, INF, 17.5, -88.0, -104.0, f32(1e-40))
    for special in ((), extreme):
        yield case(rng, "sigmoid", [[3, 11]], {}, lambda tape, x: encoders.sigmoid(tape, *x), special, 0.4)
        yield case(rng, "mul", [[3, 11]] * 2, {}, lambda tape, x: encoders.product(tape, *x), special, 0.3)
        yield case(rng, "gain", [[2, 3, 2, 5], [5]], {}, lambda tape, x: encoders.gain(tape, *x), special)
        yield case(rng, "rows", [[2, 3, 2, 5]], {}, lambda tape, x: encoders.rows_of(tape, *x), special)
        for samples, rows, c in [(3, 4, 5), (1, 7, 3), (4, 1, 1)]:
            for name in ("last_position", "mean_positions"):
                run = lambda tape, x: getattr(encoders, name)(tape, *x, samples)
                yield case(rng, name, [[samples * rows, c]], {"samples": samples}, run, special)


def exchange_cases(rng):
    """Cases of positions and channels that are exchanged, with a generator of their own."""
    for samples, rows, c in [(3, 4, 5), (1, 7, 3), (4, 1, 1), (2, 1, 6)]:
        for special in ((), (-0.0, -INF, math.nan)):
            yield case(rng, "exchange", [[samples * rows, c]], {"samples": samples}, lambda tape, x: encoders.exchange(tape, *x, samples), special)


def group_cases(rng):
    """Cases of normalised groups, with a generator of their own: a group, several, and one for each channel."""
    for groups, (b, h, w, c), epsilon in [(1, (2, 3, 2, 4), 1e-5), (2, (2, 2, 3, 6), 0.25), (3, (1, 1, 1, 3), 1e-5), (5, (3, 2, 2, 5), 1e-5)]:
        run = lambda tape, x: encoders.group_norm(tape, *x, groups, h * w, f32(epsilon))
        for special in ((), (0.0, 1e-30)):
            yield case(rng, "group_norm", [[b, h, w, c], [c], [c]], {"groups": groups, "epsilon": epsilon}, run, special)


def evaluation(rng, epsilon):
    def run(tape, x):
        x[2].rows = [[abs(v) for v in row] for row in x[2].rows]
        return tape.batch_norm_eval(*x, f32(epsilon))

    return case(rng, "batch_norm_eval", [[2, 3, 2, 4]] + [[4]] * 4, {"epsilon": epsilon}, run, upstream=random.Random(20261206))


def tables(rng, kinds):
    """Of each table: theta, channels of a head, null or a factor with null or bands (low and high, original context), the frequencies, and some
    entries as position, i, cosine and sine."""
    for theta, channels, scaling in kinds:
        frequencies = [decoders.frequency_of(theta, channels, i, scaling) for i in range(channels // 2)]
        entries = []
        for t in [0, 1, 2, 3, 1023, 65535] + [rng.randrange(65536) for _ in range(30)]:
            i = rng.randrange(channels // 2)
            entry = decoders.rotary_entry(theta, channels, t, i, scaling)
            for have, true in zip(entry, decoders.true_waves(theta, channels, t, i, scaling)):
                assert abs(DIGITS(have) - true) < 3 * DIGITS(2) ** -24, (theta, channels, t, i)
            entries.append([t, i, *map(pattern, entry)])
        bands = scaling and scaling[1] and [[pattern(x) for x in scaling[1][:2]], scaling[1][2]]
        yield {"theta": pattern(theta), "channels": channels, "scaling": scaling and [pattern(scaling[0]), bands],
               "frequencies": [f"{f:016x}" for f in frequencies], "entries": entries}


PLAIN = [(1.0, 2, None), (f32(1.7), 10, None), (f32(1e4), 64, None), (f32(1e4), 128, None), (f32(5e5), 128, None), (f32(1e6), 256, None),
         (f32(3.4028234e38), 6, None)]
# Llama 3.1's and 3.2's, and the ends of what a job may say.
SCALED = [(f32(1e4), 64, (2.0, None)), (f32(5e5), 128, (f32(3.3), None)), (f32(5e5), 128, (8.0, (1.0, 4.0, 8192))), (f32(5e5), 64, (32.0, (1.0, 4.0, 8192))),
          (f32(1.7), 32, (f32(65535.996), (f32(65000.5), f32(65001.5), 2**20))), (1.0, 2, (f32(1.1), (1.0, 2.0, 9))), (f32(1e4), 256, (f32(7.7), (f32(1.3), f32(300.7), 2**20)))]


def main():
    rng = random.Random(20261122)
    comment = ("Made by catalogue.py. Of each case: the operator and its attributes, its inputs as shape and binary32 patterns, row-major, its output, "
               "and for operators with a gradient that of the output and those of the inputs. " + " ".join(tables.__doc__.split()))
    all_cases, all_tables = list(cases(rng)), list(tables(rng, PLAIN))
    later = random.Random(20261127)
    all_cases += later_cases(later)
    all_cases += encoder_cases(random.Random(20261128))
    all_cases += padded_cases(random.Random(20261129))
    all_cases += document_cases(random.Random(20261130))
    all_cases += hidden_cases(random.Random(20261201))
    all_cases += window_cases(random.Random(20261202))
    all_cases += captured_cases(random.Random(20261203))
    all_cases += group_cases(random.Random(20261204))
    all_cases += exchange_cases(random.Random(20261205))
    all_tables += tables(later, SCALED)
    lines = lambda rows: ",\n".join("    " + json.dumps(row, separators=(",", ":")) for row in rows)
    path = pathlib.Path(__file__).with_name("catalogue.json")
    path.write_text(f'{{\n  "_comment": {json.dumps(comment)},\n  "cases": [\n{lines(all_cases)}\n  ],\n'
                    f'  "rotary_tables": [\n{lines(all_tables)}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
