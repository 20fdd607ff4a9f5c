"""The causal convolution against torch's, and in pieces."""

import torch
import torch.nn.functional as F

from surgicalmamba.model.surgical_mamba import CausalConv


def test_it_equals_a_left_padded_depthwise_convolution():
    conv = CausalConv(width=5, d_conv=4).double()
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    y, tail = conv(x, torch.zeros(2, 3, 5, dtype=torch.float64))
    reference = F.conv1d(F.pad(x.transpose(1, 2), (3, 0)), conv.weight[:, None], conv.bias, groups=5).transpose(1, 2)
    torch.testing.assert_close(y, reference)
    assert torch.equal(tail, x[:, -3:])


def test_calls_shorter_than_the_kernel_keep_what_the_next_call_needs():
    conv = CausalConv(width=2, d_conv=4).double()
    x = torch.randn(1, 8, 2, dtype=torch.float64)
    whole, _ = conv(x, torch.zeros(1, 3, 2, dtype=torch.float64))
    tail, pieces = torch.zeros(1, 3, 2, dtype=torch.float64), []
    for part in (slice(0, 1), slice(1, 2), slice(2, 4), slice(4, 8)):
        y, tail = conv(x[:, part], tail)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
