"""The batches of a run, from its data files: which samples a step draws (docs/ARITHMETIC.md, section 6) and what they are (sections 8.3 and 9).

Reads files of bytes, IDX, CIFAR-10 and CIFAR-100; run_format.py says so where a job has others.
"""

import fractions
import math
import struct

import batches

KINDS = ("bytes", "idx", "cifar10", "cifar100")


class Samples:
    """The samples of a job's data files: `count`, and for each one what it gives to each tensor of the batch."""

    def __init__(self, data, files, context):
        kind = data["kind"]
        if kind == "bytes":
            self.windows(files, context)
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

    def windows(self, files, context):
        starts = [(data, at) for data in files for at in range(len(data) - context)]
        self.count = len(starts)

        def sample(i):
            data, at = starts[i]
            return {"tokens": data[at : at + context], "labels": data[at + 1 : at + 1 + context]}

        # Windows of the same file that end before the token at which the first kept one begins.
        self.before = lambda first: first - min(starts[first][1], context)
        self.sample = sample


def batch_tensors(program, job, files, seed, step):
    """(micro-batch, name, shape, canonical bytes) of every batch tensor of a step."""
    batches.KEY = struct.unpack("<II", seed[:8])
    batches.BATCH = program.micro_batch * program.micro_batches
    draw = batches.with_replacement if job["data"].get("sampling") == "with_replacement" else batches.permutation
    shapes = {name: shape for name, _, shape in program.batch}
    samples = Samples(job["data"], files, math.prod(shapes["labels"]) // program.micro_batch)
    count = samples.drawn(job["data"].get("validation_split"))
    augment = job["data"].get("augment", {})
    for micro in range(program.micro_batches):
        places = range(micro * program.micro_batch, (micro + 1) * program.micro_batch)
        drawn = [samples.sample(draw(count, step, place)) for place in places]
        if augment:
            for place, sample in zip(places, drawn):
                sample["pixels"] = batches.moved(sample["pixels"], samples.planes, augment, step, place)
        for name, shape in shapes.items():
            numbers = [number for sample in drawn for number in sample[name]]
            yield micro, name, shape, struct.pack(f"<{len(numbers)}I", *numbers)
