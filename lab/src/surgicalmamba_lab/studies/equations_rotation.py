"""What a rotation at chunk boundaries does to the kernel, by numbers: appendix Matrix view of state regramming.

One head of width one; kernels are measured by writing a unit at every frame by itself and reading it at every later one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from surgicalmamba.core.rotation import cayley, generator, rotate_state, unit_columns
from surgicalmamba.core.ssd import segment_sum, ssd_scan
from surgicalmamba_lab.studies.equations_page import Check, Section, deviation, panels

D_STATE, RANK, CHUNK_LEN, N_CHUNKS = 4, 2, 8, 4
TURNS = (0.1, 0.5, 2.0)
"""Angles theta of the collision's rotations."""
DRAWS = 200
"""Random rotations per angle."""


@dataclass(frozen=True)
class Head:
    """One head over four chunks: steps (1, l, 1), decay (1), writes and reads (1, l, 1, n), and a rotation per boundary (n, n)."""

    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    Z: tuple[Tensor, ...]


def draw_rotations(g: torch.Generator, count: int, d_state: int, rank: int, theta: float) -> Tensor:
    """Rotations (count, n, n) by this angle in planes of random direction."""
    U, V = (unit_columns(torch.randn(1, count, d_state, rank, dtype=torch.float64, generator=g)) for _ in range(2))
    return cayley(generator(U, V, torch.full((1, count, rank), theta, dtype=torch.float64)))[0]


def make_head(seed: int = 0) -> Head:
    g = torch.Generator().manual_seed(seed)
    length = CHUNK_LEN * N_CHUNKS
    dt = 0.05 + 0.1 * torch.rand(1, length, 1, dtype=torch.float64, generator=g)
    B, C = (torch.randn(1, length, 1, D_STATE, dtype=torch.float64, generator=g) for _ in range(2))
    return Head(dt, torch.tensor([-0.5], dtype=torch.float64), B, C, tuple(draw_rotations(g, N_CHUNKS, D_STATE, RANK, 1.5)))


def measured_kernel(head: Head, rotations: Sequence[Tensor] | None) -> Tensor:
    """M[t, s] as the recurrence has it: lane s writes a unit at frame s and nothing else."""
    length = head.dt.shape[1]
    x = torch.eye(length, dtype=torch.float64)[..., None, None]  # (lane, l, 1, 1)
    dt, B, C = (part.expand(length, *part.shape[1:]) for part in (head.dt, head.B, head.C))
    state = torch.zeros(length, 1, 1, head.B.shape[-1], dtype=torch.float64)
    read = []
    for chunk, start in enumerate(range(0, length, CHUNK_LEN)):
        here = slice(start, start + CHUNK_LEN)
        y, state = ssd_scan(x[:, here], dt[:, here], head.A, B[:, here], C[:, here], state)
        state = state if rotations is None else rotate_state(state, rotations[chunk])
        read.append(y[..., 0, 0])
    return torch.cat(read, dim=1).T


