"""Disturbed features: what is drawn once per procedure, what for every clip, and what stays as stored."""

import numpy as np

from surgicalmamba.data.clips import FeatureNoise

WHOLE = np.stack([np.arange(40.0), 100 + 2 * np.arange(40.0) % 7, np.full(40, 5.0)], axis=1).astype(
    np.float32
)


def rng(seed):
    return np.random.default_rng(seed)


def test_without_noise_features_come_as_stored():
    assert np.array_equal(FeatureNoise().apply(WHOLE[:10], WHOLE, rng(0), rng(1)), WHOLE[:10])


def test_jitter_is_one_scale_and_one_shift_per_feature_for_the_whole_procedure():
    noise = FeatureNoise(jitter=0.3)
    first, second = (
        noise.apply(part, WHOLE, rng(5), rng(seed)) for seed, part in ((1, WHOLE[:20]), (2, WHOLE[20:]))
    )
    got = np.concatenate([first, second])
    for feature in range(2):
        gain, shift = np.polyfit(WHOLE[:, feature], got[:, feature], 1)
        np.testing.assert_allclose(got[:, feature], gain * WHOLE[:, feature] + shift, rtol=1e-4, atol=1e-3)
        assert abs(gain - 1) > 1e-3
    other = noise.apply(WHOLE[:20], WHOLE, rng(6), rng(1))
    assert not np.allclose(other, first), "another procedure, another draw"


def test_jitter_and_grain_are_measured_in_deviations_of_the_feature():
    draws = np.stack(
        [FeatureNoise(jitter=0.1).apply(WHOLE[:1], WHOLE, rng(seed), rng(0))[0] for seed in range(4000)]
    )
    moved = draws[:, 0]  # the first value is 0, so it is moved by the shift alone
    assert abs(moved.std() / WHOLE[:, 0].std() - 0.1) < 0.01 and abs(moved.mean()) < 0.1
    grain = FeatureNoise(grain=0.2).apply(np.repeat(WHOLE, 200, 0), WHOLE, rng(0), rng(1)) - np.repeat(
        WHOLE, 200, 0
    )
    np.testing.assert_allclose(grain.std(0), 0.2 * WHOLE.std(0), rtol=0.05)
    assert not grain[:, 2].any(), "a feature that never changes gets no noise"


def test_dropout_sets_its_share_of_the_values_to_zero_and_leaves_the_rest():
    got = FeatureNoise(dropout=0.25).apply(WHOLE + 1, WHOLE, rng(0), rng(1))
    kept = got != 0
    assert np.array_equal(got[kept], (WHOLE + 1)[kept]) and 0.15 < 1 - kept.mean() < 0.35
