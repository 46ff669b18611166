#!/usr/bin/env python3
"""Proves the theorems of proofs/theorems about the shaders' text: each with its planted faults, which have to break it.

    proofs/prove.py                 every theorem
    proofs/prove.py NAME...         these theorems
    proofs/prove.py --quick         the theorems marked `quick`, and a sample of the golden vectors
    proofs/prove.py --no-faults     without the planted faults
    proofs/prove.py --limit 900     seconds for a question to the solver (default 3600)

Wants bitwuzla (`pip install bitwuzla==0.9.1`) and `cargo build -p proofs`, or the program's path in WGSL_SMT. The exit status is
1 unless every theorem is proved and every fault found. Times are processor seconds.

A theorem is a file NAME.smt2. Its first comment says in words what is proved. Lines `;! ...` say what the text before it is:

    ;! shader FILE              the shader, under shaders/
    ;! define FUNCTION...       its functions, with all that they call
    ;! cut FUNCTION             a function with its first loop cut open
    ;! abstract FUNCTION        a function that may be anything
    ;! open wgsl.mul            products of words may be anything (else they are products)
    ;! kernel                   what the entry point does to each of its arrays; `kernel cut`: with its first loop cut open
    ;! word NAME VALUE          a word of the kernel's uniform, as p.0.x (else it may be anything)
    ;! choice V A B BITS        the product's template, completed for this variant, digits and bits of a sum
    ;! bounds                   instead: `wgsl-smt --bounds` of a template of the product, which asks no solver
    ;! each NAME FROM TO        one question for each number of the range, {NAME} in the text and in these lines
    ;! among NAME VALUE...      one question for each of the values
    ;! let NAME EXPRESSION      {NAME} is what Python makes of the expression
    ;! repeat NAME I COUNT TEXT {NAME} is the text for I from 0 to COUNT - 1
    ;! quick                    takes seconds
    ;! fault OLD => NEW         a fault in the shader's text, with which the theorem must be false ($ is a line's end)

The rest asserts the theorem's negation, so `unsat` is a proof.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import bitwuzla

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = os.environ.get("WGSL_SMT", str(HERE.parent / "target/debug/wgsl-smt"))
WORD = "(_ BitVec 32)"


def processor():
    """Processor seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


