"""What every recognizer does with its input: standardise it, refuse what is wrong, locate a NaN."""

import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.errors import ConfigError, InputError, NonFiniteError
from surgicalmamba.model.recognizer import Standardise
from surgicalmamba.model.surgical_mamba import ModelConfig


def test_features_get_mean_zero_and_deviation_one_and_a_constant_one_is_only_centred():
    features = torch.tensor(
        [[1.0, 100.0, 7.0], [3.0, 300.0, 7.0]]
    )  # by hand: means 2, 200, 7; deviations 1, 100, 0
    standardise = Standardise(3)
    standardise.fit(features)
    assert standardise(features).tolist() == [[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]


def test_a_model_that_standardises_is_the_plain_model_on_standardised_features_and_keeps_the_measure(
    tmp_path,
):
    torch.manual_seed(0)
    model = sm.SurgicalMamba(
        sm.ModelConfig.preset("tiny", backbone=None, d_feature=3, standardise=True)
    ).eval()
    plain = sm.SurgicalMamba(model.config.with_(standardise=False)).eval()
    plain.load_state_dict(
        {name: value for name, value in model.state_dict().items() if not name.startswith("standardise.")}
    )
    raw = 0.01 * torch.randn(1, 40, 3) + torch.tensor([5.0, -2.0, 0.3])
    model.standardise.fit(raw[0])
    with torch.no_grad():
        expected = plain.forward_features((raw - raw.mean(1)) / raw.std(1, correction=0)).logits
        torch.testing.assert_close(model.forward_features(raw).logits, expected, atol=1e-4, rtol=1e-4)
        model.save(tmp_path / "m")
        assert torch.equal(
            sm.load(tmp_path / "m").eval().forward_features(raw).logits, model.forward_features(raw).logits
        )


def test_a_backbones_features_are_not_standardised():
    with pytest.raises(ConfigError, match="standardise must be false with a backbone"):
        sm.ModelConfig.preset("tiny", standardise=True)


DOOR = {
    "(1, 6, 10); expected (batch, frames, 192)": lambda m: m.forward_features(torch.zeros(1, 6, 10)),
    "(6, 192); expected (batch, frames, 192)": lambda m: m.forward_features(torch.zeros(6, 192)),
    "frames have shape (2, 3, 32, 32); expected (batch, frames, 3, height, width)": lambda m: m(
        torch.zeros(2, 3, 32, 32)
    ),
    "multiples of 32": lambda m: m(torch.zeros(1, 1, 3, 40, 40)),
    "frames are torch.uint8; expected floating point": lambda m: m(
        torch.zeros(1, 1, 3, 32, 32, dtype=torch.uint8)
    ),
    "features are torch.float64 but the model is torch.float32; convert": lambda m: m.forward_features(
        torch.zeros(1, 1, 192).double()
    ),
    "give at least one frame": lambda m: m.forward_features(torch.zeros(1, 0, 192)),
    "2 lanes but the state has 1": lambda m: m.forward_features(torch.zeros(2, 1, 192), m.initial_state(1)),
    "on meta but the model is on cpu": lambda m: m.forward_features(torch.zeros(1, 1, 192, device="meta")),
}


@pytest.mark.parametrize("message", DOOR)
def test_a_wrong_input_is_refused_in_one_line_that_names_it(message):
    model = sm.SurgicalMamba(ModelConfig.preset("tiny"))
    with pytest.raises(InputError) as caught:
        DOOR[message](model)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_without_a_backbone_says_so_when_given_frames():
    model = sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=7))
    with pytest.raises(InputError, match=r"no backbone.*forward_features"):
        model(torch.zeros(1, 1, 3, 32, 32))
    with pytest.raises(InputError, match="no backbone"):
        model.encode(torch.zeros(1, 3, 32, 32))


def test_half_precision_weights_are_refused_with_the_right_way():
    model = sm.SurgicalMamba(ModelConfig.preset("tiny", backbone=None, d_feature=7)).bfloat16()
    with pytest.raises(InputError, match=r"keep them float32 and use torch\.autocast"):
        model.forward_features(torch.zeros(1, 1, 7).bfloat16())


def test_a_nan_in_the_input_is_named_by_lane_and_frame_of_the_procedure(build, features):
    model = build()
    state = model.forward_features(features(30, lanes=2)).state
    x = features(20, lanes=2)
    x[1, 4, 3] = float("nan")
    with pytest.raises(NonFiniteError, match="features hold a NaN or infinity at lane 1, frame 34"):
        model.forward_features(x, state)
    frames = torch.zeros(1, 3, 3, 32, 32)
    frames[0, 2, 1, 5, 5] = float("inf")
    tiny = sm.SurgicalMamba(ModelConfig.preset("tiny"))
    with pytest.raises(NonFiniteError, match="frames hold a NaN or infinity at lane 0, frame 2"):
        tiny(frames)


def test_a_nan_in_the_weights_names_the_weight(build, features):
    model = build()
    with torch.no_grad():
        model.blocks[1].ffn.fc1.weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"'blocks\.1\.ffn\.fc1\.weight'"):
        model.forward_features(features(10))


def test_a_nan_in_the_state_names_block_and_lane(build, features):
    model = build()
    state = model.forward_features(features(30, lanes=2)).state
    state.blocks[1].slow.ssm[1] = float("nan")
    with pytest.raises(NonFiniteError, match="state is not finite in block 1, lane 1, before frame 30"):
        model.forward_features(features(5, lanes=2), state)


def test_a_block_that_overflows_is_named_with_the_frame(build, features):
    model = build(dtype=torch.float32)
    x = features(60).float()
    x[0, 52] *= 1e30
    with torch.no_grad():
        model.projector[1] = torch.nn.Identity()
        model.blocks[0].norm = torch.nn.Identity()
    with pytest.raises(NonFiniteError, match="block 0 gives a NaN or infinity at lane 0, frame 52"):
        model.forward_features(x)


def test_a_network_without_chunks_has_no_pieces_no_rotators_and_no_shards():
    lstm = sm.build("lstm", feature_width=4, n_phases=3, d_hidden=8)
    assert lstm.in_pieces() is None and lstm.rotators() == {}
    assert lstm.config.snapshot_frames == 64 and not any(lstm.config.closes_after(n) for n in range(1, 300))
    with pytest.raises(
        ConfigError, match="distributed=shard cannot split lstm; train it with distributed=replicate"
    ):
        lstm.shard_units()


def test_surgicalmamba_names_its_rotators_its_shards_and_the_frames_that_close_a_chunk():
    config = sm.ModelConfig.preset("tiny", backbone=None, d_feature=4, clip_len=100)
    model = sm.SurgicalMamba(config)
    assert model.in_pieces() is model and model.shard_units() == [*model.blocks, model.head]
    assert list(model.rotators()) == ["slow0", "slow1", "fast0", "fast1", "head"]
    assert config.snapshot_frames == 64
    closing = {n for n in range(1, 201) if config.closes_after(n)}
    slow = {
        64,
        128,
        192,
    }  # chunks of 64 frames over the procedure; fast paths and head begin again every 100 frames
    fast, head = {64, 164}, {32, 64, 96, 132, 164, 196}
    assert config.head.path.chunk_len == 32 and closing == slow | fast | head
