"""A training loop with Hugging Face accelerate: its state is in classes of the package."""

import json

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed

accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
who = [accelerator.process_index, accelerator.num_processes, accelerator.is_main_process, str(accelerator.device)]
print(json.dumps({"who": who, "losses": losses}))
accelerator.end_training()
