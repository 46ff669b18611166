#!/usr/bin/env python3
"""Checks an opening of a run by docs/RUN-FORMAT.md alone ("Openings", "Openings of shards"): it shares no code with the project.

    python3 assets/vectors/openings.py RUN FILE --output SHOWN

RUN holds the published files: run.json, job.toml, program.bin, transcript and heads. The bytes that FILE opens are
written to SHOWN. The first thing that is not as the page says is named, with exit code 1. Needs only the standard
library.
"""

import argparse
import base64
import json
import pathlib
import struct
import sys

from hashes import blake3, derive, merkle_leaf, merkle_node, merkle_root_from_proof, root_of_some, slice_value
from program_format import Malformed, part_of
from run_format import F32, Differs, Run, must, same, sized, state_digest, tensor_digest, u64, unhex, unique

SLICE, ELEMENT = 1024, 4
FORMATS = {
    "tiebreak opening 1": (["format", "run", "parts"], ["file", "length", "length_salt", "first", "count", "bytes", "salts", "siblings"]),
    "tiebreak shard opening 1": (["format", "run", "step", "ranges"], ["tensor", "first", "count", "bytes", "siblings", "salt", "proof"]),
}


def slices_of(what, first, count, size, data):
    """The slices that hold bytes of a file or a tensor, by number; and the bytes that are meant."""
    must(f"{what}: {count} bytes from {first} on, of {size}", count > 0 and 0 <= first and first + count <= size)
    numbers = range(first // SLICE, (first + count - 1) // SLICE + 1)
    start = numbers[0] * SLICE
    same(f"{what}: bytes of its slices", len(data), min(SLICE * len(numbers), size - start))
    return {number: data[at : at + SLICE] for at, number in zip(range(0, len(data), SLICE), numbers)}, data[first - start : first - start + count]


def part(run, part):
    """The bytes of a data file that a part of an opening shows."""
    must("an opening of data is of a run that hides", "salts" in run.file)
    what, number, length = f"file {part['file']}", part["file"], part["length"]
    entry = run.file["data"][number]
    slices, meant = slices_of(what, part["first"], part["count"], length, base64.b64decode(part["bytes"], validate=True))
    told = [unhex(salt, 32) for salt in part["salts"]]
    leaves = {number: derive("tiebreak 2 salted", salt + blake3(data)) for (number, data), salt in zip(slices.items(), told, strict=True)}
    count = max(1, -(-length // SLICE))
    hashed = {number: merkle_leaf(leaf) for number, leaf in leaves.items()}
    tree = root_of_some(count, hashed, [unhex(hash, 32) for hash in part["siblings"]], merkle_node)
    root = derive("tiebreak 2 hidden-file", u64(length) + unhex(part["length_salt"], 32) + tree)
    same(f"{what}: root", root, unhex(entry["root"], 32))
    return meant


def elements(run, state, part):
    """The bytes of a tensor of the state that a range of an opening shows."""
    name, table = part["tensor"], run.program.state()
    names = [name for name, _ in table]
    must(f"the state has no tensor {name}", name in names)
    shape, size = table[names.index(name)][1], ELEMENT
    for dimension in shape:
        size *= dimension
    data = base64.b64decode(part["bytes"], validate=True)
    slices, meant = slices_of(name, ELEMENT * part["first"], ELEMENT * part["count"], size, data)
    count = max(1, -(-size // SLICE))
    values = {number: slice_value(data, SLICE, number, count) for number, data in slices.items()}
    digest = tensor_digest(F32, shape, root_of_some(count, values, [unhex(hash, 32) for hash in part["siblings"]]))
    same(f"{name}: a salt", part["salt"] is not None, "salts" in run.file)
    if part["salt"] is not None:
        digest = derive("tiebreak 2 salted", unhex(part["salt"], 32) + digest)
    leaves, proof = [other for other in names if part_of(other) == part_of(name)], [unhex(hash, 32) for hash in part["proof"]]
    root = merkle_root_from_proof(sized(name.encode()) + digest, leaves.index(name), len(leaves), proof[:-2])
    must(f"{name}: its proof has another length", root is not None)
    roots = proof[-2:]
    roots.insert(part_of(name), root)
    same(f"{name}: state", state_digest(*roots), state)
    return meant


def opened(run, text):
    """All bytes that an opening shows."""
    file = json.loads(text, object_pairs_hook=unique)
    must(f"an opening has no format {file.get('format')!r}", file.get("format") in FORMATS)
    outer, inner = FORMATS[file["format"]]
    same("fields of the opening", sorted(file), sorted(outer))
    same("run of the opening", unhex(file["run"], 32), run.id)
    for one in file[outer[-1]]:
        same("fields of a part of the opening", sorted(one), sorted(inner))
    if outer[-1] == "parts":
        must("an opening has no part", file["parts"])
        return b"".join(part(run, one) for one in file["parts"])
    must(f"the opening has {len(file['ranges'])} ranges", 1 <= len(file["ranges"]) <= 16384)
    covered = max(int(path.name) for path in (run.root / "heads").iterdir() if not path.name.startswith("."))
    must(f"no head covers a record {file['step']}", 0 <= file["step"] < covered)
    record = run.records[file["step"]]
    must("the final record is of no step", record["kind"] != "final")
    return b"".join(elements(run, record["state"], one) for one in file["ranges"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="the folder with the published files of the run")
    parser.add_argument("file", help="the opening")
    parser.add_argument("--output", required=True, help="where the shown bytes are written")
    arguments = parser.parse_args()
    try:
        run = Run(arguments.run, None, print)
        run.identity()
        run.transcript()
        run.heads()
        shown = opened(run, pathlib.Path(arguments.file).read_text())
    except (Differs, Malformed) as difference:
        sys.exit(f"DIFFERS: {difference}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error) as error:
        sys.exit(f"DIFFERS: malformed: {type(error).__name__}: {error}")
    pathlib.Path(arguments.output).write_bytes(shown)
    print(f"OPENS: {len(shown)} bytes")


if __name__ == "__main__":
    main()
