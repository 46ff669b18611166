#!/usr/bin/env python3
"""Prints docs/FILES.md, the map of the repository's files: .ci/files.py > docs/FILES.md.

A file's subject is the first sentence of the comment at its head, so the map repeats nothing that anybody keeps by hand. New
files count before git has them. `cargo test --test tidy` checks that the page names every file, .ci/run that it is what this prints.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = {".rs", ".wgsl", ".cuh", ".cpp", ".h", ".py", ".sh"}

# Sections in the order in which layers stand on each other: the folder, and what is in it.
SECTIONS = [
    ("crates/contract", "The first layer, which imports no other: numbers, and training steps as graphs."),
    ("crates/record", "A run's promises (commitments), and the rules for logged roundings."),
    ("crates/job", "A run's declarations: jobs, the layout of data, batches, names."),
    ("crates/dispute", "Verdicts, evidence and the game. The referee core ends with this crate."),
    ("crates/engine", "How a graph is executed on a CPU, and how observers see a step's tensors."),
    ("crates/shaders", "The build composes all shaders here; each must pass the lint."),
    ("crates/gpu", "How a graph is executed on GPUs: plans, generated shaders, devices and the engine."),
    ("crates/run", "A run on disk or in memory, and one step with all its promises."),
    ("crates/remote", "Runs at addresses: what reads them over HTTP."),
    ("crates/train", "The training loop, on one machine or on several ranks; trainers that cheat, for tests."),
    ("crates/audit", "Audits: checks without a replay, replays, and conclusions."),
    ("crates/game", "Parties of the dispute game, and what carries their messages."),
    ("crates/monitor", "Compute monitoring: plans, chips' logs and their agent, the register, draws, inspections, matching, witnesses."),
    ("crates/collector", "A collector of chips' records: the chip's side, the rules, and with a feature the server and its databases."),
    ("crates/token-files", "The formats of files that people name as token ids. The command and tiebreak-import share it."),
    ("crates/tokenizer", "Tokenizers and chat templates as people have them on disk. The command and tiebreak-import share it."),
    ("src", "The facade `tiebreak::...` over all crates, and the command line."),
    ("shaders", "The verifier's kernels in WGSL, and a trainer's plain product in `shaders/native`."),
    ("cuda-bridge", "NVIDIA's side: WGSL translated to CUDA C++, kernels written by hand, and stand-ins for the driver."),
    ("machine-code", "The shaders as GPUs' own compilers see them (docs/PORTABILITY.md)."),
    ("proofs", "Proofs about the shaders' text (docs/PROOFS.md). The theorems are the files of `proofs/theorems`."),
    ("tiebreak-import", "Texts, token ids and pictures as the files that jobs take (docs/DATA.md)."),
    ("python", "The Python package: its native module, its sources, and tests by pytest (docs/how-to/python.md)."),
    ("examples", "Programs that use the library. Begin with `examples/reference_step.rs`."),
    ("tests", "Tests of the whole, a program a folder."),
    ("fuzz", "A fuzz target for each parser of foreign bytes."),
    ("benches", "Measurements behind the figures of the pages."),
    ("assets", "Golden vectors and pictures, and the scripts that make them."),
    (".ci", "Checks before a change lands, and before a release."),
]

# What else lies at the top of the repository. Any other name was left there by accident, as by a command that writes to its folder.
TOP = [
    ".cargo", ".dockerignore", ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "Cargo.lock", "Cargo.toml",
    "Containerfile", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "SECURITY.md", "STYLE.md", "_typos.toml", "docs",
    "rustfmt.toml",
]

HEAD = """# Files

A map of the repository: every source file with its subject, in the order in which the layers stand on each other.
[ARCHITECTURE.md](../ARCHITECTURE.md) says what the layers are, and which file to change for what.

A script prints this page from the first sentence of each file: `.ci/files.py > docs/FILES.md`.
"""


def files():
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    names = sorted(name for name in set(names) if name and (ROOT / name).is_file())
    known = {folder.split("/")[0] for folder, _ in SECTIONS} | set(TOP)
    if strange := {name.split("/")[0] for name in names} - known:
        raise SystemExit(f"at the top of the repository: {', '.join(sorted(strange))}: remove them, or add them to TOP")
    return [name for name in names if Path(name).suffix in KINDS or name.startswith(".ci/")]


def comment(path):
    """The comment at a file's head, as plain text: its first paragraph."""
    lines, found = path.read_text().split("\n"), []
    if path.suffix == ".py" or lines[0].endswith("python3"):
        text = path.read_text().split('"""')
        return " ".join(text[1].strip().split("\n\n")[0].split()) if len(text) > 1 else ""
    mark = {".rs": "//!", "": "#", ".sh": "#"}.get(path.suffix, "//")
    for line in lines:
        skipped = line.startswith(("#!", "//!include")) or (not found and not line.startswith(mark))
        if skipped and not found:
            continue
        if not line.startswith(mark) or not line[len(mark) :].strip():
            break
        found.append(line[len(mark) :].strip())
    return " ".join(found)


def subject(path, folder):
    # A package's own files are named from its folder in its comments, and from the top on the page.
    text = re.sub(r"`(?=src/)", f"`{folder}/", comment(path)) if folder != "src" else comment(path)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\[(`[^`\]]*`)\]", r"\1", text)
    first = re.match(r"(.*?[.?!])(?=\s+([A-Z`\"(]|src/)|$)", text)
    said = (first[1] if first else text).replace("|", "\\|")
    # Outside of code, `vec2<u32>` would be a tag of HTML.
    return re.sub(r"`[^`]*`|<", lambda found: "&lt;" if found[0] == "<" else found[0], said)


def rows(names, folder):
    inside = [name for name in names if name.startswith(folder + "/")]
    # The file of a folder comes before the files in it.
    key = lambda name: [(part not in ("lib.rs", "main.rs", "mod.rs"), part) for part in Path(name).parts]
    for name in sorted(inside, key=key):
        said = subject(ROOT / name, folder)
        if not said:
            raise SystemExit(f"{name} does not begin with its subject")
        yield f"| `{name}` | {said} |"


def page():
    names = files()
    yield HEAD
    named = set()
    for folder, what in SECTIONS:
        table = list(rows(names, folder))
        named.update(row.split("`")[1] for row in table)
        yield f"## {folder}\n\n{what}\n\n| file | subject |\n|---|---|\n" + "\n".join(table) + "\n"
    missing = [name for name in names if name not in named]
    if missing:
        raise SystemExit(f"no section has {', '.join(missing)}")


if __name__ == "__main__":
    print("\n".join(page()), end="")
