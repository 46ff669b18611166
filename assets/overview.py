"""Writes assets/overview.svg, the picture at the head of README.md: trainer, log, auditor, referee.

    python3 assets/overview.py

The picture has a ground of its own, light or dark as the reader prefers, so that it reads on any page.
"""

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 880, 408
STEPS, WRONG = 8, 5

STYLE = """
svg { --ground: #ffffff; --box: #f3f5f8; --edge: #8a94a3; --ink: #1c2530; --soft: #55606e; --good: #1a7f4b; --bad: #c4302b; }
@media (prefers-color-scheme: dark) {
  svg { --ground: #12161c; --box: #1e2530; --edge: #76818f; --ink: #e9edf2; --soft: #a5afbb; --good: #4cc38a; --bad: #ff7b72; }
}
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 13px; fill: var(--ink); }
.name { font-size: 18px; font-weight: 600; }
.soft { fill: var(--soft); }
.good { fill: var(--good); font-weight: 600; }
.bad { fill: var(--bad); font-weight: 600; }
.ground { fill: var(--ground); }
.box { fill: var(--box); stroke: var(--edge); stroke-width: 1.2; }
.link { stroke: var(--edge); stroke-width: 1.6; fill: none; }
.wrong { fill: var(--bad); stroke: var(--bad); }
.tip { fill: var(--edge); }
"""


def text(x, y, words, kind="", anchor="start"):
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x, y, width, height, name, lines):
    """A party: its name, and what it does."""
    yield f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
    yield text(x + 16, y + 30, name, "name")
    for i, (words, kind) in enumerate(lines):
        yield text(x + 16, y + 54 + 20 * i, words, kind)


def arrow(points):
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline class="link" points="{path}" marker-end="url(#tip)"/>'


def log(x, y, width):
    """Records under one signed head: a hash tree, in which the path to the wrong step is marked."""
    gap = width / STEPS
    level = [(x + gap * (i + 0.5), y + 112) for i in range(STEPS)]
    for i, (at, top) in enumerate(level):
        kind = "box wrong" if i == WRONG else "box"
        yield f'<rect class="{kind}" x="{at - 10:.1f}" y="{top}" width="20" height="26" rx="3"/>'
    rise, place = 32, WRONG
    while len(level) > 1:
        above = [((a[0] + b[0]) / 2, a[1] - rise) for a, b in zip(level[::2], level[1::2])]
        for i, (at, top) in enumerate(level):
            to = above[i // 2]
            mark = ' style="stroke: var(--bad)"' if i == place else ""
            yield f'<line class="link" x1="{at:.1f}" y1="{top}" x2="{to[0]:.1f}" y2="{to[1]}"{mark}/>'
        level, place = above, place // 2
    at, top = level[0]
    yield f'<circle class="box" cx="{at:.1f}" cy="{top}" r="7"/>'
    yield text(at + 16, top + 5, "signed head", "soft")


def picture():
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           'aria-label="A trainer commits to every step in a signed log. An auditor replays steps from it. A referee decides a dispute.">')
    yield f"<style>{STYLE}</style>"
    yield ('<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" orient="auto">'
           '<path class="tip" d="M0 0 L10 5 L0 10 z"/></marker></defs>')
    yield f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="10"/>'
    yield from box(20, 44, 220, 140, "Trainer", [
        ("datacentre GPUs, or CPUs", "soft"), ("trains, and commits to", ""), ("every step as it goes", ""), ("need not be trusted", "soft")])
    yield text(330, 40, "Log", "name")
    yield from log(330, 46, 220)
    yield text(440, 206, "one record a step, checkpoints between", "soft", "middle")
    yield from box(636, 44, 224, 140, "Auditor", [
        ("any GPU, or a laptop's CPU", "soft"), ("replays any step:", ""), ("MATCHES: the same bits,", "good"), ("DIVERGES: step, operator", "bad")])
    yield from box(278, 262, 324, 122, "Referee", [
        ("trains nothing; asks those who disagree,", ""), ("recomputes one element", ""), ("CONVICTED: who was wrong, and where", "bad")])
    yield arrow([(240, 114), (318, 114)])
    yield arrow([(562, 114), (634, 114)])
    yield arrow([(128, 184), (128, 326), (276, 326)])
    yield arrow([(752, 184), (752, 326), (604, 326)])
    yield text(140, 246, "answers with proofs", "soft")
    yield text(740, 246, "answers with proofs", "soft", "end")
    yield text(622, 360, "verdict: a file that", "soft")
    yield text(622, 378, "anybody can check", "soft")
    yield "</svg>"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text("\n".join(picture()) + "\n")
