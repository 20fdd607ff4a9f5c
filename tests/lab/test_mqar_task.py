"""The recall task: pairs, questions, fillers, and the same data for everybody."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba_lab.studies.mqar_task import make_batch


@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_every_key_is_asked_once_after_the_pairs_and_answered_by_its_value(n_examples, n_pairs, spare, seed):
    length = 4 * n_pairs + 2 * spare
    batch = make_batch(n_examples, length, n_pairs, 40, np.random.default_rng(seed))
    assert batch.tokens.shape == (n_examples, length) and batch.places.shape == batch.answers.shape == (
        n_examples,
        n_pairs,
    )
    for tokens, places, answers in zip(batch.tokens, batch.places, batch.answers, strict=True):
        keys, values = tokens[0 : 2 * n_pairs : 2], tokens[1 : 2 * n_pairs : 2]
        assert len(set(keys)) == len(set(values)) == n_pairs
        assert (keys < 20).all() and (values >= 20).all() and (tokens < 40).all()
        pairs = dict(zip(keys, values, strict=True))
        assert (
            (places >= 2 * n_pairs).all()
            and (places < length).all()
            and (places % 2 == 0).all()
            and len(set(places)) == n_pairs
        )
        assert [pairs[tokens[place]] for place in places] == list(answers)


def test_with_a_quarter_of_the_length_in_pairs_every_second_place_asks():
    batch = make_batch(3, 16, 4, 20, np.random.default_rng(0))
    assert [sorted(row) for row in batch.places] == [[8, 10, 12, 14]] * 3


def test_fillers_are_drawn_from_the_whole_vocabulary_and_are_not_left_empty():
    batch = make_batch(400, 64, 2, 32, np.random.default_rng(1))
    kept = np.ones(batch.tokens.shape, bool)
    kept[:, :4] = False
    np.put_along_axis(kept, batch.places, False, axis=1)
    counts = np.bincount(batch.tokens[kept], minlength=32)
    assert counts.min() > 0.8 * counts.mean() and counts.max() < 1.2 * counts.mean()


def test_keys_and_their_order_are_drawn_fairly():
    batch = make_batch(4000, 16, 3, 20, np.random.default_rng(2))
    for place in (0, 2, 4):
        counts = np.bincount(batch.tokens[:, place], minlength=10)[:10]
        assert counts.min() > 330 and counts.max() < 470  # 400 each; four deviations of a binomial count


def test_few_questions_follow_the_power_law_of_distances():
    batch = make_batch(20_000, 18, 1, 20, np.random.default_rng(3))
    slots = (batch.places[:, 0] - 2) // 2
    weights = np.arange(1, 9) ** -0.99
    assert np.bincount(slots, minlength=8) / 20_000 == pytest.approx(weights / weights.sum(), abs=0.012)


def test_the_same_generator_gives_the_same_batch_and_another_seed_another():
    first, again, other = (make_batch(2, 32, 4, 40, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert (first.tokens == again.tokens).all() and (first.tokens != other.tokens).any()
