"""The notebook of a tutorial is that of its page, and its cells run in order."""

import importlib.util
import json
from pathlib import Path

import pytest
from captures import needs_torch

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/tutorials/pytorch-to-receipt.ipynb"


def script():
    spec = importlib.util.spec_from_file_location("notebook", ROOT / ".ci/notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code():
    return ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_that_of_the_page():
    command = ".ci/notebook.py docs/tutorials/pytorch-to-receipt.md > docs/tutorials/pytorch-to-receipt.ipynb"
    assert NOTEBOOK.read_text() == script().notebook(NOTEBOOK.with_suffix(".md")), command
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells) and len(code()) == 6
    for number, text in enumerate(code()):
        compile(text, f"cell {number}", "exec")


@needs_torch
def test_the_notebooks_cells_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # A kernel has one namespace, whose module is `__main__`.
    scope = {"__name__": "__main__"}
    for number, text in enumerate(code()):
        exec(compile(text, f"cell {number}", "exec"), scope)
    assert capsys.readouterr().out == scope["answer"].text + "\n"
    assert json.loads((tmp_path / "receipt.json").read_text())
    # Each cell needs those before it.
    with pytest.raises(NameError):
        exec(code()[-1], {})
