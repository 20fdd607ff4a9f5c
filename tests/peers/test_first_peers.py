"""Carried LSTM, SV-RCNet, TeCNO, Mamba-2 and the frame classifier with its HMM: published sizes, slow
references, cases by hand."""

import pytest
import torch
from torch import nn

from peers.contract import check_contract, frames, n_parameters, varied
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.registry import build
from surgicalmamba.peers.hmm import FrameHMM
from surgicalmamba.peers.lstm import CarriedLSTM
from surgicalmamba.peers.mamba2 import VanillaMamba2
from surgicalmamba.peers.sv_rcnet import SVRCNet
from surgicalmamba.peers.tecno import TeCNO


@pytest.mark.parametrize(
    ("network", "settings", "millions"),
    [
        (CarriedLSTM, {"d_feature": 2048}, 5.25),
        (CarriedLSTM, {"d_feature": 768}, 2.63),
        (SVRCNet, {"d_feature": 2048}, 5.25),
        (TeCNO, {"d_feature": 2048}, 0.133),
        (TeCNO, {"d_feature": 768}, 0.092),
        (TeCNO, {"d_feature": 2048, "n_layers": 9, "n_maps": 64}, 0.430),
        (TeCNO, {"d_feature": 768, "n_layers": 9, "n_maps": 64}, 0.348),
    ],
)
def test_published_sizes_have_the_published_number_of_weights(network, settings, millions):
    digits = 3 if millions < 1 else 2
    assert round(n_parameters(network, **settings) / 1e6, digits) == millions


def test_the_reference_block_of_mamba2_has_its_published_number_of_weights():
    with torch.device("meta"):
        block = VanillaMamba2(VanillaMamba2.config_class(d_feature=8, form="upstream", n_blocks=1)).blocks[0]
    assert sum(p.numel() for name, p in block.named_parameters() if not name.startswith("norm.")) == 3_665_608
    assert build("mamba2-upstream", 8, 7, n_blocks=1, d_model=64).config.d_state == 128


def test_tecno_keeps_what_its_layers_look_back_on_and_no_more():
    assert build("tecno", 8, 7).initial_state(1).nbytes == 2 * 510 * 32 * 4
    assert build("tecno-9-64", 8, 7).initial_state(1).nbytes == 2 * 1022 * 64 * 4
    assert build("lstm", 8, 7).initial_state(1).nbytes == 1024 * 4


def test_tecno_sees_exactly_its_receptive_field():
    model = varied(build("tecno", 3, 4, n_layers=3, n_maps=6, n_stages=2))
    assert model.receptive_field == 1 + 2 * 14
    with torch.no_grad():
        features = frames(model, 1, 40)
        before = model.forward_features(features).logits[0, -1]

        def moved(frame):
            changed = features.clone()
            changed[0, frame] += 5.0
            return not torch.equal(model.forward_features(changed).logits[0, -1], before)

        assert moved(40 - model.receptive_field) and not moved(40 - model.receptive_field - 1)


def test_tecno_is_trained_on_every_stage_and_answers_with_the_last():
    model = build("tecno", 3, 4, n_layers=2, n_maps=6, n_stages=3).train()
    labels = torch.tensor([[0, 1, -1, 2]])
    output = model.forward_features(frames(model, 1, 4))
    assert sorted(output.auxiliary) == ["stage0", "stage1"]
    by_hand = sum(
        nn.functional.cross_entropy(a[0][labels[0] >= 0], labels[0][labels[0] >= 0])
        for a in output.auxiliary.values()
    )
    torch.testing.assert_close(model.training_loss(output, labels, torch.zeros(1, 4)), by_hand)
    only_2 = torch.tensor([0.0, 0.0, 3.0, 0.0])  # weighs the last frame alone
    last = sum(nn.functional.cross_entropy(a[0, 3:], labels[0, 3:]) for a in output.auxiliary.values())
    torch.testing.assert_close(model.training_loss(output, labels, torch.zeros(1, 4), only_2), last)
    assert model.eval().forward_features(frames(model, 1, 4)).auxiliary == {}


