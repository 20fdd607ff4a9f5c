"""`study equations`: the identities of the paper's appendix, computed with the package's own functions in
float64.

Four sections: what rotations at chunk boundaries do to the kernel (appendix Matrix view of state
regramming) and to two equal writes; what intensity does to memory (appendix What intensity modulation
buys) and what a burst of it costs. Each is a table, checks and a figure, which `study equations --docs`
puts between two marks of docs/equations.md; the explanation around them is written there."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from surgicalmamba.core.rotation import cayley, generator, rotate_state, unit_columns
from surgicalmamba.core.ssd import segment_sum, ssd_scan, warp_step
from surgicalmamba.files import make_folder
from surgicalmamba.insight import regime
from surgicalmamba.report.colours import colour
from surgicalmamba.report.figures import save_figure
from surgicalmamba.report.sections import refresh_page
from surgicalmamba.report.tables import markdown_table
from surgicalmamba.train.losses import transition_target

ROUNDING = 1e-9
"""An identity computed in float64 holds to better than this."""
D_STATE, RANK, CHUNK_LEN, N_CHUNKS = 4, 2, 8, 4
TURNS = (0.1, 0.5, 2.0)
"""Angles theta of the collision's rotations."""
DRAWS = 200
"""Random rotations per angle."""
PLATEAU_RATE = 0.083
"""a of the paper's within-phase plateau of 0.92."""
SHAPES = ((2.0, 12.0), (7.0, 7.0), (12.0, 2.0))
"""sigma_L and sigma_R of equal sum."""


@dataclass(frozen=True)
class Check:
    """A statement of the paper and by how much the numbers miss it."""

    claim: str
    deviation: float
    is_identity: bool = True
    """Whether the statement is exact; the others are approximations, and the deviation is their error."""

    @property
    def holds(self) -> bool:
        return not self.is_identity or self.deviation < ROUNDING

    @property
    def text(self) -> str:
        """Rounding without its digits, so that the text is the same on every machine; the error of an
        approximation."""
        if self.is_identity:
            return f"exact, to {ROUNDING:g}" if self.holds else f"fails, off by {self.deviation:.1g}"
        return f"approximate, off by {100 * self.deviation:.2g} %"


@dataclass(frozen=True)
class Section:
    """One part of the page; `table` has its header first."""

    title: str
    key: str
    table: list[list[str]]
    checks: list[Check]
    caption: str
    draw: Callable[[], Figure]

    def as_dict(self) -> dict[str, object]:
        checks = [
            {"claim": c.claim, "deviation": c.deviation, "identity": c.is_identity, "holds": c.holds}
            for c in self.checks
        ]
        return {"table": self.table, "checks": checks}

    def markdown(self) -> str:
        checks = [["statement", "numbers"], *([check.claim, check.text] for check in self.checks)]
        parts = ["", *markdown_table(self.table, align_right=True), "", *markdown_table(checks), ""]
        return "\n".join([*parts, f"![{self.caption}](images/{self.key}.png)", "", f"*{self.caption}*", ""])


def sections() -> list[Section]:
    """Everything computed, nothing drawn yet."""
    return [kernel_section(), collision_section(), selectivity_section(), cost_section()]


def write_page(page: Path, parts: Sequence[Section]) -> None:
    """The figures as PNG and SVG, then the sections between their marks of the page."""
    make_folder(page.parent / "images")
    for part in parts:
        save_figure(part.draw(), page.parent / "images", part.key)
        refresh_page(page, part.key, part.markdown())


def deviation(found: Tensor, stated: Tensor) -> float:
    """Largest difference, relative to the largest value; if all values are zero, the difference itself."""
    return float((found - stated).abs().max()) / (float(stated.abs().max()) or 1.0)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


# The kernel with and without rotation. One head of width one; a kernel is measured by writing a unit at every
# frame by itself and reading it at every later one.


@dataclass(frozen=True)
class Head:
    """One head over four chunks: steps (1, l, 1), decay (1), writes and reads (1, l, 1, n), a rotation per
    boundary (n, n)."""

    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    Z: tuple[Tensor, ...]


