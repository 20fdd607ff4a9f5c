"""Measures of the rotation and the intensity: hand-made cases and slow references."""

import itertools
import math

import numpy as np
import pytest
import torch

from surgicalmamba.core.rotation import cayley, generator, unit_columns
from surgicalmamba.train.inside import (
    Planes,
    around_boundaries,
    boundary_frames,
    content_dependence,
    intensity_measures,
    mean_principal_cosine,
    plane_similarity,
    rotation_measures,
)
from surgicalmamba.train.losses import transition_target

E = torch.eye(4, dtype=torch.float64)


def planes(*chunks):
    """One head that turns one plane per chunk: (u, v, theta) of each."""
    U, V = (torch.stack([chunk[i] for chunk in chunks])[:, None, :, None] for i in (0, 1))
    return Planes(U, V, torch.tensor([chunk[2] for chunk in chunks], dtype=torch.float64)[:, None, None])


def random_planes(n_chunks, n_heads=3, n=6, r=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    U, V = (unit_columns(torch.randn(n_chunks, n_heads, n, r, generator=g)) for _ in range(2))
    return Planes(U, V, torch.rand(n_chunks, n_heads, r, generator=g))


def test_principal_angles_between_planes_by_hand():
    tilted = math.cos(0.5) * E[1] + math.sin(0.5) * E[2]
    turned = planes((E[0], E[1], 1), (E[1], -E[0], 1), (E[0], tilted, 1), (E[2], E[3], 1))
    # the second chunk has the first one's plane, the third shares one direction with it, the fourth none
    np.testing.assert_allclose(plane_similarity(turned)[0], [1, 1, (1 + math.cos(0.5)) / 2, 0], atol=1e-12)


def test_the_mean_principal_cosine_is_that_of_the_singular_values():
    g = torch.Generator().manual_seed(0)
    overlap = torch.randn(50, 2, 2, dtype=torch.float64, generator=g)
    torch.testing.assert_close(mean_principal_cosine(overlap), torch.linalg.svdvals(overlap).mean(-1))


def test_similarity_is_the_mean_over_planes_and_heads():
    some = random_planes(4)
    parts = [
        plane_similarity(
            Planes(some.U[:, h : h + 1, :, r : r + 1], some.V[:, h : h + 1, :, r : r + 1], some.theta)
        )
        for h, r in itertools.product(range(3), range(2))
    ]
    np.testing.assert_allclose(plane_similarity(some), np.mean(parts, axis=0), atol=1e-12)


def test_a_rotation_that_is_always_the_same_does_not_depend_on_content():
    assert content_dependence(planes(*[(E[0], E[1], 0.3)] * 5)) == pytest.approx(0, abs=1e-6)


def test_turns_with_nothing_in_common_have_a_content_dependence_of_the_square_root_of_two():
    # equal angles in two planes at right angles: |Z - Z'|^2 = |Z - I|^2 + |Z' - I|^2
    assert content_dependence(planes((E[0], E[1], 0.7), (E[2], E[3], 0.7))) == pytest.approx(math.sqrt(2))


def test_content_dependence_is_the_root_mean_square_over_all_pairs_and_heads(monkeypatch):
    some = random_planes(7)
    Z = cayley(generator(some.U.double(), some.V.double(), some.theta.double()))
    apart = [
        (Z[i, h] - Z[j, h]).square().sum() for i, j in itertools.combinations(range(7), 2) for h in range(3)
    ]
    far = [(Z[c, h] - torch.eye(6)).square().sum() for c in range(7) for h in range(3)]
    expected = math.sqrt(float(torch.stack(apart).mean() / torch.stack(far).mean()))
    assert content_dependence(some) == pytest.approx(expected)
    monkeypatch.setattr(
        "surgicalmamba.train.inside.CHUNKS_AT_ONCE", 2
    )  # however many chunks are held at once
    assert content_dependence(some) == pytest.approx(expected)


def test_quantiles_and_mean_of_the_angles_by_hand():
    found = rotation_measures(planes(*[(E[0], E[1], angle / 10) for angle in range(11)]))  # 0, 0.1, ... 1
    assert (found.theta_q10, found.theta_q50, found.theta_q90, found.theta_mean) == pytest.approx(
        (0.1, 0.5, 0.9, 0.5)
    )
    assert found.plane_similarity == pytest.approx(1)


def test_what_cannot_be_measured_is_nan():
    assert all(math.isnan(value) for value in vars(rotation_measures(random_planes(0))).values())
    one = rotation_measures(random_planes(1))
    assert (
        not math.isnan(one.theta_q50)
        and math.isnan(one.content_dependence)
        and math.isnan(one.plane_similarity)
    )
    assert math.isnan(content_dependence(planes((E[0], E[1], 0.0), (E[0], E[1], 0.0))))


def test_samples_inside_phases_and_after_boundaries_by_hand():
    labels = np.repeat([0, 1], 20)
    inside, at = around_boundaries(labels, fps=1.0, rise_s=1.0, fall_s=2.0)
    assert np.flatnonzero(~inside).tolist() == list(range(17, 27)) and np.flatnonzero(at).tolist() == [
        20,
        21,
        22,
    ]


def frames_of(*videos):
    targets = [transition_target(torch.from_numpy(labels), 1.0, 1.0, 2.0).numpy() for labels in videos]
    return boundary_frames(videos, targets, fps=1.0, rise_s=1.0, fall_s=2.0)


def test_an_intensity_that_is_its_target_finds_every_boundary_of_every_video():
    frames = frames_of(np.repeat([0, 1], 20), np.repeat([0, 2, 1], 15))
    found = intensity_measures(
        np.log(np.clip(frames.target, 1e-9, 1 - 1e-9)) - np.log1p(-np.clip(frames.target, 1e-9, 1 - 1e-9)),
        frames,
    )
    assert found.average_precision == 1 and found.boundary_share == pytest.approx(
        3 * 4 / 85
    )  # -1, 0, 1 and 2 s: 1.18 sigma either side
    assert found.inside < 0.012 and found.after_boundaries == pytest.approx(
        np.exp(-0.5 * np.array([0, 0.5, 1]) ** 2).mean(), abs=1e-6
    )
    assert found.bce < 0.5 * found.bce_of_constant


def test_the_best_constant_has_the_cross_entropy_of_the_best_constant():
    frames = frames_of(np.repeat([0, 1], 20))
    mean = frames.target.mean()
    constant = np.full(40, math.log(mean / (1 - mean)))
    found = intensity_measures(constant, frames)
    assert found.bce == pytest.approx(found.bce_of_constant) and found.average_precision == pytest.approx(
        found.boundary_share
    )
    assert (
        intensity_measures(constant + 0.3, frames).bce
        > found.bce
        < intensity_measures(constant - 0.3, frames).bce
    )


def test_unlabelled_frames_enter_neither_precision_nor_cross_entropy():
    labels = np.repeat([0, -1, 1], 10)
    frames = frames_of(labels)
    logits = np.where(labels == -1, 50.0, np.linspace(-1, 1, 30))
    without = intensity_measures(np.where(labels == -1, -50.0, logits), frames)
    found = intensity_measures(logits, frames)
    assert (found.average_precision, found.bce, found.boundary_share) == (
        without.average_precision,
        without.bce,
        without.boundary_share,
    )
