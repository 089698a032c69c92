"""Trains a small language model with every stage of a step timed. Copy it, put your model in.

    python examples/train_gpt.py [LOG_DIR]
    torchrun --nproc-per-node 2 examples/train_gpt.py [LOG_DIR]

Then see where the time went:

    cat LOG_DIR/report_rank_0.txt
    python -m my_utils.csv2trace LOG_DIR -o trace.pftrace --format perfetto --open
"""

import os
import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from my_utils import GlobalLogger, MyTimer

STEPS, BATCH, CONTEXT, WIDTH = 20, 8, 64, 64


class ByteModel(nn.Module):
    """A Transformer that predicts the next byte of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.token(tokens) + self.position.weight[:length]
        logits: Tensor = self.head(self.layers(x, mask=mask, is_causal=True))
        return logits


def read_batch(text: Tensor, device: torch.device) -> Tensor:
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,)).tolist()
    return torch.stack([text[i : i + CONTEXT + 1] for i in starts]).long().to(device)


def average_gradients(model: nn.Module, ranks: int) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks


def main() -> None:
    log_dir = Path(sys.argv[1] if len(sys.argv) > 1 else "logs")
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    cuda = torch.cuda.is_available()
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")

    # Once a process: where the rows and the text log go.
    logger = GlobalLogger()
    logger.setup(log_dir, rank=rank, world_size=ranks)
    timer = MyTimer(use_cuda=cuda, tag="train")

    torch.manual_seed(0)
    model = ByteModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_bytes()
    text = torch.frombuffer(bytearray(source), dtype=torch.uint8)
    torch.manual_seed(rank)  # from here on each rank picks texts of its own

    for step in range(STEPS):
        timer.set_step(step)
        with timer.time_stage("iter"):
            with timer.time_stage("data"):
                batch = read_batch(text, device)
            with timer.time_stage("forward"):
                logits = model(batch[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            with timer.time_stage("backward"):
                loss.backward()
            if ranks > 1:
                with timer.time_stage("all_reduce"):
                    average_gradients(model, ranks)
            with timer.time_stage("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
        timer.step()  # writes out what this step recorded
        logger.counter("loss", loss.item())

    timer.generate_report(".*", str(log_dir / f"report_rank_{rank}.txt"))
    logger.get_logger().info("done: loss %.3f after %d steps", loss.item(), STEPS)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
