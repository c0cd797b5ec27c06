r"""Trains the network of examples.train in many processes, each on its share of the images; torchrun starts them.
It saves a checkpoint after each epoch and on SIGTERM, and resumes there, also with another number of ranks.

Each rank has its own loader, workers and ring.  With --save-every, checkpoints are also written within an epoch.
SIGTERM lets the batch that is under way end; then the checkpoint is written, and the run ends.  A run that finds a
checkpoint resumes after its last batch, and ends as the run that wrote it would have.  Another number of ranks gets the
samples of the epoch that no rank has received.  Restarts by torchrun need the variable: without it, ranks that start
again may look for those that were killed (pytorch/pytorch#135712).

    torchrun --standalone --nproc-per-node 2 -m examples.train_ddp --workers 2
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 3 \
        -m examples.train_ddp --data FOLDER --checkpoint FOLDER/checkpoint.pt
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shmloader as loader
from examples.image_folder import DataFolderError, ImageFolder, Split, find_images
from examples.loader_clock import LoaderClock
from examples.net import SmallNet
from examples.train import DIGITS, make_repeatable


def train(split: Split, options: argparse.Namespace, device: torch.device) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    make_repeatable(options.seed, options.threads)
    net = SmallNet(len(split.classes)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), options.lr)
    dataset = ImageFolder(split.train, options.image_size, augment=True)
    sampler: loader.DistributedSampler[Any] = loader.DistributedSampler(dataset, seed=options.seed)
    training = make_loader(dataset, options, sampler)
    place = load_checkpoint(options.checkpoint, net, optimizer, training, device)
    if rank == 0 and place["samples"]:
        print(f"going on behind {place['samples']} samples of epoch {place['epoch'] + 1} of {options.checkpoint}")
    elif rank == 0 and place["epoch"]:
        print(f"going on after epoch {place['epoch']} of {options.checkpoint}")

    steps = len(training)
    left = -(-max(0, len(dataset) - place["samples"]) // (options.batch_size * ranks))  # batches of this epoch
    done = (place["epoch"] + 1) * steps - left
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.lr, total_steps=options.epochs * steps, last_epoch=done - 1
    )
    replica = DistributedDataParallel(net)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    clock = LoaderClock()
    started, trained = time.perf_counter(), 0
    with preemption() as preempted:
        for epoch in range(place["epoch"], options.epochs):
            training.set_epoch(epoch)  # otherwise each epoch has the first one's order
            # The loader draws the epoch's seed here, the same on all ranks, so that one state is valid for all of them.
            # With sample_seeds, each sample's seed includes its place in the epoch's order: no two ranks augment alike.
            torch.manual_seed(options.seed + epoch)
            loss_sum, taken = torch.zeros((), device=device), 0
            for batch in clock.batches(training):
                images, labels = (part.to(device, non_blocking=True) for part in batch)
                optimizer.zero_grad()
                loss = loss_of(replica(images), labels)
                loss.backward()  # averages the gradients over all ranks
                optimizer.step()
                schedule.step()
                loss_sum += loss.detach()
                taken, trained = taken + 1, trained + len(labels)
                stops = preempted.on_any_rank()
                if rank == 0 and (stops or (options.save_every and taken % options.save_every == 0)):
                    save_checkpoint(options.checkpoint, net, optimizer, training)
                if stops:
                    training.close()
                    if rank == 0:
                        print(f"SIGTERM: saved behind {training.state_dict()['samples']} samples of epoch {epoch + 1}")
                    return
            dist.all_reduce(loss_sum)
            if rank == 0:
                save_checkpoint(options.checkpoint, net, optimizer, training)
                print(f"epoch {epoch + 1}/{options.epochs}: loss {loss_sum.item() / (ranks * max(taken, 1)):.3f}")
    seconds = time.perf_counter() - started
    if rank == 0:  # only here, because all ranks have the same weights, and its running means are in the checkpoint
        test = make_loader(ImageFolder(split.test, options.image_size, augment=False), options)
        print(
            f"{ranks} ranks x {options.workers} workers:"
            f" {trained * ranks / seconds:.0f} images/s"
            f" | {100 * clock.waiting / seconds:.1f} % of the time waiting for data"
            f" | test accuracy {100 * accuracy(net, test, device):.2f} %"
        )


def make_loader(
    dataset: ImageFolder, options: argparse.Namespace, sampler: loader.DistributedSampler[Any] | None = None
) -> loader.DataLoader[Any]:
    return loader.DataLoader(
        dataset,
        batch_size=options.batch_size,
        sampler=sampler,
        num_workers=options.workers,
        pin_memory=torch.cuda.is_available(),
        sample_seeds=True,  # augmentation resumes to the bit, with any number of workers and ranks
    )


class Preemption:
    """Whether SIGTERM came.  A scheduler sends it to some of the job's processes or to all, perhaps several times.

    The ranks must stop after the same batch, because they wait for each other in each one.  Workers outlive the signal.
    """

    def __init__(self) -> None:
        self.heard = False

    def on_any_rank(self) -> bool:
        heard = torch.tensor(int(self.heard))  # on the CPU, so that no device waits for it
        dist.all_reduce(heard, dist.ReduceOp.MAX)
        return bool(heard)

    def hear(self, *_: object) -> None:
        self.heard = True


@contextmanager
def preemption() -> Iterator[Preemption]:
    """While this is open, SIGTERM is recorded and does not end the process."""
    preempted = Preemption()
    before = signal.signal(signal.SIGTERM, preempted.hear)
    try:
        yield preempted
    finally:
        signal.signal(signal.SIGTERM, before)


@torch.no_grad()
def accuracy(net: nn.Module, batches: loader.DataLoader[Any], device: torch.device) -> float:
    net.eval()
    right = total = 0
    for images, labels in batches:
        right += int((net(images.to(device)).argmax(dim=1) == labels.to(device)).sum())
        total += len(labels)
    return right / total


def save_checkpoint(
    path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, training: loader.DataLoader[Any]
) -> None:
    """Replaces `path` in one rename: whenever a rank is killed, there is a whole checkpoint or none.

    The loader's state is the same on all ranks, so one rank's is enough.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": training.state_dict()}
    torch.save(state, unfinished)
    unfinished.replace(path)


