"""transformers' Trainer, which builds its loaders by torch's name and has accelerate rebuild them."""

from __future__ import annotations

import pathlib
from typing import Any

import epochs
import pytest
import torch
from accelerate.state import AcceleratorState
from epochs import Record, recording
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """Of different lengths, so that the collator pads them; words are dropped at random, by the worker's generator."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, Any]:
        words = torch.randint(1, 50, (4 + index % 5,))
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": index % 2}


def pad(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    padded = {
        name: torch.nn.utils.rnn.pad_sequence([item[name] for item in items], batch_first=True)
        for name in ("input_ids", "attention_mask")
    }
    return {**padded, "labels": torch.tensor([item["labels"] for item in items])}


class Recording(Trainer):
    record: Record

    def training_step(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        self.record.see(dict(inputs))
        return super().training_step(model, inputs, *arguments, **options)

    def prediction_step(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        self.record.see(dict(inputs))
        return super().prediction_step(model, inputs, *arguments, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("persistent", [False, True])
def test_trainer(persistent: bool, tmp_path: pathlib.Path) -> None:
    def train(kind: Any) -> list[Record]:
        model = BertForSequenceClassification(
            BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
        )
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_num_workers=2,
            dataloader_persistent_workers=persistent,
            dataloader_pin_memory=False,
        )
        with recording() as record:
            trainer = Recording(model, arguments, pad, Sentences(), Sentences())
            trainer.record = record
            trainer.train()
        record.see(dict(model.state_dict()))
        AcceleratorState._reset_state(reset_partial_state=True)
        return [record]

    (record,) = epochs.assert_same_epochs(train, "patched torch")
    assert len(record.seen) == 2 * 6 + 2 * 6 + 1
