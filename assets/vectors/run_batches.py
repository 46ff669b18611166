"""The batches of a run, from its data files: which samples a step draws (docs/ARITHMETIC.md, section 6) and what they are (sections 8.3 and 9).

Reads files of bytes, tokens, IDX, CIFAR-10 and CIFAR-100, and arrays in .npy files; run_format.py says so where a job has others.
"""

import ast

import fractions
import math
import struct

import batches
from run_job import data_paths, mask_paths

WIDTHS = {"u8": "B", "u16": "H", "u32": "I", "f32": "I"}  # floats by their patterns


def knows(data):
    """True if the samples of a job's data can be read here."""
    if data["kind"] == "arrays":
        return data["dtype"] in WIDTHS and all(data[key].endswith(".npy") for key in ("inputs", "labels")) and data["inputs"] != data["labels"]
    return data["kind"] in ("bytes", "tokens", "idx", "cifar10", "cifar100")


def npy(file):
    """The shape of an array in NumPy's format 1.0, and its elements, floats by their patterns."""
    size = struct.unpack("<H", file[8:10])[0]
    header = ast.literal_eval(file[10 : 10 + size].decode())
    if file[:8] != b"\x93NUMPY\1\0" or header["fortran_order"]:
        raise ValueError("an array is not in NumPy's format 1.0 and C order")
    code = {"|u1": "B", "<u2": "H", "<u4": "I", "<f4": "I", "<i8": "q"}[header["descr"]]
    count = math.prod(header["shape"])
    return header["shape"], struct.unpack(f"<{count}{code}", file[10 + size :])


class Samples:
    """The samples of a job's data files: `count`, and for each one what it gives to each tensor of the batch."""

    def __init__(self, data, files, context, uncounted):
        kind = data["kind"]
        self.separate = lambda count: range(count)
        if kind == "bytes":
            self.windows(files, context)
        elif kind == "tokens":
            code = WIDTHS[data["dtype"]]
            raw = lambda file: struct.unpack(f"<{len(file) // struct.calcsize(code)}{code}", file)
            array = lambda name, file, raw: npy(file)[1] if name.endswith(".npy") else raw(file)
            names, masks = data_paths(data), mask_paths(data)
            tokens = [array(name, file, raw) for name, file in zip(names[: len(names) - len(masks)], files)]
            self.windows(tokens, context, data.get("windows") == "separate")
            if masks:
                self.masked([array(name, file, bytes) for name, file in zip(masks, files[len(tokens) :])], context, uncounted)
        elif kind == "arrays":
            (shape, inputs), (_, labels) = map(npy, files)
            size = math.prod(shape[1:])
            self.count, self.planes = shape[0], shape[-2:]
            self.sample = lambda i: {"pixels": inputs[i * size : (i + 1) * size], "labels": labels[i : i + 1]}
        elif kind == "idx":
            images, labels = files
            self.count, rows, columns = struct.unpack(">III", images[4:16])
            size = rows * columns
            self.planes = rows, columns
            self.sample = lambda i: {"pixels": images[16 + i * size : 16 + (i + 1) * size], "labels": labels[8 + i : 9 + i]}
        else:
            labels = 2 if kind == "cifar100" else 1
            learned = 1 if data.get("labels") == "fine" else 0
            size = labels + 3072
            if any(len(file) % size for file in files):
                raise ValueError(f"a file of {data['kind']} is no whole number of records of {size} bytes")
            records = [file[at : at + size] for file in files for at in range(0, len(file), size)]
            self.count = len(records)
            self.planes = 32, 32
            self.sample = lambda i: {"pixels": records[i][labels:], "labels": records[i][learned : learned + 1]}

    def drawn(self, split):
        """How many samples steps draw from."""
        if split is None:
            return self.count
        share = fractions.Fraction(struct.unpack("<f", struct.pack("<f", split))[0])
        first = self.count - math.floor(share * self.count + fractions.Fraction(1, 2))
        return self.before(first)

    def before(self, first):
        return first

    def windows(self, files, context, apart=False):
        stride = context + 1 if apart else 1
        self.starts = [(number, at) for number, data in enumerate(files) for at in range(0, len(data) - context, stride)]
        starts = [(files[number], at) for number, at in self.starts]
        self.count = len(starts)

        def sample(i):
            data, at = starts[i]
            return {"tokens": data[at : at + context], "labels": data[at + 1 : at + 1 + context]}

        # In order, windows of a file begin behind the last label of the one before.
        self.separate = lambda count: [i for i in range(count) if starts[i][1] % (context + 1) == 0]
        # Windows of the same file that end before the token at which the first kept one begins.
        self.before = lambda first: first if apart else first - min(starts[first][1], context)
        self.sample = sample

    def masked(self, masks, context, uncounted):
        """Labels that a mask does not count are the label that the loss ignores."""
        windows = self.sample

        def sample(i):
            found, (number, at) = windows(i), self.starts[i]
            counts = masks[number][at + 1 : at + 1 + context]
            if len(counts) != context or not set(counts) <= {0, 1}:
                raise ValueError("a mask is no byte of 0 or 1 for each token")
            return found | {"labels": [label if counts else uncounted for label, counts in zip(found["labels"], counts)]}

        self.sample = sample


def batch_tensors(program, job, files, seed, step):
    """(micro-batch, name, type, shape, canonical bytes) of every batch tensor of a step."""
    batches.KEY = struct.unpack("<II", seed[:8])
    batches.BATCH = program.micro_batch * program.micro_batches
    sampling = job["data"].get("sampling", "permutation")
    shapes = {name: shape for name, _, shape in program.batch}
    inputs = program.batch[0][0]
    samples = Samples(job["data"], files, math.prod(shapes["labels"]) // program.micro_batch, job.get("loss", {}).get("ignore"))
    count = samples.drawn(job["data"].get("validation_split"))
    if sampling == "in_order":
        separate = samples.separate(count)
        draw = lambda _, step, place: separate[batches.in_order(len(separate), step, place)]
    else:
        draw = batches.with_replacement if sampling == "with_replacement" else batches.permutation
    augment = job["data"].get("augment", {})
    for micro in range(program.micro_batches):
        places = range(micro * program.micro_batch, (micro + 1) * program.micro_batch)
        drawn = [samples.sample(draw(count, step, place)) for place in places]
        if augment:
            for place, sample in zip(places, drawn):
                sample["pixels"] = batches.moved(sample["pixels"], samples.planes, augment, step, place)
        for name, code, shape in program.batch:
            own = "pixels" if name == inputs and inputs != "tokens" else name
            numbers = [number for sample in drawn for number in sample[own]]
            yield micro, name, code, shape, struct.pack(f"<{len(numbers)}I", *numbers)
