"""What a run's commitments take from a program: names, types and shapes, read from the bytes of docs/ARITHMETIC.md, section 9, and from that page alone.

It does not judge whether a program is a training step; it reads the form, all of it, so that nothing is left over.
"""

import math
import struct


class Malformed(Exception):
    """What the bytes are not."""


class Reader:
    """Little-endian fields of some bytes; `what` names them in errors."""

    def __init__(self, data, what):
        self.data, self.at, self.what = data, 0, what

    def take(self, count):
        if count > len(self.data) - self.at:
            raise Malformed(f"{self.what}: {count} bytes are wanted at byte {self.at}, and {len(self.data) - self.at} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def u8(self):
        return self.number("B")

    def u32(self):
        return self.number("I")

    def u64(self):
        return self.number("Q")

    def digest(self):
        return self.take(32)

    def choice(self, read):
        """Nothing after a 0, what `read` reads after a 1."""
        flag = self.u8()
        if flag > 1:
            raise Malformed(f"{self.what}: an option begins with {flag}")
        return read() if flag else None

    def list(self, read):
        return [read() for _ in range(self.u32())]

    def end(self):
        if self.at != len(self.data):
            raise Malformed(f"{self.what}: {len(self.data) - self.at} bytes follow the end")


# Operands of each opcode: a byte for a register or number, W for a word.
OPERANDS = ["1", "W", "1", "2", "2", "2", "2", "1", "1", "1", "1", "1", "1", "2", "1", "2", "2", "2", "2", "2", "2", "3", "7"]
# Of the kinds without views: how many ids of tensors a node begins with, and the bytes of its other fields.
NODES = {1: (2, 16), 2: (1, 4), 3: (1, 16), 4: (3, 0), 5: (1, 4), 6: (1, 4), 9: (4, 4), 10: (4, 4), 11: (1, 25)}
TYPES = {1: 4, 2: 4, 17: 1, 18: 2, 19: 3, 20: 4}  # code: bytes of an element


class Program(Reader):
    """A program's tables and the nodes of its graphs, in execution order."""

    def __init__(self, data):
        super().__init__(data, "program")
        if (version := self.u32()) != 2:
            raise Malformed(f"program: version {version}")
        self.micro_batch, self.micro_batches, self.labels_per_sample = self.u32(), self.u32(), self.u32()
        self.list(self.u32)
        self.batch = self.list(lambda: (self.name(), self.type(), self.shape(), self.u32())[:3])
        self.parameters = self.list(lambda: (self.name(), self.shape(), self.init(), self.u8()))
        self.buffers = self.list(lambda: (self.name(), self.shape(), self.init()))
        self.slots = self.list(self.name)
        self.micro, self.accumulate, self.update = self.graph(), self.graph(), self.graph()
        self.end()

    def state(self):
        """(name, shape) of every tensor of the state."""
        table = [(f"param/{name}", shape) for name, shape, _, _ in self.parameters]
        table += [(f"buffer/{name}", shape) for name, shape, _ in self.buffers]
        for slot in self.slots:
            table += [(f"{slot}/{name}", shape) for name, shape, _, frozen in self.parameters if not frozen]
        return table

    def gradients(self):
        """The gradients in their order: the micro graph's outputs."""
        return list(self.micro.outputs)

    def name(self):
        return self.take(self.u32()).decode("ascii")

    def type(self):
        code = self.u8()
        if code not in TYPES:
            raise Malformed(f"program: no type has the code {code}")
        return code

    def shape(self):
        return self.list(self.u32)

    def init(self):
        return self.u8(), self.u32()

    def view(self):
        """The tensor that a view shows."""
        tensor = self.u32()
        self.take(4 * 9)
        return tensor

    def graph(self):
        tensors = self.list(lambda: (self.type(), self.shape()))
        inputs = dict(self.list(lambda: (self.name(), self.u32())))
        nodes = self.list(self.node)
        outputs = dict(self.list(lambda: (self.name(), self.u32())))
        return Graph(tensors, inputs, nodes, outputs, dict(self.list(self.logged)))

    def node(self):
        """(operator, the tensors that it reads, the tensor that it makes)"""
        operator, _, kind = self.name(), self.name(), self.u8()
        if kind == 0:
            self.list(self.instruction)
            self.take(4 * 4)
            reads = self.list(self.view)
        elif kind in (7, 8):
            reads = [self.view()] + ([self.u32()] if kind == 8 else [])
            self.take(4 if kind == 7 else 1 + 4)
        elif kind in NODES:
            ids, rest = NODES[kind]
            reads = [self.u32() for _ in range(ids)]
            self.take(rest)
        else:
            raise Malformed(f"program: no kind of node has the number {kind}")
        return operator, reads, self.u32()

    def instruction(self):
        opcode = self.u8()
        if opcode >= len(OPERANDS):
            raise Malformed(f"program: no instruction has the opcode {opcode}")
        self.take(4 if OPERANDS[opcode] == "W" else int(OPERANDS[opcode]))

    def logged(self):
        """The tensor of a logged product, and its operands'."""
        self.u8()
        operands = [self.view(), self.view()]
        self.take(2 * 4 + 2)
        product = self.u32()
        self.u32()
        self.list(self.u32)
        return product, operands


class Graph:
    """tensors: (type, shape) of each; nodes: (operator, reads, output) of each; inputs, outputs: name to tensor; logged: product to operands."""

    def __init__(self, tensors, inputs, nodes, outputs, logged):
        self.tensors, self.inputs, self.nodes, self.outputs, self.logged = tensors, inputs, nodes, outputs, logged

    def traced(self):
        """The numbers of the nodes that a trace holds (docs/RUN-FORMAT.md, "traces")."""
        needed, held = set(self.outputs.values()), []
        for number, (_, reads, output) in reversed(list(enumerate(self.nodes))):
            if output in needed:
                needed.update(self.logged.get(output, reads))
                if output not in self.logged:
                    held.append(number)
        return held[::-1]


def part_of(name):
    """The number of the part of a state digest that has a tensor."""
    return 0 if name.startswith("param/") else 1 if name.startswith("buffer/") else 2


def bytes_of(code, shape):
    """The length of a tensor's canonical bytes."""
    return TYPES[code] * math.prod(shape)
