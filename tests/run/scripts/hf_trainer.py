"""transformers' Trainer on a small Llama, with accumulation, evaluation and checkpoints."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tests.support.spans import iterated

config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(config)
tokens = torch.randint(0, 128, (64, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]


class Count(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        iterated()


arguments = TrainingArguments(
    tempfile.mkdtemp(),
    use_cpu=True,
    max_steps=10,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=5,
    save_steps=5,
    report_to=[],
    logging_strategy="no",
    disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[Count()]).train()
results = [model]
