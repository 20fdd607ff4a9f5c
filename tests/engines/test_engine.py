"""The reference engine is the model, one frame at a time."""

import torch

from surgicalmamba.data.transforms import normalise
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba


def test_frames_one_at_a_time_give_what_the_model_gives_for_the_clip():
    torch.manual_seed(0)
    model = SurgicalMamba(ModelConfig.preset("tiny", n_phases=5)).eval()
    backbone = model.config.backbone
    pictures = torch.randint(0, 256, (70, 96, 96, 3), dtype=torch.uint8)
    engine, state, logits, intensity = EagerEngine(model), model.initial_state(1), [], []
    for picture in pictures:
        output = engine.advance(engine.encode(picture[None]), state)
        state = output.state
        logits.append(output.logits)
        intensity.append(output.intensity_logits)
    with torch.no_grad():
        clip = model(normalise(pictures, backbone.mean_rgb, backbone.std_rgb)[None])
    torch.testing.assert_close(torch.cat(logits), clip.logits[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cat(intensity), clip.intensity_logits[0], atol=1e-4, rtol=1e-4)
