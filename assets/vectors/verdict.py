#!/usr/bin/env python3
"""Reads a verdict file and checks all that it carries but the recomputation, from docs/AUDIT.md ("The verdict file") and the pages that it names.

    python3 assets/vectors/verdict.py FILE [--program program.bin]

Prints a line a check, and stops with exit code 1 at the first difference, which it names. What is left out is
printed. --program is for verdicts that carry no program. It shares no code with the project, and needs only the
standard library.
"""

import argparse
import base64
import json
import pathlib
import struct
import sys
import tomllib

from hashes import derive, merkle_root_from_proof, root_of_some, slice_value
from program_format import Malformed, Program, bytes_of
from run_format import TILE, Differs, Key, check_signatures, decode_record, must, option, phases, read_note, same
from run_format import job_digest, sized, state_digest, tensor_digest, unhex, unique

SLICE = 1024
# The fields of each object, in their order. Those that may be absent end with a question mark.
VERDICT = ["format", "run", "job", "program?", "head", "record", "claim"]
RUN = ["contract", "trainer_key", "challenge", "nonce", "program", "data", "initial", "origin"]
RECORD, TENSOR = ["index", "record", "proof"], ["digest", "proof"]
INPUT = ["tensor", "commitment", "slices", "bytes", "siblings"]
CLAIMS = {
    "tile": ["before", "phase", "node", "output", "tile", "value", "siblings", "disclosed", "inputs"],
    "rounding": ["before", "micro_batch", "product", "element", "rounded", "inputs"],
    "binding": ["outputs", "siblings", "before?", "kept?"],
    "scalar": ["scalar", "output"],
    "initial": [],
    "weights": ["element", "state", "file?"],
    "learning_rate": [],
    "cursor": [],
    "batch": ["files", "slices"],
    "final": ["last"],
    "fork": ["other", "evidence"],
    "step": ["micro_batches", "tensors"],
}


def fields(what, value, names):
    present = [name.rstrip("?") for name in names if not name.endswith("?") or name.rstrip("?") in value]
    same(f"fields of {what}", list(value), present)


def unbase64(text):
    data = base64.b64decode(text, validate=True)
    must("bytes that are not in their one base64", base64.b64encode(data).decode() == text)
    return data


def hashes(text):
    data = unbase64(text)
    must(f"hashes of {len(data)} bytes", len(data) % 32 == 0)
    return [data[at : at + 32] for at in range(0, len(data), 32)]


def additions(micro_batches):
    """The operands of each addition of gradients (docs/ARITHMETIC.md, section 7), and the phase that has the whole gradient."""
    operands, waiting = [], []

    def add(left, right):
        operands.append((left, right))
        return f"accumulate{len(operands) - 1}"

    for micro in range(micro_batches):
        height, phase = 0, f"micro{micro}"
        while waiting and waiting[-1][0] == height:
            phase, height = add(waiting.pop()[1], phase), height + 1
        waiting.append((height, phase))
    whole = waiting.pop()[1]
    while waiting:
        whole = add(waiting.pop()[1], whole)
    return operands, whole


