"""Raw signals are centred and scaled by what the training videos hold, in every way of running the model."""

import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.recognizer import Standardise


def test_features_get_mean_zero_and_deviation_one_and_a_constant_one_is_only_centred():
    features = torch.tensor([[1.0, 100.0, 7.0], [3.0, 300.0, 7.0]])  # by hand: means 2, 200, 7; deviations 1, 100, 0
    standardise = Standardise(3)
    standardise.fit(features)
    assert standardise(features).tolist() == [[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]


def test_a_model_that_standardises_is_the_plain_model_on_standardised_features_and_keeps_the_measure(tmp_path):
    torch.manual_seed(0)
    model = sm.SurgicalMamba(sm.ModelConfig.preset("tiny", backbone=None, d_feature=3, standardise=True)).eval()
    plain = sm.SurgicalMamba(model.config.with_(standardise=False)).eval()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if not name.startswith("standardise.")})
    raw = 0.01 * torch.randn(1, 40, 3) + torch.tensor([5.0, -2.0, 0.3])
    model.standardise.fit(raw[0])
    with torch.no_grad():
        expected = plain.forward_features((raw - raw.mean(1)) / raw.std(1, correction=0)).logits
        torch.testing.assert_close(model.forward_features(raw).logits, expected, atol=1e-4, rtol=1e-4)
        model.save(tmp_path / "m")
        assert torch.equal(sm.load(tmp_path / "m").eval().forward_features(raw).logits, model.forward_features(raw).logits)


def test_a_backbones_features_are_not_standardised():
    with pytest.raises(ConfigError, match="standardise must be false with a backbone"):
        sm.ModelConfig.preset("tiny", standardise=True)
