import pytest
import torch

from peers.contract import check_contract, frames, varied
from surgicalmamba.errors import ConfigError
from surgicalmamba.peers.surgformer import HierarchicalBlock, Surgformer, SurgformerConfig, window_ages

SMALL = SurgformerConfig(d_feature=5, n_phases=3, d_model=8, n_blocks=2, n_heads=2, n_frames=8, stride=2)


def test_surgformer_keeps_the_contract():
    check_contract(Surgformer(SMALL))


def test_a_block_has_the_published_size_and_its_temporal_part_too():
    with torch.device("meta"):
        block = HierarchicalBlock(768, 12, 4)
    temporal = [block.temporal_norm, block.scales, block.temporal_out]
    counts = [sum(p.numel() for part in parts for p in part.parameters()) for parts in ([block], temporal)]
    assert [round(n / 1e6, 2) for n in counts] == [14.77, 7.68]


def test_it_keeps_60_frames_besides_the_present_one():
    assert Surgformer(SMALL.with_(n_frames=16, stride=4)).initial_state(1).features.shape[1] == 60


def window_by_the_published_rule(t, n_frames, stride):
    """From the present back by whole strides, staying where the next stride would leave the video; oldest
    first."""
    chosen, at = [], t
    for _ in range(n_frames):
        chosen.append(at)
        at = at - stride if at - stride >= 0 else at
    return sorted(chosen)


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_window_at_the_start_repeats_the_earliest_frame_on_its_grid(stride):
    place = torch.arange(80)[None]
    ages = window_ages(place, 16, stride)
    for t in range(80):
        assert (t - ages[0, t]).tolist() == window_by_the_published_rule(t, 16, stride)


def test_frames_between_the_strides_and_before_the_window_change_nothing():
    model = varied(Surgformer(SMALL))
    features = frames(model, 1, 30)
    before = model.forward_features(features).logits[0, -1]
    for t in range(30):
        changed = features.clone()
        changed[:, t] += 1.0
        moved = (model.forward_features(changed).logits[0, -1] - before).abs().max() > 1e-6
        assert bool(moved) == (t in range(15, 30, 2))


def attend(attention, tokens):
    """Self-attention of tokens (n, d) before its projection, head by head."""
    width = tokens.shape[1]
    query, key, value = attention.packed(tokens).split(width, dim=1)
    size = width // attention.n_heads
    heads = [slice(h * size, h * size + size) for h in range(attention.n_heads)]
    return torch.cat(
        [torch.softmax(query[:, h] @ key[:, h].T / size**0.5, dim=1) @ value[:, h] for h in heads], dim=1
    )


def test_a_shorter_scale_is_averaged_into_the_end_of_the_next_wider_one():
    torch.manual_seed(0)
    block = HierarchicalBlock(8, 2, 4)
    tokens = torch.randn(8, 8)
    quarter, half, whole = block.scales
    short = quarter.project(attend(quarter, tokens[6:]))
    middle = attend(half, tokens[4:])
    middle[2:] = 0.5 * middle[2:] + 0.5 * short
    middle = half.project(middle)
    wide = attend(whole, tokens)
    wide[4:] = 0.5 * wide[4:] + 0.5 * middle
    torch.testing.assert_close(block.hierarchical(tokens[None])[0], whole.project(wide), atol=1e-6, rtol=1e-5)


def test_the_class_token_hears_each_frame_by_itself_and_takes_the_mean():
    torch.manual_seed(1)
    block = HierarchicalBlock(8, 2, 4)
    tokens, summary = torch.randn(4, 8), torch.randn(8)
    seen = tokens + block.temporal_out(block.hierarchical(block.temporal_norm(tokens)[None])[0])
    mixed = [
        block.frame_attention.project(
            attend(block.frame_attention, block.frame_norm(torch.stack([summary, frame])))
        )
        for frame in seen
    ]
    token = summary + torch.stack([pair[0] for pair in mixed]).mean(0)
    frame = seen[2] + mixed[2][1]
    new_tokens, new_summary = block(tokens[None], summary[None, None])
    torch.testing.assert_close(
        new_summary[0, 0], token + block.mlp(block.mlp_norm(token)), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        new_tokens[0, 2], frame + block.mlp(block.mlp_norm(frame)), atol=1e-5, rtol=1e-5
    )


def test_a_window_that_has_no_quarter_is_refused():
    with pytest.raises(ConfigError, match="n_frames=6 is not a multiple of 4"):
        SMALL.with_(n_frames=6)
