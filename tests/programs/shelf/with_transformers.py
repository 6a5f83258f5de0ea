"""A small Llama under Hugging Face's Trainer."""

import json
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    """Sequences that follow from their index."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
world = int(os.environ["WORLD_SIZE"])
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
)
trainer = Trainer(
    model=model,
    train_dataset=Tokens(),
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4 // world,
        max_steps=4,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        learning_rate=1e-2,
        seed=0,
        max_grad_norm=0.0,
    ),
)
trainer.train()
losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
print(json.dumps({"who": [trainer.args.process_index, trainer.args.world_size], "losses": losses}))
