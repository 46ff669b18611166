#!/usr/bin/env python3
"""Gaps between a chip's snapshots, from docs/MONITORING-FORMAT.md alone: `python3 assets/vectors/chip_times.py > assets/vectors/chip_times.json`.

Needs only the standard library, and shares no code with the project.
"""

import json

from hashes import derive

MEAN = 86_400_000_000 * 1_000_000 // 100_000  # microseconds, for 0.1 snapshots a day
SEED = bytes([7] * 32)
SERIAL = b"H100-0042".ljust(31, b"\0")


def words(counter):
    """The stream of 64-bit words after the begin record with this counter."""
    block = 0
    while True:
        key = SEED + SERIAL + counter.to_bytes(8, "little") + block.to_bytes(8, "little")
        digest = derive("tiebreak 2 chip-times", key)
        for place in range(0, 32, 8):
            yield int.from_bytes(digest[place : place + 8], "little")
        block += 1


def gaps(counter, count):
    """The first gaps, in microseconds."""
    stream, found = words(counter), []
    while len(found) < count:
        whole = 0
        while True:
            falling = [next(stream)]
            while (word := next(stream)) < falling[-1]:
                falling.append(word)
            if len(falling) % 2 == 1:
                break
            whole += 1
        found.append(MEAN * whole + MEAN * falling[0] // 2**64)
    return found


def main():
    print(json.dumps([[counter, gaps(counter, 40)] for counter in (0, 3, 2**40)], indent=1))


if __name__ == "__main__":
    main()
