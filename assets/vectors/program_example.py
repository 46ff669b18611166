"""The worked example of a program's bytes: one weight, learned by squared error. Written from docs/ARITHMETIC.md, section 9, alone.

`rows` are the bytes in order, each with what it is. examples.py writes them to examples.json; docs/PROGRAMS.md shows them.
"""

import struct

F32, U32 = 1, 2


class Writer:
    """Bytes and their meanings."""

    def __init__(self):
        self.rows = []

    def row(self, data, meaning):
        self.rows.append((data, meaning))

    def u32(self, number, meaning):
        self.row(struct.pack("<I", number), f"{meaning}: {number}")

    def count(self, number, what):
        self.row(struct.pack("<I", number), f"list of {number}: {what}")

    def name(self, text, meaning):
        self.row(struct.pack("<I", len(text)) + text.encode(), f"{meaning}: {text}")

    def typed(self, code, dims):
        self.row(bytes([code]) + shape(dims), f"{'F32' if code == F32 else 'U32'} {dims}")


def words(*numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


def shape(dims):
    return words(len(dims), *dims)


def view(w, tensor):
    """A view of the one element of a tensor: no stride counts, since no dimension is above 1."""
    w.row(words(tensor, 0, 1, 1, 1, 1, 0, 0, 0, 0), f"view: t{tensor}+0 [1, 1, 1, 1] [0, 0, 0, 0]")


# Instructions of the bodies: opcode, operands as bytes, meaning.
def body(w, instructions):
    w.count(len(instructions), "instructions")
    for number, (opcode, operands, meaning) in enumerate(instructions):
        w.row(bytes([opcode]) + operands, f"{number}: {meaning}")


def inputs(count):
    return [(0, bytes([i]), f"Input {i}") for i in range(count)]


def binary(opcode, name, a, b):
    return (opcode, bytes([a, b]), f"{name} {a} {b}")


def node(w, operator, name, code, views, output):
    w.name(operator, "operator")
    w.name(name, "primitive")
    w.row(b"\0", "kind 0, map")
    body(w, code)
    w.row(words(1, 1, 1, 1), "dims [1, 1, 1, 1]")
    w.count(len(views), "views")
    for tensor in views:
        view(w, tensor)
    w.u32(output, "id of the output")


def graph(w, title, tensors, ports, nodes, outputs):
    w.row(b"", title)
    w.count(len(tensors), "tensors")
    for code, dims in tensors:
        w.typed(code, dims)
    for what, table in (("inputs", ports), ("nodes", nodes), ("outputs", outputs)):
        w.count(len(table), what)
        if what == "nodes":
            for entry in table:
                node(w, *entry)
        else:
            for name, tensor in table:
                w.name(name, "port")
                w.u32(tensor, "id")
    w.count(0, "logged products")


def tables(w):
    w.u32(2, "version")
    w.u32(1, "micro_batch")
    w.u32(1, "micro_batches")
    w.u32(1, "labels_per_sample")
    w.count(0, "corrections")
    w.count(2, "batch tensors")
    for name, code, dims, below in (("values", F32, [1, 1], 0), ("labels", U32, [1], 2)):
        w.name(name, "name")
        w.typed(code, dims)
        w.u32(below, "below")
    w.count(1, "parameters")
    w.name("w", "name")
    w.row(shape([1]), "shape [1]")
    w.row(b"\0" + words(0), "init: +0")
    w.row(b"\0", "frozen: no")
    w.count(0, "buffers")
    w.count(0, "slots")


def micro(w):
    """error = w x - label, loss = error error, slope = error x."""
    one, scalars = (F32, [1]), [(F32, [1]), (U32, [2]), (U32, [1]), (U32, [1])]
    tensors = [one, (F32, [1, 1]), (U32, [1]), *scalars, one, one, one]
    names = ["param/w", "batch/values", "batch/labels", "scalar/factor", "scalar/seed", "scalar/step", "scalar/first_sample"]
    error = [*inputs(3), binary(5, "FMul", 0, 1), (14, bytes([2]), "FFromU 2"), binary(4, "FSub", 3, 4)]
    nodes = [
        ("model", "error_of_line.v1", error, [0, 1, 2], 7),
        ("loss", "squared_error.v1", [*inputs(1), binary(5, "FMul", 0, 0)], [7], 8),
        ("model.backward", "slope_of_line.v1", [*inputs(2), binary(5, "FMul", 0, 1)], [7, 1], 9),
    ]
    graph(w, "micro graph", tensors, [(name, i) for i, name in enumerate(names)], nodes, [("grad/w", 9), ("loss", 8)])


def accumulate(w):
    add = [*inputs(2), binary(3, "FAdd", 0, 1)]
    ports, nodes, outputs = [], [], []
    for i, name in enumerate(["grad/w", "loss"]):
        ports += [(f"left/{name}", 3 * i), (f"right/{name}", 3 * i + 1)]
        nodes.append((f"accumulate.{name}", "add.v1", add, [3 * i, 3 * i + 1], 3 * i + 2))
        outputs.append((name, 3 * i + 2))
    graph(w, "accumulate graph", [(F32, [1])] * 6, ports, nodes, outputs)


def update(w):
    names = ["param/w", "grad/w", "scalar/learning_rate", "scalar/correction1", "scalar/correction2"]
    size = [*inputs(1), binary(5, "FMul", 0, 0), (7, bytes([1]), "FSqrt 1")]
    step = [*inputs(3), binary(5, "FMul", 2, 1), binary(4, "FSub", 0, 3)]
    nodes = [
        ("clip", "size_of_slope.v1", size, [1], 5),
        ("clip", "never.v1", [(1, words(0x3F800000), "Const 3f800000")], [], 6),
        ("update.w", "step_of_line.v1", step, [0, 1, 2], 7),
    ]
    outputs = [("param/w", 7), ("clip", 6), ("norm", 5)]
    graph(w, "update graph", [(F32, [1])] * 8, [(name, i) for i, name in enumerate(names)], nodes, outputs)


def rows():
    w = Writer()
    for part in (tables, micro, accumulate, update):
        part(w)
    return w.rows


def program():
    return b"".join(data for data, _ in rows())
