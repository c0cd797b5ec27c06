"""Trains a small transformer on packed text: documents one after the other in rows of equal length, without padding.

The text is the source of Python's own standard library, byte by byte.  A row is copied from a memory map straight into
the batch (`__getitem_into__`).  Each byte has the number of its document, so that attention stays inside the document.

    python -m examples.packed_text
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import shmloader as loader

Row = dict[str, Tensor]


def write_tokens(folder: Path, most: int) -> None:
    """Writes tokens.bin, the bytes of all documents, and documents.bin, the number of the document of each."""
    library = Path(sysconfig.get_path("stdlib"))
    texts, total = [], 0
    for file in sorted(library.glob("*.py")):
        texts.append(file.read_bytes())
        total += len(texts[-1])
        if total >= most:
            break
    np.frombuffer(b"".join(texts)[:most], np.uint8).tofile(folder / "tokens.bin")
    np.repeat(np.arange(len(texts), dtype=np.int32), [len(text) for text in texts])[:most].tofile(
        folder / "documents.bin"
    )


class Packed(loader.Dataset[Row]):
    """Rows of `length` bytes, in the order of the documents, and one more byte to predict."""

    def __init__(self, folder: Path, length: int, first: float, last: float) -> None:
        self.length = length
        self.tokens = np.memmap(folder / "tokens.bin", np.uint8, "r")
        self.documents = np.memmap(folder / "documents.bin", np.int32, "r")
        rows = (len(self.tokens) - 1) // length
        self.rows = range(int(rows * first), int(rows * last))
        self.row_spec = {
            "tokens": torch.empty(length + 1, dtype=torch.int64, device="meta"),
            "documents": torch.empty(length, dtype=torch.int64, device="meta"),
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        row = {name: torch.empty_like(each, device="cpu") for name, each in self.row_spec.items()}
        return self.__getitem_into__(index, row)

    def __getitem_into__(self, index: int, row: Row) -> Row:
        at = self.rows[index] * self.length
        # the only copy: from the page cache into the batch, and to int64 on the way
        np.copyto(row["tokens"].numpy(), self.tokens[at : at + self.length + 1])
        np.copyto(row["documents"].numpy(), self.documents[at : at + self.length])
        return row


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, text: Tensor, sees: Tensor) -> Tensor:
        shape = (*text.shape[:2], self.heads, -1)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.project(self.before(text)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=sees)
        text = text + self.out(seen.transpose(1, 2).flatten(2))
        mixed: Tensor = text + self.mix(self.between(text))
        return mixed


class Transformer(nn.Module):
    def __init__(self, length: int, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.end = nn.Linear(width, 256)

    def loss(self, batch: Row) -> Tensor:
        tokens, documents = batch["tokens"], batch["documents"]
        length = documents.shape[1]
        # a byte sees the bytes before it in its own document
        sees = (documents[:, :, None] == documents[:, None, :]).tril().unsqueeze(1)
        text = self.letters(tokens[:, :-1]) + self.places.weight[:length]
        for block in self.blocks:
            text = block(text, sees)
        return functional.cross_entropy(self.end(text).flatten(0, 1), tokens[:, 1:].flatten())


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="batches to train on (default: %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="bytes a row (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="worker processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers have the other cores
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokens(folder, most=1_000_000)
        training: loader.DataLoader[Any] = loader.DataLoader(
            Packed(folder, options.length, 0, 0.9),
            batch_size=16,
            shuffle=True,
            drop_last=True,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
            chunk_size=4,  # all workers make an epoch's first batch
        )
        net = Transformer(options.length)
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
        step = 0
        while step < options.steps:
            for batch in training:
                optimizer.zero_grad()
                net.loss(batch).backward()
                optimizer.step()
                step += 1
                if step == options.steps:
                    break
        training.close()
        testing = loader.DataLoader(Packed(folder, options.length, 0.9, 1), batch_size=16)
        with torch.no_grad():
            losses = [float(net.loss(batch)) for batch in testing]
    bits = float(np.mean(losses) / np.log(2))
    print(f"{bits:.2f} bits a byte on text that was not trained on")
    return bits


if __name__ == "__main__":
    main()