def stated_kernel(head: Head, rotations: Sequence[Tensor] | None) -> Tensor:
    """a(t:s) B_s Z...Z C_t, eqs. (intra), (cross_one), (general); the write carries its step."""
    length = head.dt.shape[1]
    decay = torch.exp(segment_sum(head.dt[0, :, 0] * head.A))
    paired = torch.empty(length, length, dtype=torch.float64)
    for s in range(length):
        carried = head.B[0, s, 0]
        for t in range(s, length):
            if rotations is not None and t > s and t % CHUNK_LEN == 0:
                carried = carried @ rotations[t // CHUNK_LEN - 1]
            paired[t, s] = carried @ head.C[0, t, 0]
    return torch.where(decay > 0, decay * paired * head.dt[0, :, 0], 0.0)


def kernel_section() -> Section:
    """The kernel with and without rotation."""
    head = make_head()
    plain, turned = measured_kernel(head, None), measured_kernel(head, head.Z)
    swapped = measured_kernel(head, (head.Z[0], head.Z[2], head.Z[1], head.Z[3]))
    last, first = slice(-CHUNK_LEN, None), slice(0, CHUNK_LEN)
    inside = torch.block_diag(*[torch.ones(CHUNK_LEN, CHUNK_LEN)] * N_CHUNKS) > 0
    cuts = range(CHUNK_LEN, CHUNK_LEN * N_CHUNKS, CHUNK_LEN)
    rank = max(int(torch.linalg.matrix_rank(turned[cut:, :cut], atol=1e-10)) for cut in cuts)
    changed = (turned[last, first] - plain[last, first]).norm() / plain[last, first].norm()
    reordered = (swapped[last, first] - turned[last, first]).norm() / turned[last, first].norm()
    return Section(
        "The kernel with and without rotation",
        "`intra`, `cross_one`, `general`, `crossblock`",
        "What frame t reads of frame s is M[t, s]. Without rotation it is the decay between the two times how well the read matches the "
        "write, and nothing that happened in between can change it. Each boundary that is crossed puts one more Z between write and read. "
        f"Here are {N_CHUNKS} chunks of {CHUNK_LEN} frames and a state of {D_STATE} numbers.",
        ("quantity", "value"),
        (
            ("kernel of the first chunk as the last one reads it, change by the rotations", f"{float(changed):.3f} of its norm"),
            ("the same, after exchanging the two rotations in the middle", f"{float(reordered):.3f} of its norm"),
            ("rank of what lies below a boundary (at most the width of the state, whatever the rotations)", f"{rank} of {D_STATE}"),
        ),
        (
            Check("kernel of the scan against a(t:s) B C, without rotation", deviation(plain, stated_kernel(head, None))),
            Check("kernel of the scan against a(t:s) B Z...Z C, with rotation", deviation(turned, stated_kernel(head, head.Z))),
            Check("inside a chunk the rotation changes nothing", deviation(plain[inside], turned[inside])),
            Check("a constant Z is a position code on B and C", deviation(*_constant_rotation(head))),
        ),
        "equations-kernel",
        "Size of M[t, s] without rotation, with rotation, and with the two middle rotations exchanged. Blocks on the diagonal are the same "
        "in all three.",
        lambda: _draw_kernels(plain, turned, swapped),
    )


def _constant_rotation(head: Head) -> tuple[Tensor, Tensor]:
    """The kernel under one and the same Z, and that of a scan without rotation whose B and C carry powers of it (section 3.5)."""
    powers = torch.stack([torch.matrix_power(head.Z[0], t // CHUNK_LEN) for t in range(head.dt.shape[1])])
    B, C = (torch.einsum("tmn,btpn->btpm", powers, part) for part in (head.B, head.C))
    return measured_kernel(head, [head.Z[0]] * N_CHUNKS), measured_kernel(Head(head.dt, head.A, B, C, head.Z), None)


def _draw_kernels(*kernels: Tensor) -> Figure:
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    peak = max(float(kernel.abs().max()) for kernel in kernels)
    titles = ("without rotation", "with rotation", "two rotations exchanged")
    for axes, kernel, title in zip(panels(figure, 3), kernels, titles, strict=True):
        image = axes.imshow(kernel.abs().numpy(), cmap="cividis", vmin=0, vmax=peak)
        _chunk_lines(axes)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("frame written, s")
    figure.axes[0].set_ylabel("frame reading, t")
    figure.colorbar(image, ax=figure.axes, shrink=0.85, label="|M[t, s]|")
    return figure


def _chunk_lines(axes: Axes) -> None:
    for chunk in range(1, N_CHUNKS):
        axes.axhline(chunk * CHUNK_LEN - 0.5, color="white", linewidth=0.8)
        axes.axvline(chunk * CHUNK_LEN - 0.5, color="white", linewidth=0.8)


@dataclass(frozen=True)
class Collision:
    """The same content written twice, a number of boundaries apart, over random rotations of one angle."""

    boundaries: int
    cosine: Tensor
    """(draws) between the directions in which the two are held."""
    recovered: Tensor
    """(draws) share of the first that a read-out blind to the second still reads."""
    leaked: Tensor
    """(draws) share of the second that it reads."""


def collide(boundaries: int, theta: float, d_state: int = 16, rank: int = 4, seed: int = 0) -> Collision:
    """Write B, cross the boundaries, write B again, and compare where the two are held. One lane per draw of rotations."""
    g = torch.Generator().manual_seed(seed)
    B = torch.nn.functional.normalize(torch.randn(d_state, dtype=torch.float64, generator=g), dim=0)
    write = B.expand(DRAWS, 1, 1, d_state)
    unit, dt = torch.ones(DRAWS, 1, 1, 1, dtype=torch.float64), torch.ones(DRAWS, 1, 1, dtype=torch.float64)
    A, empty = torch.tensor([-0.05], dtype=torch.float64), torch.zeros(DRAWS, 1, 1, d_state, dtype=torch.float64)
    _, second = ssd_scan(unit, dt, A, write, write, empty)
    first = second
    for _ in range(boundaries):
        first = rotate_state(first, draw_rotations(g, DRAWS, d_state, rank, theta)[:, None])
        _, first = ssd_scan(0 * unit, dt, A, write, write, first)
    one, two = first[:, 0, 0], second[:, 0, 0]  # (draws, n)
    cosine = torch.cosine_similarity(one, two, dim=-1)
    read = torch.linalg.qr(torch.stack([two, one], dim=-1)).Q[..., 1]  # the direction of `one` that `two` has nothing of
    recovered, leaked = ((read * held).sum(-1).abs() / held.norm(dim=-1) for held in (one, two))
    return Collision(boundaries, cosine, recovered, leaked)


def collision_section() -> Section:
    """Two writes of the same content."""
    apart = range(1, 9)
    found = {theta: [collide(n, theta) for n in apart] for theta in (0.0, *TURNS)}
    none, flat = found[0.0], [c for row in found.values() for c in row]
    expected = torch.cat([1 - c.cosine**2 for c in flat])
    rows = []
    for theta, row in found.items():
        cosines = [f"{float(row[n - 1].cosine.mean()):.3f}" for n in (1, 2, 4)]
        rows.append((f"theta = {theta:g}" if theta else "no rotation", *cosines, f"{float(row[3].recovered.mean()):.3f}"))
    return Section(
        "Collision of two writes",
        "`elementwise`, `general`",
        "The same content arrives twice. Without rotation both lie in the same direction, and no read-out can have one without the other. "
        "With rotation the first one has been turned by all that happened since, so that a read-out which is blind to the second still "
        f"finds the first. {DRAWS} random draws of 4 planes in a state of 16 numbers.",
        ("rotation", "cosine after 1 boundary", "after 2", "after 4", "share of the first recovered after 4"),
        tuple(rows),
        (
            Check("without rotation the two directions are one", max(float((1 - c.cosine).abs().max()) for c in none)),
            Check("the read-out reads nothing of the second write", deviation(torch.cat([c.leaked for c in flat]), 0 * expected)),
            Check("and of the first the sine of the angle between them", deviation(torch.cat([c.recovered**2 for c in flat]), expected)),
        ),
        "equations-collision",
        "Cosine between the directions of two equal writes, by the number of boundaries between them: mean and middle 80 % of the draws.",
        lambda: _draw_collision(found),
    )


def _draw_collision(found: dict[float, list[Collision]]) -> Figure:
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for (theta, row), ink, marker in zip(found.items(), ("#1a1a1a", "#E69F00", "#0072B2", "#009E73"), "^osD", strict=True):
        x = [c.boundaries for c in row]
        low, high = (torch.stack([c.cosine.quantile(q) for c in row]) for q in (0.1, 0.9))
        axes.fill_between(x, low.numpy(), high.numpy(), color=ink, alpha=0.2, linewidth=0)
        axes.plot(
            x, [float(c.cosine.mean()) for c in row], color=ink, marker=marker, label=f"theta = {theta:g}" if theta else "no rotation"
        )
    axes.set_xlabel("boundaries between the two writes")
    axes.set_ylabel("cosine of their directions")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    return figure
