#!/usr/bin/env python3
"""Salts, salted digests and hidden files, from docs/RUN-FORMAT.md alone: `python3 assets/vectors/salts.py > assets/vectors/salts.json`.

Needs only the standard library, and shares no code with the project. run_format.py reads runs that hide with it.
"""

import json
import struct

from hashes import blake3, derive, keyed, merkle_node, merkle_root

SLICE, GROUP = 1024, 65536
KINDS = ("state", "batch", "gradients", "loss", "clip", "slice", "length", "seed")


def salt(key, kind, first, second):
    """The salt of a place."""
    name = kind.encode()
    return keyed(key, struct.pack("<I", len(name)) + name + struct.pack("<QQ", first, second))


def salted(key, kind, first, second, plain):
    """The salted form of a digest."""
    return derive("tiebreak 2 salted", salt(key, kind, first, second) + plain)


def masked(key, kind, step, word):
    """A hidden scalar as it was, and the other way round."""
    return word ^ struct.unpack("<I", salt(key, kind, step, 0)[:4])[0]


def commitment(key):
    return derive("tiebreak 2 salt-key", key)


def key_of(text):
    """The key of a key file's text."""
    mark, digits = "SALT+KEY+", text.rstrip()
    if not digits.startswith(mark) or len(digits) != len(mark) + 64:
        raise ValueError("the file holds no salt key")
    return bytes.fromhex(digits[len(mark) :])


def group_roots(key, number, data):
    """The root of each group of a file: over the salted slices that it has."""
    roots = []
    for start in range(0, max(len(data), 1), GROUP):
        group = data[start : start + GROUP]
        slices = range(0, max(len(group), 1), SLICE)
        leaves = [salted(key, "slice", number, (start + at) // SLICE, blake3(group[at : at + SLICE])) for at in slices]
        roots.append(merkle_root(leaves))
    return roots


def joined(hashes):
    """The root over hashes of subtrees of equal size, the last of which may be smaller."""
    if len(hashes) == 1:
        return hashes[0]
    half = 1 << ((len(hashes) - 1).bit_length() - 1)
    return merkle_node(joined(hashes[:half]), joined(hashes[half:]))


def file_root(key, number, length, groups):
    """The root that run.json has of a hidden file."""
    return derive("tiebreak 2 hidden-file", struct.pack("<Q", length) + salt(key, "length", number, 0) + joined(groups))


def main():
    key = bytes(range(100, 132))
    salts, files = [], []
    for number, kind in enumerate(KINDS):
        for first, second in ((0, 0), (number + 1, 7), (2**32 - 1, 2**40 + number)):
            plain = bytes([number + 1] * 32)
            value, hidden = salt(key, kind, first, second), salted(key, kind, first, second, plain)
            case = {"kind": kind, "first": first, "second": second, "salt": value.hex(), "plain": plain.hex()}
            salts.append(case | {"salted": hidden.hex()})
    for number, length in enumerate((0, 1, 1024, 1025, 65536, 65537, 150000)):
        data = bytes(i * 31 % 251 for i in range(length))
        groups = group_roots(key, number, data)
        root = file_root(key, number, length, groups)
        files.append({"number": number, "length": length, "groups": [group.hex() for group in groups], "root": root.hex()})
    step = {"step": 3, "loss": 0x40B17218, "clip": 0x3F800000}
    step |= {f"{kind}_hidden": masked(key, kind, 3, step[kind]) for kind in ("loss", "clip")}
    text = "SALT+KEY+" + key.hex()
    print(json.dumps({"key": text, "commitment": commitment(key).hex(), "salts": salts, "files": files, "scalars": step}, indent=1))


if __name__ == "__main__":
    main()
