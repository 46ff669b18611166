"""Positions that are chosen, moved and joined: slices, `cat`, `roll` and padding along the positions of each sample.

Copies choose and move whole positions (`_copies.py`), and sums join them. Positions of too many runs are chosen by a product: an `exchange` makes
them the last dimension, where a frozen matrix of zeros and ones chooses them. Parameters and constants that stand at positions are added as tables.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as np

from ._copies import Chosen, copied
from ._matcher import Matcher, Refused, Value


class Source(NamedTuple):
    """A tensor of the network as rows of channels, or a constant, whose elements are known."""

    name: Any
    rows: int
    channels: int
    constant: Any = None
    # The height and the width of images.
    pixels: Optional[Tuple[int, int]] = None
    # A parameter whose rows are the same for each sample.
    token: Optional[Value] = None

    @property
    def size(self) -> int:
        return self.rows * self.channels if self.constant is None else self.constant.numel()


class Placed(NamedTuple):
    """How so many positions of samples are made: those that are chosen of activations and of parameters, and constants."""

    positions: int
    activations: List[Tuple[str, Chosen]]
    tokens: List[Tuple[Value, Chosen]]
    table: Optional[Any]


def exchanged(m: Matcher, name: str) -> str:
    """Rows with positions and channels of each sample exchanged. The exchange of an exchange is the tensor itself."""
    if name not in m.exchanges:
        made = m.node("exchange", name, tail="exchange")
        m.exchanges[name], m.exchanges[made] = made, name
    return m.exchanges[name]


def placed(m: Matcher, sources: Tuple[Source, ...], at: Any) -> Optional[Placed]:
    """How rows [N, C] of elements are made of whole rows of sources, the same way in each sample; None if they are not."""
    import torch

    if not m.batch or at.shape[0] % m.batch:
        return None
    channels = at.shape[1]
    at = at.reshape(m.batch, -1, channels)
    ends = torch.tensor([source.size for source in sources]).cumsum(0)
    owner = torch.bucketize(at.contiguous(), ends, right=True)
    if not bool((owner == owner[:1, :, :1]).all()):
        return None
    found = Placed(at.shape[1], [], [], None)
    for number, source in enumerate(sources):
        mine = (owner[0, :, 0] == number).nonzero().flatten()
        if len(mine) and (found := _with(m, found, source, at[:, mine] - (int(ends[number]) - source.size), mine)) is None:
            return None
    return found if found.activations else None


def _with(m: Matcher, found: Placed, source: Source, local: Any, mine: Any) -> Optional[Placed]:
    """With the positions `mine`, whose elements are those of one source."""
    import torch

    samples, _, channels = local.shape
    if source.constant is not None:
        numbers = source.constant[local]
        if not bool((numbers == numbers[:1]).all()):
            return None
        table = np.zeros((found.positions, channels), np.float32) if found.table is None else found.table
        table[mine.numpy()] = numbers[0].float().numpy()
        return found._replace(table=table)
    rows, columns = local // source.channels, local % source.channels
    if source.channels != channels or not bool((columns == torch.arange(channels)).all()) or not bool((rows == rows[:, :, :1]).all()):
        return None
    each = source.rows if source.token is not None else source.rows // samples
    begins = torch.zeros(samples, 1, 1, dtype=rows.dtype) if source.token is not None else torch.arange(samples).reshape(-1, 1, 1) * each
    rows = rows - begins
    if each == 0 or source.rows % each or not bool(((rows == rows[:1]) & (rows >= 0) & (rows < each)).all()):
        return None
    chosen = Chosen(each, rows[0, :, 0].numpy(), mine.numpy())
    if source.token is not None:
        found.tokens.append((source.token, chosen))
    else:
        found.activations.append((source.name, chosen))
    return found


def made(m: Matcher, plan: Placed) -> str:
    """The rows of a plan."""
    name = None
    for source, chosen in plan.activations:
        part = source if chosen.is_all(plan.positions) else copied(m, source, "positions", chosen, plan.positions)
        if part is None:
            part = exchanged(m, m.node("matmul", exchanged(m, source), m.constant(chosen.matrix(plan.positions)), tail="positions"))
        name = part if name is None else m.node("residual", name, part, tail="join")
    if plan.table is not None and plan.table.any():
        name = m.node("position_embedding", name, m.constant(plan.table), tail="constants")
    for token, chosen in plan.tokens:
        rows = m.rows_of(token)
        rows = rows if chosen.is_all(plan.positions) else copied(m, rows, "rows", chosen, plan.positions, most=None)
        if rows is None:
            raise Refused(f"it moves rows of {plan.positions} positions, which are too many", "give an example batch of shorter samples")
        name = m.node("position_embedding", name, rows, tail="tokens")
    return name
