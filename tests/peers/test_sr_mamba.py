import pytest
import torch

from peers.contract import check_contract, frames, varied
from surgicalmamba.core.state import BlockState
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import DualPathBlock, PathConfig
from surgicalmamba.peers.sr_mamba import (
    PREFIXES_AT_ONCE,
    ScanBlock,
    SRMamba,
    SRMambaConfig,
    SRMambaForward,
    reverse,
)

PATH = PathConfig(rotation=None, d_state=4, d_head=4)
SMALL = SRMambaConfig(d_feature=5, n_phases=3, d_model=8, n_blocks=2, path=PATH)


@pytest.mark.parametrize("network", [SRMamba, SRMambaForward])
def test_both_forms_keep_the_contract(network):
    check_contract(network(SMALL), length=20)


def test_an_answer_is_the_last_one_of_a_pass_in_both_directions_over_the_prefix():
    model = varied(SRMamba(SMALL))
    features = frames(model, 2, PREFIXES_AT_ONCE + 2)
    logits = model.forward_features(features).logits
    for t in range(PREFIXES_AT_ONCE + 2):
        x = model.stack.embed(features[:, : t + 1])
        for block in model.stack.blocks:
            u = block.norm(x)
            nothing = block.forward_path.initial_state(2, x.dtype, x.device)
            ahead = block.forward_path(u, nothing, (0, 0))
            back = block.backward_path(u.flip(1), nothing, (0, 0)).y.flip(1)
            x = x + block.out_proj(block.out_norm((ahead.y + back) * torch.nn.functional.silu(ahead.gate)))
            x = x + block.ffn(block.ffn_norm(x))
        expected = model.stack.classifier(model.stack.norm(x))[:, -1]
        torch.testing.assert_close(logits[:, t], expected, atol=1e-5, rtol=1e-5)


def test_a_training_clip_that_ends_in_padding_is_answered_as_the_frames_alone():
    model = varied(SRMamba(SMALL)).train()
    features = frames(model, 2, 9)
    both = model.forward_features(features, None, torch.tensor([9, 5])).logits
    for lane, n_frames in ((0, 9), (1, 5)):
        alone = model.forward_features(features[lane : lane + 1, :n_frames]).logits
        torch.testing.assert_close(both[lane : lane + 1, :n_frames], alone, atol=1e-5, rtol=1e-5)


def test_training_answers_from_one_pass_so_earlier_frames_see_the_rest_of_their_call():
    model = varied(SRMamba(SMALL))
    features = frames(model, 1, 9)
    online, state = model.forward_features(features).logits, model.forward_features(features[:, :4]).state
    offline = model.train().forward_features(features[:, 4:], state).logits
    torch.testing.assert_close(
        offline[:, -1], online[:, -1], atol=1e-5, rtol=1e-5
    )  # the last frame has no rest
    assert (offline[:, 0] - online[:, 4]).abs().max() > 1e-4


def test_with_a_single_block_the_past_says_nothing_through_the_backward_scan():
    """At the newest frame the backward scan has just begun, so it gives the same whatever came before."""
    model = varied(SRMamba(SMALL.with_(n_blocks=1)))
    block = model.stack.blocks[0]
    heard = []
    block.backward_path.register_forward_hook(
        lambda _module, _inputs, output: heard.append(output.y[:, 0])
    )  # reversed: the newest first
    features = frames(model, 2, 6)
    features[1, -1] = features[0, -1]  # two procedures with different pasts and one present
    model.forward_features(features)
    one, other = heard[0].unflatten(0, (2, 6))  # six prefixes each
    torch.testing.assert_close(one[-1], other[-1], atol=1e-6, rtol=1e-6)
    assert (one[-2] - other[-2]).abs().max() > 1e-3  # one frame earlier the presents differed


def test_a_lane_is_reversed_within_its_own_frames():
    x = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert reverse(x, torch.tensor([3, 1])).tolist() == [[3, 2, 1, 4], [5, 6, 7, 8]]
    assert reverse(x, None).tolist() == [[4, 3, 2, 1], [8, 7, 6, 5]]


def test_frames_are_kept_in_mind_without_a_scan():
    model = varied(SRMamba(SMALL))
    scans = []
    model.stack.blocks[0].forward_path.register_forward_hook(lambda *_: scans.append(1))
    features = frames(model, 2, 6)
    state = model.remember(features[:, :5], model.initial_state(2))
    assert not scans and state.frame_index == (5, 5)
    torch.testing.assert_close(
        model.forward_features(features[:, 5:], state).logits, model.forward_features(features).logits[:, 5:]
    )
    assert scans


def test_the_forward_block_is_the_single_path_block_of_the_control():
    torch.manual_seed(0)
    ours, control = (
        ScanBlock(SMALL, both_ways=False),
        DualPathBlock(8, PATH, None, 4, clip_len=64, slow_carries=True),
    )
    control.load_state_dict(
        {name.replace("forward_path", "slow"): value for name, value in ours.state_dict().items()}
    )
    x, start = torch.randn(2, 5, 8), ours.forward_path.initial_state(2, torch.float32, torch.device("cpu"))
    expected, _, state = control(x, BlockState(start, None), (0, 0))
    y, after = ours(x, start)
    assert y.equal(expected) and after.ssm.equal(state.slow.ssm)


def test_parts_of_surgicalmamba_are_refused_in_plain_scans():
    with pytest.raises(ConfigError, match=r"path\.rotation and path\.intensity must be null"):
        SRMambaConfig(d_feature=4, path=PathConfig())
    with pytest.raises(ConfigError, match=r"path\.d_head=64 does not divide the inner width 20"):
        SRMambaConfig(d_feature=4, d_model=10)
