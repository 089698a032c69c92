"""Lightning's Trainer: it steps with a closure that has forward and backward inside."""

import lightning
import torch
from torch import nn

from tests.support.spans import iterated


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, index):
        return self.model(batch[0]).pow(2).mean()

    def validation_step(self, batch, index):
        self.model(batch[0])

    def on_train_batch_end(self, *args):
        iterated()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = torch.utils.data.TensorDataset(torch.randn(160, 32))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = Net()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader, loader)
results = [model]
