"""A Lightning module trained by DDP; Lightning finds the launcher's ranks by their environment."""

import json
import os

import lightning
import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment


class Regression(lightning.LightningModule):
    """A small regression."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.losses: list[float] = []

    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.losses.append(self.all_gather(loss.detach()).mean().item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0)
world = int(os.environ["WORLD_SIZE"])
data = torch.utils.data.TensorDataset(torch.randn(32, 8))
trainer = lightning.Trainer(
    max_steps=4,
    accelerator="gpu",
    devices=world,
    strategy="ddp",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    plugins=[TorchElasticEnvironment()],
)
model = Regression()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8 // world, shuffle=False))
print(json.dumps({"who": [trainer.global_rank, trainer.world_size], "losses": model.losses}))
