#!/usr/bin/env python3
"""Prints a page as a Jupyter notebook: .ci/notebook.py docs/tutorials/pytorch-to-receipt.md > docs/tutorials/pytorch-to-receipt.ipynb.

A block of Python is a cell of code, and all other text a cell of Markdown. `python/tests/test_notebook.py` checks that the notebook is what this
prints, and runs its cells.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)
# What a reader of the notebook has to know, and a reader of the page does not.
HEAD = "*This notebook is made of [the page](PAGE) by `.ci/notebook.py`. Its cells run in order, in an empty folder.*\n\n"


def cell(kind, text, number):
    lines = text.strip("\n").splitlines(keepends=True)
    made = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines}
    return {**made, "execution_count": None, "outputs": []} if kind == "code" else made


def notebook(page):
    """A page's notebook: text of JSON, in format 4.5 of Jupyter."""
    parts = BLOCK.split(page.read_text())
    parts[0] = HEAD.replace("PAGE", page.name) + parts[0]
    # Text and code take turns.
    cells = [cell("code" if number % 2 else "markdown", part, number) for number, part in enumerate(parts) if part.strip()]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(notebook(ROOT / sys.argv[1]))
