#!/usr/bin/env python3
"""Measures how easily the pages and the doc comments are read (STYLE.md, "Language").

    .ci/prose.py                 the measures of the repository, and whether each keeps its bar (exit 1 if one does not)
    .ci/prose.py FILE...         every finding in these files, a line each: FILE:LINE: KIND: SENTENCE

Pages are all Markdown files that git knows; tables, code and headings are left out. Doc comments are those of all Rust files.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG = 35  # words; STYLE.md asks for 30
PAGE_LINE = 120  # characters
README_LINE = 100
NEVER = re.compile(r"(Of|What|Who|Whom|Whose|Whoever|Whatever)\b")
PRONOUN = re.compile(r"(It|Its|These|Those|Such|None|They|Their|This|That)\b(?!-)")
# A demonstrative with its noun is a subject: "This file", "These tests". A verb after it shows that the noun lacks.
NOUNLESS = re.compile(
    r"(It|They|None|Such|(This|That|These|Those)\s+(is|are|was|were|has|have|had|does|do|can|could|will|would|may|must|"
    r"holds?|makes?|means?|gives?|takes?|costs?|says?|shows?|needs?|works?|keeps?|ends?|finds?|lets?|goes|in|of|by|with|without|at|on|alone|also|too|and|or)\b)"
)
COMMENT = re.compile(r"(Of|What|Who|Whom|Whose|Whoever|Whatever|Whether|Which|How|That|It|These|Those|Such|None|Where|They)\b")
END = re.compile(r"(?<=[.!?])[\"')*_`]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])")

# The bars: the largest share, or number, that is allowed.
BARS = {
    "sentences of pages over 35 words": 0.08,
    "sentences of pages that begin with Of, What, Who": 0.0,
    "sentences of pages that begin with a pronoun without its noun": 0.02,
    "doc comments that begin with a relative word or a pronoun": 0.05,
    "lines of pages over 120 characters (README.md: 100)": 0,
}


def tracked(*patterns):
    # Files that are new and not yet added count as well.
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [ROOT / name for name in sorted(set(names)) if name and (ROOT / name).exists()]


def words(sentence):
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def plain(text):
    """Markdown as it is read: a link is its text, code is one word, marks of emphasis go."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "`code`", text)
    return re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", text)


def paragraphs(path):
    """(number of its first line, text) of each paragraph and item of a list."""
    found, text, begin, fenced, comment = [], [], 0, False, False
    for number, line in enumerate(path.read_text().split("\n") + [""], 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
            stripped = ""
        if "<!--" in stripped:
            comment = True
        title = re.fullmatch(r"[-*+]\s+\[[^\]]*\]\([^)]*\)", stripped)  # of a table of contents
        skip = fenced or comment or not stripped or title or stripped.startswith(("|", "#", "<", "$$"))
        if "-->" in stripped:
            comment = False
        item = re.match(r"([-*+]|\d+[.)])\s+", stripped)
        if text and (skip or item):
            found.append((begin, " ".join(text)))
            text = []
        if not skip:
            if not text:
                begin = number
            text.append(stripped[item.end() :] if item else stripped)
    return found


def sentences(text):
    return [s.strip() for s in END.split(plain(text)) if words(s) > 0]


def long_lines(path):
    limit = README_LINE if path.name == "README.md" and path.parent == ROOT else PAGE_LINE
    fenced = False
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        # An address cannot be broken, nor can a value that is written as code.
        bare = re.sub(r"`[^`]{60,}`", "`code`", re.sub(r"\]\([^)]*\)", "]", line))
        if not fenced and not line.startswith("    ") and not line.lstrip().startswith("|") and len(bare) > limit:
            yield number, line


def doc_comments(path):
    """(line, first words) of each doc comment."""
    before = None
    for number, line in enumerate(path.read_text().split("\n"), 1):
        mark = re.match(r"\s*(///|//!)\s?(.*)", line)
        if mark and before != mark[1] and mark[2].strip():
            yield number, mark[2].strip()
        before = mark[1] if mark else None


def findings(path):
    if path.suffix == ".rs":
        for number, text in doc_comments(path):
            if COMMENT.match(text):
                yield number, "opening", text
        return
    for number, text in paragraphs(path):
        for sentence in sentences(text):
            opening = sentence.lstrip("\"'(*_`[")
            if words(sentence) > LONG:
                yield number, f"{words(sentence)} words", sentence
            if NEVER.match(opening):
                yield number, "opening", sentence
            elif NOUNLESS.match(opening):
                yield number, "pronoun", sentence
    for number, line in long_lines(path):
        yield number, f"{len(line)} characters", line


def main():
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            for number, kind, text in findings(Path(name).resolve()):
                print(f"{name}:{number}: {kind}: {text}")
        return 0
    pages = [sentence for path in tracked("*.md") for _, text in paragraphs(path) for sentence in sentences(text)]
    openings = [s.lstrip("\"'(*_`[") for s in pages]
    comments = [text for path in tracked("*.rs") for _, text in doc_comments(path)]
    share = lambda hits, all: (len(hits), len(all), len(hits) / max(1, len(all)))
    measured = {
        "sentences of pages over 35 words": share([s for s in pages if words(s) > LONG], pages),
        "sentences of pages that begin with Of, What, Who": share([s for s in openings if NEVER.match(s)], pages),
        "sentences of pages that begin with a pronoun without its noun": share([s for s in openings if NOUNLESS.match(s)], pages),
        "doc comments that begin with a relative word or a pronoun": share([s for s in comments if COMMENT.match(s)], comments),
    }
    bad = False
    for name, (hits, total, value) in measured.items():
        bad |= value > BARS[name]
        print(f"{'over' if value > BARS[name] else 'ok':4}  {100 * value:5.1f} % (bar {100 * BARS[name]:.0f} %; {hits} of {total})  {name}")
    long = [(path, number) for path in tracked("*.md") for number, _ in long_lines(path)]
    name = "lines of pages over 120 characters (README.md: 100)"
    bad |= len(long) > BARS[name]
    print(f"{'over' if len(long) > BARS[name] else 'ok':4}  {len(long):5} lines  {name}")
    if bad:
        print("\n`.ci/prose.py FILE...` names the sentences.", file=sys.stderr)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
