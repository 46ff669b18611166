"""The Python of docs/how-to/python.md does what the page says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/how-to/python.md"


def test_the_pages_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) >= 4
    scope = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert capsys.readouterr().out.strip().endswith(scope["run"].records[-1].state)
