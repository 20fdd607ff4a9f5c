import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.contract import check_contract, frames, in_cuts, n_parameters, varied
from surgicalmamba.peers.attention import visible_in_cache
from surgicalmamba.peers.dacat import DACAT, DACATConfig, best_stretch, chosen_clip

SMALL = DACATConfig(d_feature=5, n_phases=3, d_hidden=6)


def test_dacat_keeps_the_contract():
    check_contract(DACAT(SMALL))


def test_its_size_is_the_published_one():
    counts = [n_parameters(DACAT, d_feature=width) / 1e6 for width in (2048, 768)]
    assert round(counts[0], 1) == 23.1 and round(counts[1], 2) == 7.03


def start_by_brute_force(now, past):
    """The start with the largest sum of channel means from it to the newest frame; the earliest of equal
    ones."""
    sums = [sum(float((now * frame).mean()) for frame in past[start:]) for start in range(len(past))]
    return max(range(len(past)), key=lambda start: sums[start])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 7), st.integers(1, 6), st.one_of(st.none(), st.integers(1, 9)))
def test_the_clip_starts_where_the_sum_of_scores_to_the_present_is_largest(seed, n_before, length, limit):
    features = torch.randn(1, n_before + length, 4, generator=torch.Generator().manual_seed(seed))
    kept = n_before if limit is None else min(n_before, limit)
    line = features[:, n_before - kept :]
    clip = chosen_clip(features[:, n_before:], line, visible_in_cache([n_before], length, kept, limit))
    for j in range(length):
        now = n_before + j
        first = 0 if limit is None else max(0, now + 1 - limit)
        start = first + start_by_brute_force(features[0, now], features[0, first : now + 1])
        assert (clip[0, j].nonzero()[:, 0] + n_before - kept).tolist() == list(range(start, now + 1))


def test_scores_that_are_all_positive_choose_the_whole_history_and_equal_sums_the_earlier_start():
    features = torch.ones(1, 5, 3)
    assert chosen_clip(features, features, visible_in_cache([0], 5, 0)).equal(visible_in_cache([0], 5, 0))
    idle_first = torch.tensor(
        [[[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]]
    )  # frames without any tool add nothing and are not cut off
    assert chosen_clip(idle_first, idle_first, visible_in_cache([0], 3, 0))[0, 2].tolist() == [
        True,
        True,
        True,
    ]


def slow_logits(model, features):
    """The published formula for one lane, frame by frame, with a key and a value for every frame of the
    clip."""
    attended = []
    for t, now in enumerate(features):
        clip = features[start_by_brute_force(now, features[: t + 1]) : t + 1]
        keys, values = clip @ model.key.weight.T, model.value(clip)
        attended.append(torch.softmax(keys @ model.query(now) * now.shape[0] ** -0.5, dim=0) @ values)
    frame, _ = model.frame_lstm.lstm(features[None])
    clip, _ = model.clip_lstm.lstm(torch.stack(attended)[None])
    return (model.frame_classifier(frame)[0] + model.clip_classifier(clip)[0]) / 2


def test_the_answer_is_that_of_the_published_formula():
    model = varied(DACAT(SMALL))
    features = frames(model, 1, 15)
    torch.testing.assert_close(
        model.forward_features(features).logits[0], slow_logits(model, features[0]), atol=1e-5, rtol=1e-5
    )


def test_the_cache_forgets_the_oldest_frames_beyond_its_limit_in_every_cut():
    model = varied(DACAT(SMALL.with_(cache_len=6)))
    features = frames(model, 2, 20)
    whole = model.forward_features(features)
    assert whole.state.cache.equal(features[:, -6:])
    for cuts in ([1], [4, 9, 7]):
        torch.testing.assert_close(in_cuts(model, features, cuts)[0], whole.logits, atol=1e-5, rtol=1e-5)
    late = model.forward_features(features[1:, :11]).state
    joined = type(late).stack([model.forward_features(features[:1, :2]).state, late])
    output = model.forward_features(torch.stack([features[0, 2:9], features[1, 11:18]]), joined)
    torch.testing.assert_close(output.logits[0], whole.logits[0, 2:9], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.logits[1], whole.logits[1, 11:18], atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 8))
def test_frames_that_share_a_clip_choose_it_by_correlation_with_every_stretch(seed, n_frames, n_before):
    line = torch.randn(n_before + n_frames, 3, generator=torch.Generator().manual_seed(seed))
    now = line[n_before:]
    scores = [float((now * line[start : start + n_frames]).mean()) for start in range(n_before + 1)]
    sums = [sum(scores[start:]) for start in range(len(scores))]
    assert best_stretch(now, line) == sums.index(max(sums))


def test_the_published_lookahead_is_what_training_does_with_a_clip():
    model = varied(DACAT(SMALL.with_(attention="published-lookahead", clip_len=4))).train()
    features = frames(model, 1, 10)
    changed = features.clone()
    changed[:, 6] += 2.0  # clips are frames 0..3, 4..7, 8..9
    before, after = (model.forward_features(x).logits[0] for x in (features, changed))
    moved = [not torch.allclose(a, b, atol=1e-5) for a, b in zip(before, after, strict=True)]
    assert moved[:4] == [False] * 4 and moved[4] and moved[5]


def test_outside_training_a_network_trained_with_the_lookahead_is_the_causal_one_in_calls_of_any_length():
    model = DACAT(SMALL.with_(attention="published-lookahead", clip_len=4))
    check_contract(model)
    causal = DACAT(SMALL).eval()
    causal.load_state_dict(model.state_dict())
    features = frames(model, 2, 9)
    assert torch.equal(
        model.eval().forward_features(features).logits, causal.forward_features(features).logits
    )
