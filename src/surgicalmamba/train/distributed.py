"""Training in several processes: each has its own lanes, and the summed gradients equal those of one process
with all lanes.

Plain torch.distributed, started by torchrun. The loss is divided by the number of labelled frames of all
processes before the backward pass, so the sum of the gradients is the gradient of the whole, however the
frames are shared out. This needs no wrapper library: several calls per update and lanes that have run out are
no special cases.

A model may also be sharded (FSDP): weights, gradients and moments are split over the processes as DTensors,
and each part is put together only while it runs. `whole` returns the full value of such a tensor, `part_of`
the piece of a full value that belongs to this process; all processes call them together, in the same order.
Files always hold whole tensors, so any number of processes can load them."""

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
        # The others wait while the first one validates, which can take longer than the default timeout.
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=12))
    return World(dist.get_rank(), size)


def leave_world() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_process() -> None:
    """Exit one of several processes without shutting the interpreter down, once its files are written. Does
    nothing in a single process.

    PyTorch's gloo threads release the tensors of a message shortly after it has arrived. If that happens
    during interpreter shutdown the process aborts (pytorch issue 190489), and torchrun reports the whole run
    as failed."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def shard(model: AnyRecognizer, world: World, device: torch.device) -> None:
    """Split a model's parameters over the processes, in place. The backbone, each block and the head are put
    together one at a time.

    Gradients come out as the sum over processes, as `World.sum_gradients` gives them for whole models."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.utils import _pytree

    try:
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
    except ImportError:
        raise ConfigError(
            "distributed=shard needs a newer torch (tested with 2.13); use distributed=replicate or upgrade."
        ) from None
    units = model.shard_units()
    # The warning is about outputs that are changed in place; we change none.
    warnings.filterwarnings("ignore", message=".*returned a view tensor", category=UserWarning)
    # Gradients that enter a block through its carried state need its weights: PyTorch must find the tensors
    # inside our records.
    for record in (PathState, BlockState, ModelState, Output):
        if record not in _pytree.SUPPORTED_NODES:
            _pytree.register_dataclass(record)
    mesh = init_device_mesh(device.type, (world.size,))
    for unit in (*units, model):
        fully_shard(unit, mesh=mesh)
        assert isinstance(unit, FSDPModule)
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # a sum, which every backend has
    for entry in ("encode", "advance"):
        register_fsdp_forward_method(model, entry)


def _is_plain(tensor: Tensor) -> bool:
    """Surely not sharded. Checked first because importing DTensor takes a second."""
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
    """A whole model with a sharded model's weights where `keep` is set, else None. All processes call it.
    Draws no random numbers."""
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
