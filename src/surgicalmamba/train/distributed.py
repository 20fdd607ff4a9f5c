"""Several processes as one: each has its own lanes, and gradients are summed so that they equal those of one process with all lanes.

Plain torch.distributed, started by torchrun. A wrapper library would save less than this file holds: with the loss divided by the
number of labelled frames of all processes before the backward pass, the sum of the gradients is the gradient of the whole, whatever
share of the frames each process has; nothing has to know about several calls per update or about lanes that have run out."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """This process among its peers. A single process is a world of one."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a small tensor over all processes."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over all processes, in one message."""
        if self.size == 1:
            return
        parameters = [p for p in parameters if p.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(part.view_as(parameter))

    def join(self, values: Tensor) -> Tensor:
        """The tensors of all processes, equal in shape, one after the other along the first axis."""
        if self.size == 1:
            return values
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous())
        return torch.cat(parts)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def join_world(device: torch.device) -> World:
    """The world torchrun describes in the environment, or a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(0, 1)
    if not dist.is_initialized():
        # The others wait while the first one validates, which can take longer than the usual limit of minutes.
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=12))
    return World(dist.get_rank(), size)


def leave_world() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_process() -> None:
    """End one of several processes, whose work is done and written, without taking the interpreter down. A single one goes on.

    PyTorch's gloo threads let go of the tensors of a message a moment after it has arrived; one that does so while the interpreter is
    being taken down aborts the process (pytorch issue 190489), and torchrun calls the whole run failed."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def pick_device(wanted: str) -> torch.device:
    """`auto` is this process's GPU where there is one, then Apple's, then the CPU."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
