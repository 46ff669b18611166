#!/usr/bin/env python3
"""Worked examples of docs/PROGRAMS.md, docs/DISPUTE-WIRE.md and docs/ROUNDING.md, as examples.json: `python3 assets/vectors/examples.py > assets/vectors/examples.json`.

Needs only the standard library, and shares no code with the project.
"""

import json

import game_example
import log_example
from hashes import derive
from program_example import program, rows


def main():
    examples = {
        "program": [[data.hex(), meaning] for data, meaning in rows()],
        "program_digest": derive("tiebreak 2 program", program()).hex(),
        "game": game_example.example(),
        "log": log_example.example(),
    }
    print(json.dumps(examples, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
