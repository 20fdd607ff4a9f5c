"""Multi-query associative recall: pairs are told first, then each key is asked for once, somewhere among random tokens.

One example with T = 16 tokens and 4 pairs of a vocabulary of 20 (keys 0 to 9, values 10 to 19):

    position   0  1  2  3  4  5  6  7 | 8  9 10 11 12 13 14 15
    token      3 17  8 12  0 19  5 10 | 8  4  3 13  5  5  0 18
               k  v  k  v  k  v  k  v | ?  .  ?  .  ?  .  ?  .
    answer                             12    17    10    19

A question stands on an even place after the pairs; what lies between (.) is drawn from the whole vocabulary, which is the harder variant of
the task. The answer is wanted at the question itself. With T/4 pairs every even place asks; with fewer, early pairs tend to be asked soon
(a power law, as in the benchmark the protocol goes back to).

Every batch follows from seed, dataset and number alone, so nothing is stored, runs can stop anywhere, and variants see the same data."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
POWER = 0.01
"""Exponent of the power law of distances: nearly 1/distance."""


@dataclass(frozen=True)
class Batch:
    """tokens (b, T); places (b, m) of the questions in the order of their pairs; answers (b, m)."""

    tokens: IntArray
    places: IntArray
    answers: IntArray


def make_batch(n_examples: int, length: int, n_pairs: int, vocabulary: int, rng: np.random.Generator) -> Batch:
    """Draw examples. Keys are the lower half of the vocabulary, values the upper; none occurs twice among an example's pairs."""
    half = vocabulary // 2
    n_slots = (length - 2 * n_pairs) // 2
    assert n_pairs <= min(half, n_slots), "more pairs than keys, or than places to ask"
    keys = _distinct(n_examples, half, n_pairs, rng)
    answers = half + _distinct(n_examples, half, n_pairs, rng)
    weights = np.arange(1, n_slots + 1) ** (POWER - 1)
    # The smallest of exponential variables with these rates are a draw without replacement with these weights, in order.
    slots = np.argsort(rng.standard_exponential((n_examples, n_slots)) / weights, axis=1)[:, :n_pairs]
    places = 2 * n_pairs + 2 * slots
    tokens = rng.integers(0, vocabulary, (n_examples, length))
    tokens[:, 0 : 2 * n_pairs : 2] = keys
    tokens[:, 1 : 2 * n_pairs : 2] = answers
    np.put_along_axis(tokens, places, keys, axis=1)
    return Batch(tokens, places, answers)


def _distinct(n_rows: int, n_choices: int, n_drawn: int, rng: np.random.Generator) -> IntArray:
    """Rows of different numbers below n_choices, in random order."""
    scores = rng.random((n_rows, n_choices), dtype=np.float32)
    drawn = np.argpartition(scores, n_drawn - 1, axis=1)[:, :n_drawn]
    order = np.argsort(np.take_along_axis(scores, drawn, axis=1), axis=1)  # a partition alone is in no fair order
    return np.take_along_axis(drawn, order, axis=1)