def make_head(seed: int = 0) -> Head:
    g = torch.Generator().manual_seed(seed)
    length = CHUNK_LEN * N_CHUNKS
    dt = 0.05 + 0.1 * torch.rand(1, length, 1, dtype=torch.float64, generator=g)
    B, C = (torch.randn(1, length, 1, D_STATE, dtype=torch.float64, generator=g) for _ in range(2))
    rotations = tuple(draw_rotations(g, N_CHUNKS, D_STATE, RANK, 1.5))
    return Head(dt, torch.tensor([-0.5], dtype=torch.float64), B, C, rotations)


def draw_rotations(g: torch.Generator, count: int, d_state: int, rank: int, theta: float) -> Tensor:
    """Rotations (count, n, n) by this angle in planes of random direction."""
    U, V = (
        unit_columns(torch.randn(1, count, d_state, rank, dtype=torch.float64, generator=g)) for _ in range(2)
    )
    return cayley(generator(U, V, torch.full((1, count, rank), theta, dtype=torch.float64)))[0]


def measured_kernel(head: Head, rotations: Sequence[Tensor] | None) -> Tensor:
    """M[t, s] of the recurrence: lane s writes a unit at frame s and nothing else."""
    length = head.dt.shape[1]
    x = torch.eye(length, dtype=torch.float64)[..., None, None]  # (lane, l, 1, 1)
    dt, B, C = (part.expand(length, *part.shape[1:]) for part in (head.dt, head.B, head.C))
    state, read = _zeros(length, 1, 1, head.B.shape[-1]), []
    for chunk, start in enumerate(range(0, length, CHUNK_LEN)):
        at = slice(start, start + CHUNK_LEN)
        y, state = ssd_scan(x[:, at], dt[:, at], head.A, B[:, at], C[:, at], state)
        state = state if rotations is None else rotate_state(state, rotations[chunk])
        read.append(y[..., 0, 0])
    return torch.cat(read, dim=1).T


