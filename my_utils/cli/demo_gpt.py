"""One rank of `python -m my_utils demo`: a small GPT learns Python's own source.

The text is the standard library of this interpreter, cut at blank lines and read as bytes. Each
rank reads a separate shard. As in a sorted data set, one shard holds the short texts and another
the long ones. So one rank has more to compute, and the others wait for it in `all_reduce`. With
`balance=True` all ranks take texts of similar length in a step, and no rank waits.

Times here are what the trace shows: a stage is timed by `with timer.time_stage(name)`, stages nest,
and `timer.step()` writes out what a step recorded. On CUDA the same stages carry GPU times too.

Not for import by other code: run it with `python -m my_utils demo`.
"""

from __future__ import annotations

import argparse
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ..core.extras import needs_torch
from ..core.files import utf8_path
from ..record.log.logger import GlobalLogger
from ..record.stages.timers import MyTimer

with needs_torch("the demo"):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import Tensor, nn

CONTEXT = 256  # bytes of text that the model sees at most
BATCH = 12  # texts a rank and step
WIDTH, HEADS, LAYERS = 128, 4, 3
BYTES = 256  # the vocabulary; byte 0 never occurs in source text and pads
PAD = 0


class Block(nn.Module):
    """One layer: attention, then the MLP, each timed as a separate stage."""

    def __init__(self, timer: MyTimer) -> None:
        super().__init__()
        self.timer = timer
        self.norm_attn = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def attention(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return joined

    def forward(self, x: Tensor) -> Tensor:
        with self.timer.time_stage("attn"):
            x = x + self.attention(self.norm_attn(x))
        with self.timer.time_stage("mlp"):
            return torch.add(x, self.mlp(self.norm_mlp(x)))


class GPT(nn.Module):
    """Predicts the next byte of a text."""

    def __init__(self, timer: MyTimer) -> None:
        super().__init__()
        self.timer = timer
        self.token = nn.Embedding(BYTES, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(timer) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, BYTES)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for number, block in enumerate(self.blocks):
            with self.timer.time_stage(f"block{number}"):
                x = block(x)
        with self.timer.time_stage("loss"):
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def read_texts(limit: int = 4 << 20) -> list[bytes]:
    """The paragraphs of about `limit` bytes of the standard library, shortest first."""
    texts: list[bytes] = []
    size = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = path.read_bytes()
        texts += (text for text in re.split(rb"\n\s*\n", source) if len(text) >= 32)
        size += len(source)
        if size > limit:
            break
    return sorted(texts, key=len)


def own_shard(texts: list[bytes], rank: int, ranks: int) -> Iterator[list[bytes]]:
    """Endless picks from a contiguous part of the list: rank 0 has the short texts, and a rank's
    steps are about alike."""
    pick = random.Random(rank)
    width = len(texts) // ranks
    middle = rank * width + width // 2
    part = texts[middle - width // 8 : middle + width // 8]
    while True:
        yield pick.sample(part, k=BATCH)


def like_lengths(texts: list[bytes], rank: int, ranks: int) -> Iterator[list[bytes]]:
    """Endless picks from one place in the list a step, the same on all ranks, dealt out."""
    pick = random.Random(0)
    while True:
        start = pick.randrange(len(texts) - BATCH * ranks)
        yield texts[start : start + BATCH * ranks][rank::ranks]


def tensors(texts: list[bytes], device: torch.device) -> tuple[Tensor, Tensor]:
    """The tokens of a batch, padded to its longest text, and for each the token to predict."""
    rows = [torch.tensor(list(text[: CONTEXT + 1])) for text in texts]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(device)
    return padded[:, :-1], padded[:, 1:]


def average_gradients(model: nn.Module, ranks: int) -> None:
    """Replaces each gradient by its mean over the ranks, in one all_reduce."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / ranks, gradients)


def train(log_dir: Path, rank: int, ranks: int, steps: int, balance: bool) -> None:
    """Trains `steps` steps as rank `rank`; the process group is up already."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")

    logger = GlobalLogger()
    logger.setup(log_dir, rank=rank, world_size=ranks, extra_log_label="demo", console=False)
    log = logger.get_logger()
    timer = MyTimer(use_cuda=cuda, tag="train")
    timer.set_logger(log)

    torch.manual_seed(0)  # the same weights on every rank
    model = GPT(timer).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = (like_lengths if balance else own_shard)(read_texts(), rank, ranks)

    for step in range(steps):
        timer.set_step(step)
        with timer.time_stage("iter"):
            with timer.time_stage("data"):
                tokens, targets = tensors(next(batches), device)
            with timer.time_stage("forward"):
                loss = model(tokens, targets)
            with timer.time_stage("backward"):
                loss.backward()
            with timer.time_stage("all_reduce"):
                average_gradients(model, ranks)
            with timer.time_stage("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
        timer.step()

        logger.counter("loss", loss.item())
        logger.counter("tokens", tokens.numel())
        log.info("step %d: loss %.3f, %d tokens", step, loss.item(), tokens.numel())
        if rank == 0 and (step % 5 == 0 or step == steps - 1):
            print(f"  step {step:3d}  loss {loss.item():.3f}", flush=True)

    timer.generate_report(".*", str(log_dir / f"report_rank_{rank}.txt"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs one rank of the demo.")
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True, help="file for the ranks to connect")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--balance", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(args.rank % gpus)
    with utf8_path(str(args.store.parent.resolve())) as folder:
        # NCCL wants a GPU a rank; gloo also serves ranks that share one.
        dist.init_process_group(
            "nccl" if gpus >= args.ranks else "gloo",
            store=dist.FileStore(  # type: ignore[attr-defined]
                f"{folder}/{args.store.name}", args.ranks
            ),
            rank=args.rank,
            world_size=args.ranks,
        )
        try:
            train(args.log_dir, args.rank, args.ranks, args.steps, args.balance)
            dist.barrier()
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
