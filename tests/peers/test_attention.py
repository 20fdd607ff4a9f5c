"""Attention with kept keys and values, against torch's own transformer layers with the same weights."""

import pytest
import torch
from torch import nn

from surgicalmamba.errors import ConfigError
from surgicalmamba.peers.attention import TransformerLayer, join_window, mask_of, visible_in_line
from surgicalmamba.peers.opera import OperAConfig
from surgicalmamba.peers.trans_svnet import NarrowLayer

WIDTH, HEADS, HIDDEN, LENGTH = 8, 2, 12, 9


def give_weights(theirs, ours):
    """Our packed key and value, head by head, into torch's [query, key, value]."""
    key, value = ours.key_value.weight.unflatten(0, (HEADS, 2, -1)).unbind(1)
    key_bias, value_bias = ours.key_value.bias.unflatten(0, (HEADS, 2, -1)).unbind(1)
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, key.flatten(0, 1), value.flatten(0, 1)]))
    theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, key_bias.flatten(), value_bias.flatten()]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def torch_layer(ours):
    kind = nn.TransformerEncoderLayer if ours.cross is None else nn.TransformerDecoderLayer
    theirs = kind(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True).eval()
    norms = (
        [ours.norm, ours.last_norm] if ours.cross is None else [ours.norm, ours.cross_norm, ours.last_norm]
    )
    with torch.no_grad():
        give_weights(theirs.self_attn, ours.attention)
        if ours.cross is not None:
            give_weights(theirs.multihead_attn, ours.cross)
        for number, norm in enumerate(norms, start=1):
            getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
        theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward[3].state_dict())
    return theirs


def banned(window):
    """True where frame t may not look at s: the future, and what lies `window` frames or more behind."""
    age = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    return (age < 0) | (age >= window)


@pytest.mark.parametrize("crosses", [False, True])
@pytest.mark.parametrize("window", [1, 4, 20])
def test_a_layer_over_a_sliding_window_is_torchs_layer_with_a_banded_mask(crosses, window):
    torch.manual_seed(0)
    layer = TransformerLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, crosses=crosses).eval()
    x, source = torch.randn(2, LENGTH, WIDTH), torch.randn(2, LENGTH, WIDTH)
    mask, theirs = banned(window), torch_layer(layer)
    expected = theirs(x, source, tgt_mask=mask, memory_mask=mask) if crosses else theirs(x, src_mask=mask)
    tail = torch.zeros(2, window - 1, layer.memory_width)
    answers, start = [], 0
    for size in (1, 3, 5):  # the tail of each call is the next one's past
        stop = start + size
        mask_here = mask_of(visible_in_line([start, start], size, window), x)
        y, new = layer(x[:, start:stop], source[:, start:stop], tail, mask_here)
        tail, start = join_window(tail, new)[1], stop
        answers.append(y)
    torch.testing.assert_close(torch.cat(answers, dim=1), expected, atol=1e-5, rtol=1e-5)


def test_weights_say_how_much_each_frame_attends_to_which():
    torch.manual_seed(1)
    layer = TransformerLayer(WIDTH, HEADS, HIDDEN, dropout=0.0)
    x = torch.randn(1, LENGTH, WIDTH)
    visible = visible_in_line(
        [0], LENGTH, 1 + LENGTH
    )  # a tail as long as the call, of which nothing was seen
    past = torch.zeros(1, LENGTH, layer.memory_width)
    weights = layer.attention.weights(x, x, past, mask_of(visible, x))
    theirs = torch_layer(layer).self_attn
    _, expected = theirs(x, x, x, attn_mask=banned(LENGTH + 1))
    torch.testing.assert_close(weights[:, :, LENGTH:], expected, atol=1e-6, rtol=1e-5)
    assert weights[:, :, :LENGTH].abs().max() == 0


def test_heads_that_do_not_share_the_width_evenly_are_refused():
    with pytest.raises(ConfigError, match="n_heads=3 does not divide d_model=64"):
        OperAConfig(d_feature=4, n_heads=3)


def test_attention_on_narrow_tokens_is_attention_between_their_projections():
    torch.manual_seed(0)
    layer = NarrowLayer(7, n_heads=8, d_head=32, d_hidden=32).double()
    x, source = torch.randn(5, 3, 7, dtype=torch.float64), torch.randn(5, 30, 7, dtype=torch.float64)
    query, key, value = (
        (part.unflatten(-1, (8, 32))).transpose(1, 2)
        for part in (layer.query(x), layer.key(source), layer.value(source))
    )
    weights = (query @ key.transpose(-1, -2) / 32**0.5).softmax(-1)
    y = nn.functional.layer_norm(x + layer.out((weights @ value).transpose(1, 2).flatten(2)), (7,))
    expected = nn.functional.layer_norm(y + layer.feed_forward(y), (7,))
    torch.testing.assert_close(layer(x, source), expected)