def stated_kernel(head: Head, rotations: Sequence[Tensor] | None) -> Tensor:
    """a(t:s) B_s Z...Z C_t, eqs. (intra), (cross_one), (general); the write is scaled by its step."""
    length = head.dt.shape[1]
    decay = torch.exp(segment_sum(head.dt[0, :, 0] * head.A))
    paired = _zeros(length, length)
    for s in range(length):
        carried = head.B[0, s, 0]
        for t in range(s, length):
            if rotations is not None and t > s and t % CHUNK_LEN == 0:
                carried = carried @ rotations[t // CHUNK_LEN - 1]
            paired[t, s] = carried @ head.C[0, t, 0]
    return torch.where(decay > 0, decay * paired * head.dt[0, :, 0], 0.0)


def kernel_section() -> Section:
    head = make_head()
    plain, turned = measured_kernel(head, None), measured_kernel(head, head.Z)
    swapped = measured_kernel(head, (head.Z[0], head.Z[2], head.Z[1], head.Z[3]))
    last, first = slice(-CHUNK_LEN, None), slice(0, CHUNK_LEN)
    inside = torch.block_diag(*[torch.ones(CHUNK_LEN, CHUNK_LEN)] * N_CHUNKS) > 0
    cuts = range(CHUNK_LEN, CHUNK_LEN * N_CHUNKS, CHUNK_LEN)
    rank = max(int(torch.linalg.matrix_rank(turned[cut:, :cut], atol=1e-10)) for cut in cuts)

    def change(to: Tensor, of: Tensor) -> str:
        return f"{float((to - of)[last, first].norm() / of[last, first].norm()):.3f} of its norm"

    table = [
        ["quantity", "value"],
        [
            "kernel of the first chunk as the last one reads it, change by the rotations",
            change(turned, plain),
        ],
        ["the same, after exchanging the two rotations in the middle", change(swapped, turned)],
        ["rank of what lies below a boundary (at most the width of the state)", f"{rank} of {D_STATE}"],
    ]
    checks = [
        Check(
            "kernel of the scan against a(t:s) B C, without rotation",
            deviation(plain, stated_kernel(head, None)),
        ),
        Check(
            "kernel of the scan against a(t:s) B Z...Z C, with rotation",
            deviation(turned, stated_kernel(head, head.Z)),
        ),
        Check("inside a chunk the rotation changes nothing", deviation(plain[inside], turned[inside])),
        Check("a constant Z is a position code on B and C", deviation(*_constant_rotation(head))),
    ]
    caption = (
        "Size of M[t, s] without rotation, with rotation, and with the two middle rotations exchanged. "
        "Blocks on the "
        "diagonal are the same in all three."
    )
    title = "The kernel with and without rotation"
    return Section(
        title, "equations-kernel", table, checks, caption, lambda: _draw_kernels(plain, turned, swapped)
    )


def _constant_rotation(head: Head) -> tuple[Tensor, Tensor]:
    """The kernel under one Z for all boundaries, and that of a scan without rotation whose B and C are
    multiplied by powers of it (section 3.5)."""
    powers = torch.stack([torch.matrix_power(head.Z[0], t // CHUNK_LEN) for t in range(head.dt.shape[1])])
    B, C = (torch.einsum("tmn,btpn->btpm", powers, part) for part in (head.B, head.C))
    return measured_kernel(head, [head.Z[0]] * N_CHUNKS), measured_kernel(
        Head(head.dt, head.A, B, C, head.Z), None
    )


def _draw_kernels(*kernels: Tensor) -> Figure:
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    panels = figure.subplots(1, 3)
    peak = max(float(kernel.abs().max()) for kernel in kernels)
    titles = ("without rotation", "with rotation", "two rotations exchanged")
    for axes, kernel, title in zip(panels, kernels, titles, strict=True):
        image = axes.imshow(kernel.abs().numpy(), cmap="cividis", vmin=0, vmax=peak)
        for chunk in range(1, N_CHUNKS):
            axes.axhline(chunk * CHUNK_LEN - 0.5, color="white", linewidth=0.8)
            axes.axvline(chunk * CHUNK_LEN - 0.5, color="white", linewidth=0.8)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("frame written, s")
    panels[0].set_ylabel("frame reading, t")
    figure.colorbar(image, ax=list(panels), shrink=0.85, label="|M[t, s]|")
    return figure


# Collision of two writes of the same content.


@dataclass(frozen=True)
class Collision:
    """The same content written twice, a number of boundaries apart, over random rotations of one angle;
    (draws) each."""

    boundaries: int
    cosine: Tensor
    """Between the directions in which the two are held."""
    recovered: Tensor
    """Share of the first that a read-out orthogonal to the second still reads."""
    leaked: Tensor
    """Share of the second that it reads."""


def collide(boundaries: int, theta: float, d_state: int = 16, rank: int = 4, seed: int = 0) -> Collision:
    """Write B, cross the boundaries, write B again, and compare where the two are held. One lane per draw
    of rotations."""
    g = torch.Generator().manual_seed(seed)
    B = torch.nn.functional.normalize(torch.randn(d_state, dtype=torch.float64, generator=g), dim=0)
    write, empty = B.expand(DRAWS, 1, 1, d_state), _zeros(DRAWS, 1, 1, d_state)
    nothing, dt = _zeros(DRAWS, 1, 1, 1), _zeros(DRAWS, 1, 1) + 1
    A = torch.tensor([-0.05], dtype=torch.float64)
    _, second = ssd_scan(nothing + 1, dt, A, write, write, empty)
    first = second
    for _ in range(boundaries):
        first = rotate_state(first, draw_rotations(g, DRAWS, d_state, rank, theta)[:, None])
        _, first = ssd_scan(nothing, dt, A, write, write, first)
    one, two = first[:, 0, 0], second[:, 0, 0]  # (draws, n)
    cosine = torch.cosine_similarity(one, two, dim=-1)
    read = torch.linalg.qr(torch.stack([two, one], dim=-1)).Q[..., 1]  # the part of `one` orthogonal to `two`
    recovered, leaked = ((read * held).sum(-1).abs() / held.norm(dim=-1) for held in (one, two))
    return Collision(boundaries, cosine, recovered, leaked)


def collision_section() -> Section:
    found = {theta: [collide(n, theta) for n in range(1, 9)] for theta in (0.0, *TURNS)}
    everything = [c for row in found.values() for c in row]
    table = [
        ["rotation", "cosine after 1 boundary", "after 2", "after 4", "share of the first recovered after 4"]
    ]
    for theta, row in found.items():
        cosines = [f"{float(row[n - 1].cosine.mean()):.3f}" for n in (1, 2, 4)]
        table.append([_angle(theta), *cosines, f"{float(row[3].recovered.mean()):.3f}"])
    recovered, leaked = (torch.cat([getattr(c, k) for c in everything]) for k in ("recovered", "leaked"))
    expected = torch.cat([1 - c.cosine**2 for c in everything])
    alone = max(float((1 - c.cosine).abs().max()) for c in found[0.0])
    checks = [
        Check("without rotation the two directions are one", alone),
        Check("the read-out reads nothing of the second write", deviation(leaked, 0 * leaked)),
        Check("and of the first the sine of the angle between them", deviation(recovered**2, expected)),
    ]
    caption = (
        "Cosine between the directions of two equal writes, by the number of boundaries between them: mean "
        "and middle "
        "80 % of the draws."
    )
    draw = lambda: _draw_collision(found)  # noqa: E731
    return Section("Collision of two writes", "equations-collision", table, checks, caption, draw)


def _angle(theta: float) -> str:
    return f"theta = {theta:g}" if theta else "no rotation"


def _draw_collision(found: dict[float, list[Collision]]) -> Figure:
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    inks = ("#1a1a1a", colour(1), colour(0), colour(2))
    for (theta, row), ink, marker in zip(found.items(), inks, "^osD", strict=True):
        x, means = [c.boundaries for c in row], [float(c.cosine.mean()) for c in row]
        low, high = (torch.stack([c.cosine.quantile(q) for c in row]).numpy() for q in (0.1, 0.9))
        axes.fill_between(x, low, high, color=ink, alpha=0.2, linewidth=0)
        axes.plot(x, means, color=ink, marker=marker, label=_angle(theta))
    axes.set_xlabel("boundaries between the two writes")
    axes.set_ylabel("cosine of their directions")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


# Selectivity of a burst. Step 1, A = -a; bursts are the training target's.


def burst(rise: float, fall: float, before: int = 100, after: int = 100) -> Tensor:
    """The intensity around one boundary, (l), whose first frame of the new phase is number `before`."""
    labels = torch.arange(2).repeat_interleave(torch.tensor([before, after]))
    return transition_target(labels, rise_s=rise, fall_s=fall).double()


def survival(a: float, intensity: Tensor) -> Tensor:
    """What the recurrence leaves of a unit write after each of these frames (l), none of which writes."""
    nothing = _zeros(1, len(intensity), 1, 1)
    dt = warp_step(nothing[..., 0] + 1, intensity[None])
    A, unit = torch.tensor([-a], dtype=torch.float64), _zeros(1, 1, 1, 1) + 1
    return ssd_scan(nothing, dt, A, nothing, nothing + 1, unit)[0][0, :, 0, 0]


def selectivity_section() -> Section:
    table = [["sigma_L, sigma_R", "a", "M, summed", "M, closed form", "S, measured"]]
    errors = []
    for rise, fall in SHAPES:
        intensity = burst(rise, fall)
        mass, closed = float(intensity.sum()), regime.burst_mass(rise, fall)
        for a in (0.02, PLATEAU_RATE):
            # two writes of equal age, 200 frames: one had the boundary after it, the other had none
            measured = float(survival(a, _zeros(200))[-1] / survival(a, intensity)[-1])
            table.append([f"{rise:g}, {fall:g}", f"{a:g}", f"{mass:.3f}", f"{closed:.3f}", f"{measured:.4f}"])
            errors.append(abs(measured / regime.selectivity(a, mass) - 1))
    twice = deviation(survival(0.05, _zeros(50) + 1), survival(0.1, _zeros(50)))
    checks = [
        Check("S of the scan against e^(aM)", max(errors)),
        Check("without a burst only the age of a write counts, so S is one", _only_age_counts()),
        Check("every boundary leaves the same fraction, whatever the lengths of the phases", _geometric()),
        Check("an intensity of one everywhere is twice the step", twice),
    ]
    caption = (
        "What is left, 60 frames after a boundary, of a write by when it was made. The burst takes a "
        "constant factor off "
        "everything before it; a constant decay that suppresses the old as much (eq. lam_aprime) also loses "
        "the new."
    )
    return Section("Selectivity", "equations-selectivity", table, checks, caption, _draw_selectivity)


def _only_age_counts() -> float:
    """How much writes of one age differ under a constant step: lane s writes at frame s and is read 20
    frames later."""
    length, age = 60, 20
    x = torch.eye(length, dtype=torch.float64)[..., None, None]
    ones = _zeros(length, length, 1, 1) + 1
    A = torch.tensor([-PLATEAU_RATE], dtype=torch.float64)
    read, _ = ssd_scan(x, ones[..., 0], A, ones, ones, _zeros(length, 1, 1, 1))
    left = torch.stack([read[s, s + age, 0, 0] for s in range(length - age)])
    return deviation(left, left[0].expand_as(left))


def _geometric() -> float:
    a, wave = 0.05, burst(1, 4, 20, 30)
    gamma = regime.boundary_survival(a, float(wave.sum()))
    errors = []
    for first, second in ((0, 80), (40, 40), (80, 0)):
        whole = torch.cat([_zeros(first), wave, _zeros(second), wave])
        errors.append(abs(float(survival(a, whole)[-1]) / (math.exp(-a * len(whole)) * gamma**2) - 1))
    return max(errors)


def _draw_selectivity() -> Figure:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    a, after = PLATEAU_RATE, 60
    values = burst(2, 12, 60, after).tolist()
    age = torch.arange(len(values)).flip(0)
    left = torch.tensor(
        [regime.retention(a, values[s + 1 :]) for s in range(len(values))], dtype=torch.float64
    )
    faster = regime.rate_without_bursts(a, regime.burst_mass(2, 12), after)
    curves = {
        f"constant decay, a = {a:g}": (torch.exp(-a * age), colour(0), "--"),
        "the same with a burst at the boundary": (left, colour(5), "-"),
        f"constant decay that forgets as much, a' = {faster:.3f}": (torch.exp(-faster * age), colour(2), ":"),
    }
    for label, (kept, ink, style) in curves.items():
        axes.plot(-age.numpy(), kept.numpy(), color=ink, linestyle=style, linewidth=1.8, label=label)
    axes.axvline(-after, color="#888888", linewidth=1)
    axes.annotate("boundary", (-after, 1.0), xytext=(4, -2), textcoords="offset points", fontsize=8, va="top")
    axes.set_yscale("log")
    axes.set_xlabel("frame of the write, counted from now")
    axes.set_ylabel("share that is left")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


# What a burst costs before and after the boundary.


def energy_destroyed(a: float, intensity: Tensor, start: float) -> float:
    """Energy that bursts take off a state of incoherent unit inputs, in frames of input: at every frame
    the difference between what plain decay and warped decay leave. The energy, `start` before the first
    frame, decays at 2a and gains 1 a frame."""
    alpha, ones = 1 + intensity, _zeros(1, len(intensity), 1, 1) + 1
    dt = warp_step(ones[..., 0], intensity[None])
    gain = (1 / alpha).reshape(1, -1, 1, 1)  # undoes the gain of a warped write, which is not counted here
    A = torch.tensor([-2 * a], dtype=torch.float64)
    energy, _ = ssd_scan(gain, dt, A, ones, ones, _zeros(1, 1, 1, 1) + start)
    before = torch.cat([_zeros(1) + start, energy[0, :-1, 0, 0]])
    return float((before * (math.exp(-2 * a) - torch.exp(-2 * a * alpha))).sum())


def cost_before(a: float, rise: float) -> float:
    """D_L measured: the rising half of a burst acts on a state that is full."""
    return energy_destroyed(a, burst(rise, 1.0, 400, 1)[:-1], 1 / (1 - math.exp(-2 * a)))


def cost_after(a: float, fall: float) -> float:
    """D_R measured: the falling half acts on a state that has just begun to fill."""
    return energy_destroyed(a, burst(1.0, fall, 1, 400)[1:], 0.0)


def net_gain(a: float, fall: float) -> float:
    """A write on the boundary's frame, doubled by the burst and then decayed by its falling half, relative
    to no burst (eq. lam_sigR)."""
    falling = burst(1.0, fall, 1, 400)[2:]
    return 2 * float(survival(a, falling)[-1] / survival(a, _zeros(len(falling)))[-1])


def cost_section() -> Section:
    table = [
        ["a", "sigma_L, sigma_R", "D_L, closed form", "D_L, measured", "D_R, closed form", "D_R, measured"]
    ]
    shapes = ((2.0, 2.0), (5.0, 5.0), (12.0, 12.0))
    for a, some in ((0.02, (*shapes, (1.0, 9.0), (9.0, 1.0))), (PLATEAU_RATE, shapes)):
        for rise, fall in some:
            left, right = regime.burst_cost(a, rise, fall)
            costs = (left, cost_before(a, rise), right, cost_after(a, fall))
            table.append([f"{a:g}", f"{rise:g}, {fall:g}", *(f"{cost:.2f}" for cost in costs)])
    small, wide = (
        1e-5,
        50.0,
    )  # here first order and an empty state are good approximations, and half a frame is little
    left, right = regime.burst_cost(small, wide, wide)
    gain = net_gain(0.01, regime.widest_fall(0.01))
    cancels = "at sigma_R = 0.55 / a, gain and decay of a write on the boundary cancel (a = 0.01)"
    checks = [
        Check(
            "D_L against its closed form for small a sigma (0.0005)",
            abs(cost_before(small, wide) / left - 1),
            False,
        ),
        Check(
            "D_R against its closed form for small a sigma (0.0005)",
            abs(cost_after(small, wide) / right - 1),
            False,
        ),
        Check(cancels, abs(gain - 1), False),
    ]
    caption = (
        "Cost of each side of a burst by its width, closed forms as lines and measured values as marks, for "
        "two rates. "
        "Vertical lines: 0.31 / a and 0.55 / a."
    )
    title = "What a burst costs before and after the boundary"
    return Section(title, "equations-cost", table, checks, caption, _draw_cost)


def _draw_cost() -> Figure:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, a in zip(panels, (0.02, PLATEAU_RATE), strict=True):
        sigmas = [regime.widest_fall(a) * share for share in (0.1, 0.25, 0.4, 0.55, 0.75, 1.0, 1.25)]
        fine = torch.linspace(0, sigmas[-1], 60).tolist()
        closed = [regime.burst_cost(a, sigma, sigma) for sigma in fine]
        axes.plot(fine, [left for left, _ in closed], color=colour(0), label="D_L, before")
        axes.plot(sigmas, [cost_before(a, sigma) for sigma in sigmas], "o", color=colour(0))
        axes.plot(fine, [right for _, right in closed], color=colour(5), linestyle="--", label="D_R, after")
        axes.plot(sigmas, [cost_after(a, sigma) for sigma in sigmas], "s", color=colour(5))
        for bound in (regime.widest_cheap_fall(a), regime.widest_fall(a)):
            axes.axvline(bound, color="#888888", linewidth=1)
        axes.set_title(f"a = {a:g}", loc="left", fontsize=10)
        axes.set_xlabel("sigma in frames")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("energy destroyed, in frames of input")
    panels[0].legend(frameon=False, fontsize=8, loc="upper left")
    return figure