def load_checkpoint(
    path: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: loader.DataLoader[Any],
    device: torch.device,
) -> dict[str, Any]:
    """Loads the state in `path`, if there is one, and returns the place where training begins."""
    if path.exists():
        state = torch.load(path, map_location=device, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        training.load_state_dict(state["loader"])
    return training.state_dict()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m examples.train_ddp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def option(name: str, kind: type, default: object, meaning: str) -> None:
        parser.add_argument(name, type=kind, default=default, help=f"{meaning} (default: %(default)s)")

    option("--data", Path, DIGITS, "folder of train/<class>/*.jpg and test/<class>/*.jpg, or of <class>/*.jpg")
    option("--checkpoint", Path, Path("data/checkpoint.pt"), "file to go on from; all machines must see the same one")
    option("--epochs", int, 20, "times through the training images")
    option("--batch-size", int, 32, "images a batch of one rank")
    option("--workers", int, 2, "worker processes of one rank; 0 loads in the training process")
    option(
        "--save-every",
        int,
        0,
        "a checkpoint each so many batches of a rank, too; 0: after each epoch alone",
    )
    option("--seed", int, 0, "of the weights, the order of the images and their augmentation")
    option("--lr", float, 1e-2, "learning rate at its highest")
    option("--image-size", int, 64, "height and width that images are scaled to, in pixels")
    option("--threads", int, 1, "CPU threads of one rank's network; the workers have the other cores")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs is {options.epochs}; training needs at least 1")
    if options.save_every < 0:
        parser.error(f"--save-every is {options.save_every}; it counts batches, and 0 is for none")
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it with torchrun, as above in --help")
    return options


# Without torch's @record: torchrun may stop a rank that writes its error file, cannot read half a file, and then starts
# no rank again.  Each rank prints its traceback by itself.
def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    if local_rank == 0 and options.data == DIGITS and not DIGITS.exists():
        from examples.digits import build_digits  # needs scikit-learn, which other data does not need

        print(f"building {DIGITS}, once", file=sys.stderr)
        build_digits(DIGITS)
    dist.barrier()
    try:
        split = find_images(options.data)
    except DataFolderError as error:
        sys.exit(f"examples.train_ddp: {error}")
    train(split, options, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