def test_sv_rcnet_runs_its_lstm_from_nothing_over_the_frames_there_are():
    model = varied(build("sv-rcnet", 3, 4, n_frames=3, d_hidden=5))
    with torch.no_grad():
        features = frames(model, 1, 6)
        said = model.forward_features(features).logits[0]
        for t in range(6):
            hidden = cell = torch.zeros(1, 5)
            for frame in features[0, max(0, t - 2) : t + 1]:
                hidden, cell = model.lstm.cell(frame[None], (hidden, cell))
            torch.testing.assert_close(said[t], model.classifier(hidden)[0])


def test_the_controls_blocks_and_the_upstream_blocks_are_causal_and_carry_their_state():
    for form in ("control", "upstream"):
        check_contract(build("mamba2", 3, 4, form=form, d_model=8, d_state=4, d_head=4, n_blocks=2))
    with pytest.raises(ConfigError, match="d_head=64 does not divide the inner width 20"):
        build("mamba2", 3, 4, d_model=10)


def counted():
    """Two videos: 0 0 1 1 and 0 1 1 -1 1."""
    model = build("hmm", 2, 2, pseudo_count=1e-9)
    model.measure([], [torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, -1, 1])])
    return model.eval()


def test_the_hmm_counts_first_phases_shares_and_transitions_of_labelled_neighbours():
    model = counted()
    torch.testing.assert_close(model.log_first.exp(), torch.tensor([1.0, 0.0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(model.log_share.exp(), torch.tensor([3 / 8, 5 / 8]))
    torch.testing.assert_close(
        model.log_transition.exp(), torch.tensor([[1 / 3, 2 / 3], [0.0, 1.0]]), atol=1e-6, rtol=0
    )


def test_the_hmm_filters_as_the_forward_algorithm_does():
    model = build("hmm", 2, 3, evidence_weight=0.7)
    model.measure([], [torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 1])])
    model.eval()
    features = frames(model, 1, 12)
    with torch.no_grad():
        frame_logits = model.classifier(features)[0].double()
        said = model.forward_features(features).logits[0].double().exp()
    transition, first, share = (
        x.double().exp() for x in (model.log_transition, model.log_first, model.log_share)
    )
    evidence = (frame_logits.softmax(-1) / share) ** 0.7
    belief = first * evidence[0]
    for t in range(12):
        belief = belief if t == 0 else (belief @ transition) * evidence[t]
        belief = belief / belief.sum()
        torch.testing.assert_close(said[t], belief, atol=1e-5, rtol=1e-4)


def test_a_classifier_that_has_learned_nothing_leaves_the_hmm_at_what_it_counted():
    model = counted()
    torch.nn.init.zeros_(model.classifier.weight)
    with torch.no_grad():
        said = model.forward_features(frames(model, 1, 3)).logits[0].exp()
    by_hand = torch.tensor(
        [[1.0, 0.0], [1 / 3, 2 / 3], [1 / 9, 8 / 9]]
    )  # first phase 0; a third of the zeros is followed by a zero
    torch.testing.assert_close(said, by_hand, atol=1e-6, rtol=0)


def test_the_hmm_is_trained_frame_by_frame_and_answers_filtered():
    model = counted()
    features = frames(model, 1, 5)
    torch.testing.assert_close(model.train().forward_features(features).logits, model.classifier(features))
    assert not torch.allclose(model.eval().forward_features(features).logits, model.classifier(features))


def test_a_measurement_is_part_of_the_checkpoint(tmp_path):
    model = counted()
    model.save(tmp_path)
    again = FrameHMM.config_class  # the class is found by the name in config.json, not by this test
    import surgicalmamba as sm

    loaded = sm.load(tmp_path)
    assert type(loaded) is FrameHMM and isinstance(loaded.config, again)
    torch.testing.assert_close(loaded.log_transition, model.log_transition)