class Verdict:
    def __init__(self, data, program, report):
        self.report, self.not_checked = report, []
        must("verdict: above 256 MiB", len(data) <= 1 << 28)
        self.file = json.loads(data, object_pairs_hook=unique)
        same("verdict: its one encoding", data, json.dumps(self.file, separators=(",", ":"), ensure_ascii=False).encode())
        fields("the verdict", self.file, VERDICT)
        same("format", self.file["format"], 2)
        self.claim = self.file["claim"]
        must(f"no claim has the kind {self.claim.get('kind')!r}", self.claim.get("kind") in CLAIMS)
        fields("the claim", self.claim, ["kind", *CLAIMS[self.claim["kind"]]])
        carried = self.file.get("program")
        must("a verdict that carries no program needs --program", carried is not None or program is not None)
        self.program = Program(program if carried is None else unbase64(carried))
        same("program digest", unhex(self.file["run"]["program"], 32), derive("tiebreak 2 program", self.program.data))

    def passed(self, what):
        self.report(f"ok: {what}")

    def check(self):
        self.head(*self.identity())
        if self.file["record"] is not None:
            self.record = decode_record(self.under_head(self.file["record"]))
            self.passed(f"record {self.file['record']['index']} is under the head")
        if self.claim["kind"] == "tile":
            self.tile()
        else:
            self.not_checked.append(f"the claim, which is of the kind {self.claim['kind']}")

    def identity(self):
        """The run id, and the key that the run names."""
        run = self.file["run"]
        fields("the run", run, RUN)
        same("contract", run["contract"], "tiebreak-contract-2")
        same("kind of the origin: others are not read here", run["origin"], {"kind": "seed"})
        key = None if run["trainer_key"] is None else Key(run["trainer_key"])
        challenge = option(None if run["challenge"] is None else unhex(run["challenge"], 32))
        job, program = job_digest(tomllib.loads(self.file["job"]), self.program), unhex(run["program"], 32)
        self.computation = derive(
            "tiebreak 2 computation",
            sized(run["contract"].encode()) + job + program + unhex(run["data"], 32) + unhex(run["initial"], 32) + challenge,
        )
        job_file, origin = derive("tiebreak 2 job-file", self.file["job"].encode()), derive("tiebreak 2 initial-origin", b"\0")
        signer = key.public if key else bytes(32)
        return derive("tiebreak 2 run-id", self.computation + job_file + origin + signer + unhex(run["nonce"], 16)), key

    def head(self, run, key):
        origin, self.size, self.root, text, lines = read_note(self.file["head"])
        same("origin of the head", origin, f"tiebreak/run/{run.hex()}")
        check_signatures("head", text, lines, key)
        self.passed(f"head over {self.size} records of run {run.hex()}" + (f", signed by {key.name}" if key else ", which names no key"))

    def under_head(self, proven):
        """The bytes of a record of this computation, after the check that the head covers it."""
        fields("a record with its proof", proven, RECORD)
        data, proof = unbase64(proven["record"]), [unhex(hash, 32) for hash in proven["proof"]]
        must(f"record {proven['index']} is not among {self.size}", 0 <= proven["index"] < self.size)
        same(f"root that record {proven['index']} gives", merkle_root_from_proof(data, proven["index"], self.size, proof), self.root)
        same("computation of the record", decode_record(data)["computation"], self.computation)
        return data

    def committed(self, what, root, index, size, name, proven):
        """Checks that a table of `size` leaves has a tensor's digest under its name."""
        fields("a tensor with its proof", proven, TENSOR)
        leaf = sized(name.encode()) + unhex(proven["digest"], 32)
        same(what, merkle_root_from_proof(leaf, index, size, [unhex(hash, 32) for hash in proven["proof"]]), root)

    def tile(self):
        claim, step = self.claim, self.record["step"]
        before = decode_record(self.under_head(claim["before"]))
        same("number of the record before", claim["before"]["index"], step - 1)
        self.state = before["state"] if "state" in before else state_digest(before["parameters"], before["buffers"], before["slots"])
        self.passed(f"record {step - 1} is under the head")
        phase = claim["phase"] if claim["phase"] == "update" else "".join(f"{name}{number}" for name, number in claim["phase"].items())
        self.places = {(phase, number): (index, graph) for index, (phase, graph, number) in enumerate(phases(self.program))}
        must(f"no node {phase}/{claim['node']} is in a trace", (phase, claim["node"]) in self.places)
        graph = self.places[phase, claim["node"]][1]
        operator, reads, output = graph.nodes[claim["node"]]
        self.under_trace(phase, claim["node"], claim["output"])
        self.passed(f"{phase}/{claim['node']} ({operator}) is under the trace root of step {step}")
        code, shape = graph.tensors[output]
        tiles, value = max(1, -(-bytes_of(code, shape) // TILE)), unhex(claim["value"], 32)
        root = root_of_some(tiles, {claim["tile"]: value}, hashes(claim["siblings"]))
        same(f"digest that tile {claim['tile']} of {tiles} gives", tensor_digest(code, shape, root), unhex(claim["output"]["digest"], 32))
        self.passed(f"tile {claim['tile']} of {tiles} is under the output's digest")
        if claim["disclosed"] is not None:
            fields("the disclosed tile", claim["disclosed"], ["bytes", "element"])
            data = unbase64(claim["disclosed"]["bytes"])
            same("bytes of the disclosed tile", len(data), min(bytes_of(code, shape) - TILE * claim["tile"], TILE))
            same("value of the disclosed tile", slice_value(data, TILE, claim["tile"], tiles), value)
            self.passed(f"the disclosed bytes are tile {claim['tile']}; element {claim['disclosed']['element']} is disputed")
        seen = set()
        for given in claim["inputs"]:
            fields("an input", given, INPUT)
            must(f"input {given['tensor']} comes twice, or is not read", given["tensor"] in reads and given["tensor"] not in seen)
            seen.add(given["tensor"])
            self.input(phase, graph, given)
        self.not_checked.append("whether the operator makes these values of these inputs")

    def under_trace(self, phase, node, proven):
        index, _ = self.places[phase, node]
        self.committed(f"trace root that {phase}/{node} gives", self.record["trace"], index, len(self.places), f"{phase}/{node}", proven)

    def input(self, phase, graph, given):
        code, shape = graph.tensors[given["tensor"]]
        size, data = bytes_of(code, shape), unbase64(given["bytes"])
        count, pieces, at = max(1, -(-size // SLICE)), {}, 0
        must("slices of an input do not ascend", given["slices"] == sorted(set(given["slices"])))
        for number in given["slices"]:
            length = min(SLICE, size - SLICE * number)
            must(f"an input has no slice {number}, or fewer bytes", 0 <= number < count and at + length <= len(data))
            pieces[number] = slice_value(data[at : at + length], SLICE, number, count)
            at += length
        same("bytes of an input's slices", len(data), at)
        root = root_of_some(count, pieces, hashes(given["siblings"]))
        same("digest that slices of an input give", tensor_digest(code, shape, root), unhex(given["commitment"]["digest"], 32))
        source = self.origin(phase, graph, given["tensor"], given["commitment"])
        self.passed(f"{len(pieces)} of {count} slices of {source}")

    def origin(self, phase, graph, tensor, proven):
        """Checks what commits an input, which follows from the program, and names it."""
        made = [number for number, node in enumerate(graph.nodes) if node[2] == tensor]
        if made:
            self.under_trace(phase, made[0], proven)
            return f"{phase}/{made[0]}"
        name = {number: name for name, number in graph.inputs.items()}[tensor]
        names = [name for name, _ in self.program.state()]
        if name in names:
            return self.of_state(names, name, proven)
        batch = [f"batch/{entry}" for entry, _, _ in self.program.batch]
        if name in batch:
            micro, index, size = int(phase.removeprefix("micro")), batch.index(name), len(batch)
            leaf = f"micro{micro}/{name.removeprefix('batch/')}"
            total = size * self.program.micro_batches
            self.committed("batch root that an input gives", self.record["batch"], micro * size + index, total, leaf, proven)
            return leaf
        operands, whole = additions(self.program.micro_batches)
        if phase.startswith("accumulate"):
            side, _, name = name.partition("/")
            source = operands[int(phase.removeprefix("accumulate"))][("left", "right").index(side)]
        else:
            source = whole
        other = self.program.micro if source.startswith("micro") else self.program.accumulate
        node = [number for number, entry in enumerate(other.nodes) if entry[2] == other.outputs[name]][0]
        self.under_trace(source, node, proven)
        return f"{source}/{node}"

    def of_state(self, names, name, proven):
        kind = lambda name: 0 if name.startswith("param/") else 1 if name.startswith("buffer/") else 2
        part = [other for other in names if kind(other) == kind(name)]
        proof, others = proven["proof"][:-2], [unhex(hash, 32) for hash in proven["proof"][-2:]]
        leaf = sized(name.encode()) + unhex(proven["digest"], 32)
        root = merkle_root_from_proof(leaf, part.index(name), len(part), [unhex(hash, 32) for hash in proof])
        must("proof of a state tensor has another length", root is not None)
        others.insert(kind(name), root)
        same(f"state that {name} gives", state_digest(*others), self.state)
        return name


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", help="the verdict")
    parser.add_argument("--program", help="the program's file, for a verdict that carries none")
    arguments = parser.parse_args()
    try:
        program = pathlib.Path(arguments.program).read_bytes() if arguments.program else None
        verdict = Verdict(pathlib.Path(arguments.file).read_bytes(), program, print)
        verdict.check()
    except (Differs, Malformed) as difference:
        sys.exit(f"DIFFERS: {difference}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error) as error:
        sys.exit(f"DIFFERS: malformed: {type(error).__name__}: {error}")
    for what in verdict.not_checked:
        print(f"not checked: {what}")


if __name__ == "__main__":
    main()
