#!/usr/bin/env python3
"""Reads a verdict file by docs/AUDIT.md ("The verdict file") and the pages that it names: it shares no code with the project.

    python3 assets/vectors/verdict.py FILE [--program program.bin]

Prints a line a check, and stops with exit code 1 at the first thing that is not as the page says, which it names.
Claims about hashes alone are decided: CONVICTS, or does not convict. Of a tile all is checked but the recomputation;
what is left out is printed. --program is for verdicts that carry no program. Needs only the standard library.
"""

import argparse
import base64
import json
import pathlib
import struct
import sys
import tomllib

from hashes import blake3, derive, merkle_leaf, merkle_node, merkle_root_from_proof, root_of_some, slice_value
from program_format import Malformed, Program, bytes_of, part_of
from run_corrections import prefix_roots
from run_format import F32, TILE, Differs, Key, check_signatures, decode_record, must, option, phases, read_note, same
from run_format import job_digest, sized, state_digest, table_root, tensor_digest, unhex, unique

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
        self.run, self.key = self.identity()
        self.head = self.note("head", self.file["head"])
        self.places = {(phase, number): (index, graph) for index, (phase, graph, number) in enumerate(phases(self.program))}
        kind, proven = self.claim["kind"], self.file["record"]
        if proven is not None:
            self.record = decode_record(self.under_head(proven))
            self.passed(f"record {proven['index']} is under the head")
        elif kind != "fork":
            raise Differs("a verdict that is about no fork carries a record")
        if kind not in ("fork", "initial", "weights", "final"):
            same("number of the record", proven["index"], self.record["step"])
        decide = {"tile": self.tile, "binding": self.binding, "scalar": self.scalar, "cursor": self.cursor, "final": self.final, "fork": self.fork}.get(kind)
        honest = decide() if decide else self.not_checked.append(f"the claim, which is of the kind {kind}")
        if honest is not None:
            self.report("does not convict" if honest else "CONVICTS")

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

    def note(self, what, note):
        """The size and the root of a head of this run."""
        origin, size, root, text, lines = read_note(note)
        same(f"origin of the {what}", origin, f"tiebreak/run/{self.run.hex()}")
        check_signatures(what, text, lines, self.key)
        signer = f", signed by {self.key.name}" if self.key else ", which names no key"
        self.passed(f"{what} over {size} records of run {self.run.hex()}{signer}")
        return size, root

    def under_head(self, proven, head=None):
        """The bytes of a record of this computation, after the check that the head covers it."""
        fields("a record with its proof", proven, RECORD)
        data, proof, (size, root) = unbase64(proven["record"]), [unhex(hash, 32) for hash in proven["proof"]], head or self.head
        must(f"record {proven['index']} is not among {size}", 0 <= proven["index"] < size)
        same(f"root that record {proven['index']} gives", merkle_root_from_proof(data, proven["index"], size, proof), root)
        same("computation of the record", decode_record(data)["computation"], self.computation)
        return data

    def committed(self, what, root, index, size, name, proven):
        """Checks that a table of `size` leaves has a tensor's digest under its name."""
        fields("a tensor with its proof", proven, TENSOR)
        leaf = sized(name.encode()) + unhex(proven["digest"], 32)
        same(what, merkle_root_from_proof(leaf, index, size, [unhex(hash, 32) for hash in proven["proof"]]), root)

    def before(self, proven):
        """Takes the state from the record before the step's."""
        record = decode_record(self.under_head(proven))
        same("number of the record before", proven["index"], self.record["step"] - 1)
        self.state = record["state"]
        self.passed(f"record {proven['index']} is under the head")

    def tile(self):
        claim, step = self.claim, self.record["step"]
        self.before(claim["before"])
        phase = claim["phase"] if claim["phase"] == "update" else "".join(f"{name}{number}" for name, number in claim["phase"].items())
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

    def binding(self):
        """True if the outputs of the update, with frozen parameters, are the state that the record commits to."""
        made, claim, parts = self.program.update.outputs, self.claim, ([], [], [])
        names = [name for name, _ in self.program.state()]
        outputs, kept = iter(claim["outputs"]), iter(claim.get("kept", []))
        if "before" in claim:
            self.before(claim["before"])
        leaves = {}
        for name in names:
            if name in made:
                digest, node = unhex(next(outputs), 32), self.maker(self.program.update, made[name])
                leaves[self.places["update", node][0]] = merkle_leaf(sized(f"update/{node}".encode()) + digest)
            else:
                proven = next(kept)
                self.of_state(names, name, proven)
                digest = unhex(proven["digest"], 32)
            parts[part_of(name)].append((name, digest))
        must("a binding lists too many tensors", next(outputs, None) is None and next(kept, None) is None)
        same("trace root that the outputs give", root_of_some(len(self.places), leaves, hashes(claim["siblings"]), merkle_node), self.record["trace"])
        self.passed(f"{len(leaves)} outputs of the update are under the trace root")
        return state_digest(*map(table_root, parts)) == self.record["state"]

    def scalar(self):
        """True if the record's clip factor or loss is the one that its trace has."""
        name, proven, update = self.claim["scalar"], self.claim["output"], self.program.update
        must(f"no scalar has the name {name!r}", name in ("clip", "loss"))
        if proven is None:
            must("a verdict without an output is on the clip factor of a job that does not clip", name == "clip" and "clip" not in update.outputs)
            return self.record["clip"] == 0x3F800000
        phase = "update" if name in update.outputs else additions(self.program.micro_batches)[1]
        graph = update if phase == "update" else self.graph(phase)
        self.under_trace(phase, self.maker(graph, graph.outputs[name]), proven)
        self.passed(f"the {name} is under the trace root")
        return tensor_digest(F32, [1], blake3(struct.pack("<I", self.record[name]))) == unhex(proven["digest"], 32)

    def cursor(self):
        return self.record["samples"] == self.record["step"] * self.program.micro_batch * self.program.micro_batches

    def final(self):
        """True if the final record has the state of the last step's."""
        index, last = self.file["record"]["index"], decode_record(self.under_head(self.claim["last"]))
        same("kinds of the two records", (self.record["kind"], last["kind"]), ("final", "step"))
        same("numbers of the two records", (self.claim["last"]["index"], last["step"], index), (index - 1, index - 1, self.record["steps"] + 1))
        return last["state"] == state_digest(*(self.record[part] for part in ("parameters", "buffers", "slots")))

    def fork(self):
        """True if both heads are of one history."""
        must("nobody signed the heads of a run without a key", self.key)
        other, evidence = self.note("other head", self.claim["other"]), self.claim["evidence"]
        if self.file["record"] is None:
            same("evidence of two heads", list(evidence), ["prefix"])
            fields("a prefix", evidence["prefix"], ["proof"])
            # Of two heads of one size, the verdict's own has the part of the larger one.
            (small, root), (large, whole) = sorted([other, self.head], key=lambda head: head[0])
            proof = [unhex(hash, 32) for hash in evidence["prefix"]["proof"]]
            must("a prefix of no record", small >= 1)
            first, all_records = prefix_roots(small, large, proof)
            must("a proof of a prefix has too many hashes", not proof)
            same("root that the proof gives", all_records, whole)
            return first == root
        same("evidence of two records", list(evidence), ["record"])
        fields("the other record", evidence["record"], ["record"])
        there = evidence["record"]["record"]
        same("number of the other record", there["index"], self.file["record"]["index"])
        return self.under_head(there, other) == unbase64(self.file["record"]["record"])

    def graph(self, phase):
        return self.program.micro if phase.startswith("micro") else self.program.accumulate

    @staticmethod
    def maker(graph, tensor):
        return [number for number, node in enumerate(graph.nodes) if node[2] == tensor][0]

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
        other = self.graph(source)
        node = self.maker(other, other.outputs[name])
        self.under_trace(source, node, proven)
        return f"{source}/{node}"

    def of_state(self, names, name, proven):
        part = [other for other in names if part_of(other) == part_of(name)]
        proof, others = proven["proof"][:-2], [unhex(hash, 32) for hash in proven["proof"][-2:]]
        leaf = sized(name.encode()) + unhex(proven["digest"], 32)
        root = merkle_root_from_proof(leaf, part.index(name), len(part), [unhex(hash, 32) for hash in proof])
        must("proof of a state tensor has another length", root is not None)
        others.insert(part_of(name), root)
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