class Theorem:
    """A file of theorems/."""

    def __init__(self, path):
        self.name = path.stem
        lines = path.read_text().splitlines()
        notes = [line[2:].strip() for line in lines if line.startswith(";!")]
        self.notes = [tuple((note + " ").split(" ", 1)) for note in notes]
        first = next(i for i, line in enumerate(lines) if not line.startswith("; "))
        self.words = " ".join(line[2:] for line in lines[:first])
        self.text = "\n".join(line for line in lines if not line.startswith(";"))

    def note(self, name):
        """The texts of the notes with this name."""
        return [text.strip() for key, text in self.notes if key == name]

    def faults(self):
        """(old, new) of each planted fault."""
        return [tuple(part.strip().replace("$", "\n") for part in text.split("=>")) for text in self.note("fault")]

    def instances(self):
        """The values of names, for each question."""
        instances = [{}]
        for kind in ("each", "among"):
            for note in self.note(kind):
                name, *values = note.split()
                if kind == "each":
                    values = range(int(values[0]), int(values[1]) + 1)
                instances = [{**instance, name: str(value)} for instance in instances for value in values]
        for kind in ("let", "repeat"):
            for note in self.note(kind):
                name, rest = note.split(" ", 1)
                for instance in instances:
                    instance[name] = expression(rest, instance) if kind == "let" else repeated(rest, instance)
        return instances

    def chosen(self, instance):
        """The values that tell an instance from others."""
        names = [note.split()[0] for kind in ("each", "among") for note in self.note(kind)]
        return {name: instance[name] for name in names}

    def question(self, instance, fault=None):
        """All that the solver is asked in an instance, with this fault in the shader's text."""
        return self.definitions(instance, fault) + filled(self.text, instance)

    def command(self, instance, fault):
        """The command that prints the shader's functions as SMT-LIB."""
        words = [PROGRAM, *self.note("shader")]
        if self.note("bounds"):
            words.append("--bounds")
        for note in self.note("kernel"):
            words.append("--kernel-cut" if note == "cut" else "--kernel")
        for kind in ("word", "choice"):
            for note in self.note(kind):
                words += [f"--{kind}", *filled(note, instance).split()]
        for name in self.note("abstract"):
            words += ["--abstract", name]
        for names in self.note("define"):
            words += names.split()
        for name in self.note("cut"):
            words += ["--cut", name]
        if fault:
            words += ["--replace", *fault]
        return words

    def bounds(self, fault=None):
        """The result of `wgsl-smt --bounds`, in the form of `ask`."""
        process = subprocess.run(self.command({}, fault), capture_output=True, text=True)
        if process.returncode == 0:
            return "unsat", {}
        # An unreadable template refutes nothing.
        found = any(word in process.stderr for word in ("overflow", "rounded", "grow"))
        result = "sat" if found else "unknown"
        return result, {"refused": process.stderr.strip()}

    def definitions(self, instance, fault=None):
        """The shader's functions as SMT-LIB, from its text with this fault."""
        done = subprocess.run(self.command(instance, fault), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{self.name}: {done.stderr}")
        product = f"(declare-fun wgsl.mul ({WORD} {WORD}) {WORD})"
        if "wgsl.mul" not in self.note("open"):
            product = f"(define-fun wgsl.mul ((a {WORD}) (b {WORD})) {WORD} (bvmul a b))"
        return f"{product}\n{done.stdout}"


def expression(text, instance):
    """The value of an expression of a theorem."""
    return str(eval(filled(text, instance)))


def repeated(text, instance):
    """A text once for each number below a count: `I COUNT TEXT`."""
    name, count, text = text.split(" ", 2)
    return " ".join(filled(text, {**instance, name: str(number)}) for number in range(int(filled(count, instance))))


def filled(text, instance):
    """A text with an instance's values in place of their names."""
    for name, value in instance.items():
        text = text.replace("{%s}" % name, value)
    return text


def ask(text, limit):
    """Asks the solver if a text is satisfiable: returns ("unsat" or "sat" or "unknown", the values of its constants)."""
    options = bitwuzla.Options()
    options.set(bitwuzla.Option.PRODUCE_MODELS, True)
    options.set(bitwuzla.Option.TIME_LIMIT_PER, int(limit * 1000))
    manager = bitwuzla.TermManager()
    parser = bitwuzla.Parser(manager, options)
    parser.parse(text, True, False)
    solver = parser.bitwuzla()
    result = solver.check_sat()
    if result == bitwuzla.Result.UNSAT:
        return "unsat", {}
    if result != bitwuzla.Result.SAT:
        return "unknown", {}
    constants = [term for term in parser.get_declared_funs() if not term.sort().is_fun()]
    values = {str(term.symbol()): str(solver.get_value(term)) for term in constants}
    return "sat", {name: hexadecimal(value) for name, value in values.items()}


def hexadecimal(value):
    """A bit vector's value in hexadecimal where it has whole digits."""
    bits = value.removeprefix("#b")
    return f"#x{int(bits, 2):0{len(bits) // 4}x}" if value.startswith("#b") and len(bits) % 4 == 0 else value


def prove(theorem, limit):
    """Prints whether a theorem holds; whether it does."""
    begin = processor()
    results = []
    if theorem.note("bounds"):
        results.append(theorem.bounds())
    else:
        for instance in theorem.instances():
            results.append(ask(theorem.question(instance), limit))
            if results[-1][0] != "unsat":
                results[-1][1].update(theorem.chosen(instance))
                break
    seconds = processor() - begin
    result, values = results[-1]
    verdict = {"unsat": "proved", "sat": "FALSE", "unknown": "UNDECIDED"}[result]
    questions = f", {len(results)} questions" if len(results) > 1 else ""
    print(f"{verdict:9} {theorem.name:24} {seconds:8.1f} s{questions}  {theorem.words}", flush=True)
    if values:
        print("          " + ", ".join(f"{name} = {value}" for name, value in values.items()), flush=True)
    return result == "unsat"


def refute(theorem, fault, limit):
    """Prints whether a fault breaks a theorem; whether it does."""
    begin = processor()
    result, values = "unsat", {}
    if theorem.note("bounds"):
        result, values = theorem.bounds(fault)
    else:
        for instance in theorem.instances():
            result, values = ask(theorem.question(instance, fault), limit)
            if result == "sat":
                values.update(theorem.chosen(instance))
                break
    seconds = processor() - begin
    verdict = "breaks" if result == "sat" else "NOT FOUND"
    values = ", ".join(f"{name} = {value}" for name, value in values.items())
    shown = " => ".join(fault).replace("\n", "$")
    print(f"{verdict:9} {theorem.name:24} {seconds:8.1f} s  {shown}: {values}", flush=True)
    return result == "sat"


def translation(sample):
    """Checks that the terms give the golden vectors, which a script in another language makes from the contract."""
    begin = processor()
    vectors = json.loads((HERE.parent / "assets/vectors/contract.json").read_text())["scalar"][:: 37 if sample else 1]
    names = ["f_add", "f_sub", "f_mul", "f_div", "f_sqrt", "f_lt"]
    words = [PROGRAM, "shared/float.wgsl", *names]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    text = f"(define-fun wgsl.mul ((a {WORD}) (b {WORD})) {WORD} (bvmul a b))\n{text}"
    wrong = []
    for a, b, *results in vectors:
        for name, result in zip(names, results):
            operands = f"#x{a:08x}" if name == "f_sqrt" else f"#x{a:08x} #x{b:08x}"
            wrong.append(f"(not (= ({name} {operands}) #x{result:08x}))")
    result, _ = ask(text + f"(assert (or {' '.join(wrong)}))", 600)
    verdict = "proved" if result == "unsat" else "FALSE"
    seconds = processor() - begin
    print(f"{verdict:9} {'translation':24} {seconds:8.1f} s  the terms give {len(wrong)} scalar results of assets/vectors/contract.json")
    return result == "unsat"


def main():
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--limit", type=float, default=3600)
    arguments = parser.parse_args()
    theorems = {path.stem: Theorem(path) for path in sorted((HERE / "theorems").glob("*.smt2"))}
    unknown = [name for name in arguments.names if name not in theorems and name != "translation"]
    if unknown:
        parser.error(f"no theorem {', '.join(unknown)}; these are: translation, {', '.join(theorems)}")
    chosen = [theorems[name] for name in arguments.names if name in theorems]
    if not arguments.names:
        chosen = [t for t in theorems.values() if not arguments.quick or t.note("quick")]
    done = [translation(arguments.quick)] if not arguments.names or "translation" in arguments.names else []
    for theorem in chosen:
        done.append(prove(theorem, arguments.limit))
        if not arguments.no_faults:
            done += [refute(theorem, fault, arguments.limit) for fault in theorem.faults()]
    print(f"{sum(done)} of {len(done)} hold")
    return 0 if done and all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
