import torch

from surgicalmamba.peers.attention import LocalTransformer


def answer(local, x):
    return local(x, x, local.initial_state(x), (0,) * x.shape[0])[0]


def test_a_frame_hears_of_one_window_per_attention_behind_it_and_no_more():
    """One encoder and one decoder layer: self-attention reaches 3 back, attention to encoded frames 3, and
    these 3 more."""
    torch.manual_seed(0)
    local = LocalTransformer(8, window=4, n_layers=1, n_heads=2, d_hidden=8, dropout=0.0).eval()
    x = torch.randn(1, 12, 8)
    before = answer(local, x)
    for t in range(12):
        changed = x.clone()
        changed[:, t] += 1.0
        moved = (answer(local, changed) - before).abs().amax(-1)[0] > 1e-6
        assert moved.nonzero()[:, 0].tolist() == [s for s in range(12) if t <= s <= t + 6]


def test_the_decoder_reads_the_second_line_and_the_encoder_the_first():
    torch.manual_seed(1)
    local = LocalTransformer(8, window=3, n_layers=1, n_heads=2, d_hidden=8, dropout=0.0).eval()
    x, y = torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    state = local.initial_state(x)
    assert not torch.allclose(local(x, y, state, (0,))[0], local(x, x, state, (0,))[0])
    assert not torch.allclose(local(y, x, state, (0,))[0], local(x, x, state, (0,))[0])
