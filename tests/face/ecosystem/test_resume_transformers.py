"""transformers' `Trainer.train(resume_from_checkpoint=)` in mid-epoch: nothing is read again."""

from __future__ import annotations

import mmap
import pathlib
from typing import Any

import pytest
from accelerate.state import AcceleratorState
from epochs import recording
from test_transformers import Sentences, pad
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import shmloader

BATCH, LENGTH = 4, 22


class Read(Sentences):
    """Counts what is read, in whatever process."""

    def __init__(self) -> None:
        self.reads = mmap.mmap(-1, 1)  # of all processes

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads[0] += 1
        return {**super().__getitem__(index), "labels": index}


class Recording(Trainer):
    got: list[list[int]]

    def training_step(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        indices = inputs["labels"]
        self.got.append(indices.tolist())
        return super().training_step(model, {**inputs, "labels": indices % 2}, *arguments, **options)


def train(folder: pathlib.Path, stop: int, checkpoint: str | None, **options: Any) -> tuple[list[Any], int]:
    """The indices of each batch up to a step that was trained with, and how many samples were read for them."""
    set_seed(3)
    model = BertForSequenceClassification(
        BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=stop,
        per_device_train_batch_size=BATCH,
        save_strategy="steps",
        save_steps=stop,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_num_workers=1,
        dataloader_pin_memory=False,
        **options,
    )
    dataset = Read()
    with recording() as record, shmloader.patch_torch():
        trainer = Recording(model, arguments, pad, dataset)
        trainer.got = []
        trainer.train(resume_from_checkpoint=checkpoint)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert set(record.iterators) == {"RingIterator"}
    return trainer.got, dataset.reads[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("stop", [2, 8])
def test_it_goes_on_and_reads_nothing_again(stop: int, accumulated: int, tmp_path: pathlib.Path) -> None:
    def run(stop: int, checkpoint: pathlib.Path | None = None) -> tuple[list[Any], int]:
        return train(tmp_path, stop, checkpoint and str(checkpoint), gradient_accumulation_steps=accumulated)

    each = -(-LENGTH // BATCH)  # batches an epoch
    steps = 2 * -(-each // accumulated)
    stop = stop // accumulated
    whole, read = run(steps)
    assert len(whole) == 2 * each and read == 2 * LENGTH
    assert sorted(i for batch in whole[:each] for i in batch) == list(range(LENGTH))
    first, _ = run(stop)
    assert first == whole[: len(first)] and len(first) == stop * accumulated
    rest, read = run(steps, tmp_path / f"checkpoint-{stop}")
    assert rest == whole[len(first) :]
    assert read == sum(map(len, rest))
