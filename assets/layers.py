"""Writes assets/layers.svg, the picture of ARCHITECTURE.md: the layers, and the way of data through them.

    python3 assets/layers.py
"""

from pathlib import Path

from overview import STYLE, text

WIDTH, HEIGHT, LEFT, GAP = 880, 746, 20, 12

MORE = """
.badge { fill: var(--edge); }
.number { fill: var(--ground); font-size: 12px; font-weight: 700; }
.end { stroke: var(--good); stroke-width: 1.6; stroke-dasharray: 7 5; }
"""

# A row: its height, and its boxes: share of the width, name, what is in it, and the stations of data, numbered.
ABOVE = [
    (58, [(1, "src", "the command, and the facade over all crates", [])]),
    (84, [
        (1, "train", "the loop, ranks, cheats for tests", [(5, "signed log")]),
        (1, "audit", "checks, replay, localising", [(6, "replay and report")]),
        (1, "game", "parties, HTTP, folders", [(8, "questions, answers")]),
    ]),
    (64, [(1, "run", "files of a run, observers of a step", [(4, "record and checkpoint of a step")])]),
    (84, [
        (2, "engine", "CPU, reference, sessions", [(3, "a step's tensors")]),
        (2, "gpu", "plans, generated WGSL, devices", [(3, "the same tensors")]),
        (1.3, "shaders", "built and linted", []),
        (1.3, "cuda-bridge", "WGSL as CUDA C++", []),
    ]),
]
CORE = [
    (64, [(1, "dispute", "evidence, verdicts, the game's rules and referee", [(7, "verdict: a file")])]),
    (64, [(1, "job", "job files, layout of data, batches, names of runs", [(1, "job and data")])]),
    (58, [(1, "record", "commitments, rounding rules", [])]),
    (64, [(1, "contract", "numbers (arith), operators and graphs (program)", [(2, "program: three graphs of a step")])]),
]


def station(x, y, number, words):
    """A station of the data: its number, and what data are there."""
    yield f'<circle class="badge" cx="{x}" cy="{y}" r="9.5"/>'
    yield text(x, y + 4, str(number), "number", "middle")
    yield text(x + 16, y + 4, words)


def row(y, height, boxes):
    unit = (WIDTH - 2 * LEFT - GAP * (len(boxes) - 1)) / sum(share for share, *_ in boxes)
    x = LEFT
    for share, name, what, stations in boxes:
        width = unit * share
        yield f'<rect class="box" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="8"/>'
        yield text(round(x + 14), y + 25, name, "name")
        yield text(round(x + 14), y + 46, what, "soft")
        for number, words in stations:
            at = (round(x + 24), y + 66) if len(boxes) > 1 else (WIDTH - 260, y + height // 2)
            yield from station(*at, number, words)
        x += width + GAP


def picture():
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           'aria-label="The layers: src; train, audit and game; run; engine and gpu; below a line the referee core of dispute, job, record and contract.">')
    yield f"<style>{STYLE}{MORE}</style>"
    yield f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="10"/>'
    y = 20
    for height, boxes in ABOVE:
        yield from row(y, height, boxes)
        y += height + GAP
    yield text(LEFT, y + 10, "Here the referee core ends: below are no files, threads, clocks or random numbers.", "good")
    yield f'<line class="end" x1="{LEFT}" y1="{y + 20}" x2="{WIDTH - LEFT}" y2="{y + 20}"/>'
    y += 34
    for height, boxes in CORE:
        yield from row(y, height, boxes)
        y += height + GAP
    yield text(LEFT, y + 12, "A box imports boxes below it, never above. In a row, gpu imports the other three, and game imports train and audit.", "soft")
    yield text(LEFT, y + 32, "The numbers follow the data from a job file to a verdict and a game.", "soft")
    yield "</svg>"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text("\n".join(picture()) + "\n")
