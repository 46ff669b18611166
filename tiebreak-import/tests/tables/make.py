"""Writes the Parquet files beside it with pyarrow 25.0.0 and polars 2.1.0, as people's tools do."""

import datetime
import json
from pathlib import Path

import polars
import pyarrow
import pyarrow.parquet

here = Path(__file__).parent
texts = ["he he", "", "there he is", "h\u00e9 \u6f22\nhe", "he he"]
# In JSON the last two would be texts too.
table = pyarrow.table(
    {
        "number": list(range(5)),
        "text": texts,
        "lacking": ["he", None, "he", "he", "he"],
        "bytes": [text.encode() for text in texts],
        "day": [datetime.date(2026, 11, day) for day in range(1, 6)],
    }
)
# Two rows a group, pages of Snappy and dictionaries of texts.
pyarrow.parquet.write_table(table, here / "texts-snappy.parquet", row_group_size=2)
pyarrow.parquet.write_table(
    table, here / "texts-gzip.parquet", compression="gzip", use_dictionary=False, data_page_version="2.0"
)
polars.DataFrame({"text": texts}).write_parquet(here / "texts-zstd.parquet")
pyarrow.parquet.write_table(table, here / "texts-lz4.parquet", compression="lz4")

# A text of 1 GiB, in 33 KB.
bomb = pyarrow.table({"text": pyarrow.array(["h" * (1 << 30)], type=pyarrow.large_string())})
pyarrow.parquet.write_table(bomb, here / "bomb.parquet", compression="zstd", use_dictionary=False)

pairs = [{"prompt": "he", "completion": " he"}, {"prompt": "he", "completion": "h he"}]
chats = [
    {"messages": [{"role": "user", "content": "he"}, {"role": "assistant", "content": "he he"}]},
    {"messages": [{"role": "user", "content": "h\u00e9"}, {"role": "assistant", "content": "he"}]},
]
for name, rows in [("pairs", pairs), ("chats", chats)]:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), here / f"{name}.parquet")
    (here / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
(here / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
