#!/usr/bin/env python3
"""Corrections of a run: the layout of the file and its proofs, by docs/RUN-FORMAT.md alone."""

from hashes import derive, ed25519_verifies, merkle_node, merkle_root_from_proof
from program_format import Malformed, Reader

MAGIC, DOMAIN = b"tiebreak correction 1\n", b"tiebreak 2 correction\n"


def prefix_roots(count, size, proof):
    """The roots over the first `count` and over all `size` leaves, by the digests that are taken off the front of `proof`."""
    if count == size:
        root = proof.pop(0)
        return root, root
    left = 1 << (size - 1).bit_length() - 1
    if count <= left:
        part, whole = prefix_roots(count, left, proof)
        return part, merkle_node(whole, proof.pop(0))
    whole = proof.pop(0)
    part, rest = prefix_roots(count - left, size - left, proof)
    return merkle_node(whole, part), merkle_node(whole, rest)


def must(what, holds):
    if not holds:
        raise Malformed(f"correction: {what}")


def history(r, step, read_note, decode_record):
    """One of the two runs: its head, the record of the step, and the root over the records before it."""
    note, leaf = r.take(r.u32()), r.take(r.u32())
    proof, prefix = r.list(r.digest), r.list(r.digest)
    must("a note, a record or a proof is too long", len(note) <= 16384 and len(leaf) <= 256 and max(len(proof), len(prefix)) <= 64)
    origin, size, root, text, lines = read_note(note.decode())
    record = decode_record(leaf)
    must(f"record {step} is of another step", record["kind"] == "step" and record["step"] == step)
    must(f"the head covers {size} records", 0 < step < size)
    must("the head does not cover the record", merkle_root_from_proof(leaf, step, size, proof) == root)
    before, whole = prefix_roots(step, size, prefix)
    must("the head does not cover the records before", whole == root and not prefix)
    return {"origin": origin, "size": size, "root": root, "text": text, "lines": lines, "leaf": leaf, "record": record, "before": before}


def read_correction(data, key, read_note, decode_record):
    """The fields of a correction, after all checks but those of the heads' signatures."""
    must("above 65536 bytes, or another magic", len(data) <= 1 << 16 and data.startswith(MAGIC))
    r = Reader(data[len(MAGIC) :], "correction")
    step, last = r.u32(), r.take(r.u32())
    proof = r.list(r.digest)
    old, new = (history(r, step, read_note, decode_record) for _ in range(2))
    reason, text = r.u8(), r.take(r.u32())
    signature = r.take(64)
    r.end()
    must(f"reason {reason}", reason in (1, 2, 3))
    must(f"a text of {len(text)} bytes", len(text) <= 1024 and text.decode() is not None)
    must("the runs do not share the records before", old["before"] == new["before"])
    must("record n - 1 is not where it should be", merkle_root_from_proof(last, step - 1, step, proof) == old["before"])
    computations = {decode_record(last)["computation"], old["record"]["computation"], new["record"]["computation"]}
    must("records of several computations", len(computations) == 1)
    must("both records, or both runs, are the same", old["leaf"] != new["leaf"] and old["origin"] != new["origin"])
    must("the signature does not verify", ed25519_verifies(key, DOMAIN + data[:-64], signature))
    return {"step": step, "old": old, "new": new, "digest": derive("tiebreak 2 correction-file", data[:-64])}
