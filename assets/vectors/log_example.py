"""The worked example of a rounding log, written from docs/ROUNDING.md, section 5, alone: one part of 100 elements with three decisions.

`bits` are a block's bits in the order in which they are written, each with what it says.
"""

import math

from hashes import blake3, derive

ELEMENTS = 100
# (place, s, residue)
DECISIONS = [(3, 1, 1), (10, 1, 0), (50, 2, 2)]


class Gaps:
    """The adaptive Rice code."""

    def __init__(self, mean):
        self.sum, self.count = 4 * mean, 4

    def bits(self, gap):
        k = max(0, math.floor(math.log2(45 * self.sum / (64 * self.count))) if self.sum else 0)
        self.sum, self.count = self.sum + gap, self.count + 1
        if self.count == 64:
            self.sum, self.count = self.sum // 2, self.count // 2
        low = "".join(str(gap >> i & 1) for i in range(min(k, 40)))
        return "1" * (gap >> k) + "0" + low, k


def block():
    """(bits, meaning) of the one block's stream."""
    rows, gaps, after = [], Gaps(ELEMENTS // len(DECISIONS)), 0
    for place, _, residue in DECISIONS:
        bits, k = gaps.bits(place - after)
        rows += [(bits, f"gap {place - after}, k = {k}: place {place}"), (str(residue & 1), "last bit of its residue")]
        after = place + 1
    wide = [(number, s, residue) for number, (_, s, residue) in enumerate(DECISIONS) if s > 1]
    gaps, after = Gaps(len(DECISIONS) // len(wide)), 0
    for number, s, residue in wide:
        bits, k = gaps.bits(number - after)
        rows.append((bits, f"gap {number - after}, k = {k}: decision {number} of the block has s > 1"))
        rows.append(("1" * (s - 2) + "0", f"s = {s}"))
        rows.append(("".join(str(residue >> i & 1) for i in range(1, s)), "the other bits of its residue"))
        after = number + 1
    return rows


def log():
    """(bytes, meaning), in order."""
    stream = "".join(bits for bits, _ in block())
    stream += "0" * (-len(stream) % 8)
    packed = bytes(int(stream[at : at + 8][::-1], 2) for at in range(0, len(stream), 8))
    part = [(bytes([3]), "the part: 3 decisions"), (bytes([1]), "the block: 1 of them with s > 1"), (packed, "the block's bits")]
    length = sum(len(data) for data, _ in part)
    front = [(b"tiebreak log 3\n", "the first line"), (bytes([1]), "1 part"), (bytes([length]), f"the part has {length} bytes")]
    return front + part


def example():
    data = b"".join(data for data, _ in log())
    root = derive("tiebreak 2 tensor", bytes([3, 1, 0, 0, 0]) + len(data).to_bytes(4, "little") + blake3(data))
    return {"elements": ELEMENTS, "decisions": DECISIONS, "bytes": [[data.hex(), what] for data, what in log()], "bits": block(), "root": root.hex()}
