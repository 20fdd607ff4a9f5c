"""Several processes as one: each has its own lanes, and gradients are summed so that they equal those of one
process with all lanes.

Plain torch.distributed, started by torchrun. A wrapper library would save less than this file holds: with the
loss divided by the number of labelled frames of all processes before the backward pass, the sum of the
gradients is the gradient of the whole, whatever share of the frames each process has; nothing has to know
about several calls per update or about lanes that have run out."""

import os
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from surgicalmamba.core.state import BlockState, ModelState, PathState
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.recognizer import AnyRecognizer, Output


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
    """End one of several processes, whose work is done and written, without taking the interpreter down. A
    single one goes on.

    PyTorch's gloo threads let go of the tensors of a message a moment after it has arrived; one that does so
    while the interpreter is being taken down aborts the process (pytorch issue 190489), and torchrun calls
    the whole run failed."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


# One model spread over processes (PyTorch's FSDP): weights, gradients and moments are split, and a part is put together while it runs.
#
# A sharded tensor is a DTensor. `whole` gives its full value and `part_of` the piece of a full value that belongs here; both are for all
# processes at once, in the same order. What is saved is always whole, so nothing on disk knows how many processes there were.


def shard(model: AnyRecognizer, world: World, device: torch.device) -> None:
    """Split a model's parameters over the processes, in place: backbone, each block and the head are put
    together one at a time.

    Gradients come out as the sum over processes, as `World.sum_gradients` gives them for whole models."""
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
    except ImportError:
        raise ConfigError(
            "distributed=shard needs a newer torch (tested with 2.13); use distributed=replicate or upgrade."
        ) from None
    units = model.shard_units()
    # We change no output in place, which is what this warns of.
    warnings.filterwarnings("ignore", message=".*returned a view tensor", category=UserWarning)
    _show_tensors_in_records()
    mesh = init_device_mesh(device.type, (world.size,))
    for unit in (*units, model):
        fully_shard(unit, mesh=mesh)
        assert isinstance(unit, FSDPModule)
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # a sum, which every backend has
    for entry in ("encode", "advance"):
        register_fsdp_forward_method(model, entry)


def _show_tensors_in_records() -> None:
    """Let PyTorch see the tensors inside our records: gradients that enter a block through its carried state
    need its weights there."""
    from torch.utils import _pytree

    for record in (PathState, BlockState, ModelState, Output):
        if record not in _pytree.SUPPORTED_NODES:
            _pytree.register_dataclass(record)


def _is_plain(tensor: Tensor) -> bool:
    """True without importing what sharded tensors need, which takes a second that most runs can do
    without."""
    return type(tensor) in (Tensor, torch.nn.Parameter)


def whole(tensor: Tensor) -> Tensor:
    """The full value of a tensor, sharded or not."""
    if _is_plain(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """A full value in the form of `like`: on its device, and split the way it is."""
    value = value.to(like.device)
    if _is_plain(like):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements) if isinstance(like, DTensor) else value


def whole_copy(model: AnyRecognizer, keep: bool) -> AnyRecognizer | None:
    """A whole model with a sharded model's weights, in the processes that keep it. Draws no random
    numbers."""
    weights = {}
    for name, value in model.state_dict().items():
        full = whole(value)
        if keep:
            weights[name] = full
    if not keep:
        return None
    with torch.device("meta"):
        copy = type(model)(model.config)
    copy.load_state_dict(weights, assign=True)
    return copy
