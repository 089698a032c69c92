"""Profiles the ninth step of a training with transformers' Trainer.

    python examples/profile_trainer.py [OUTPUT_DIR]

leaves OUTPUT_DIR/iteration_9 with the trace for https://ui.perfetto.dev, the table of operators and
the memory. Needs `pip install transformers accelerate matplotlib`; downloads nothing.
"""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from my_utils.profiling.trainer_callback import ProfCallback

output_dir = sys.argv[1] if len(sys.argv) > 1 else "profiler_output"

torch.manual_seed(0)
config = GPT2Config(
    n_layer=2, n_head=4, n_embd=64, vocab_size=256, n_positions=64, bos_token_id=0, eos_token_id=0
)
tokens = torch.randint(256, (64, 64))
data = [{"input_ids": row, "labels": row} for row in tokens]

with tempfile.TemporaryDirectory() as results, ProfCallback(output_dir) as callback:
    arguments = TrainingArguments(
        results, max_steps=12, per_device_train_batch_size=4, report_to=[], save_strategy="no"
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[callback])
    trainer.train()

for folder in callback.folders:
    print(folder, *sorted(path.name for path in folder.iterdir()))
