"""Figures of `bench model` that do not depend on the machine."""

import torch

from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba_lab.bench.model import macs_per_frame, run_clip, run_steps


def test_the_papers_model_needs_4_565_billion_multiply_accumulates_per_frame():
    # the release measures 4.565 G, 4.455 of them in the backbone; the paper prints 4.55
    with torch.device("meta"):
        model = SurgicalMamba(ModelConfig())
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    macs = macs_per_frame(model)
    assert round(macs["total"] / 1e9, 3) == 4.565
    assert round(macs["backbone"] / 1e9, 3) == 4.455


def test_clip_and_step_loop_compute_the_same_logits():
    torch.manual_seed(0)
    model = SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=5)).eval()
    features = torch.randn(1, 70, 5)
    with torch.no_grad():
        torch.testing.assert_close(
            run_steps(model, features), run_clip(model, features), rtol=1e-4, atol=1e-4
        )
