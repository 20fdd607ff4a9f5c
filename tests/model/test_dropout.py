"""Dropout: where it falls in training, and that nothing of it is left when a model answers."""

import pytest
import torch

from surgicalmamba.core.state import BlockState
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import ModelConfig


def with_dropout(build, share):
    return build(config=build().config.with_(dropout=share))


def test_it_is_off_by_default_and_then_training_draws_nothing(build, features):
    model = build().train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model.forward_features(features(20))
    assert torch.equal(torch.get_rng_state(), before)


def test_in_evaluation_a_model_with_dropout_is_the_model_without_it_however_a_procedure_is_cut(build, features):
    plain, model, x = build().eval(), with_dropout(build, 0.5).eval(), features(120)
    model.load_state_dict(plain.state_dict())  # no weights of its own
    whole = plain.forward_features(x).logits
    assert torch.equal(model.forward_features(x).logits, whole)
    pieces, state = [], None
    for piece in x.split(7, dim=1):
        output = model.forward_features(piece, state)
        pieces, state = [*pieces, output.logits], output.state
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)


def test_in_training_the_same_seed_drops_the_same_values_and_another_seed_others(build, features):
    model, x = with_dropout(build, 0.3).train(), features(30)

    def logits(seed):
        torch.manual_seed(seed)
        return model.forward_features(x).logits

    assert torch.equal(logits(1), logits(1)) and not torch.equal(logits(1), logits(2))


def test_it_falls_on_what_path_and_feed_forward_add_in_every_block_and_on_the_heads_input(build, features):
    """With almost everything dropped only the residual stream is left: blocks pass x on, and the head classifies zeros."""
    model, x = with_dropout(build, 1 - 1e-12).double().train(), features(30)
    stream = model.projector(x)
    for block, state in zip(model.blocks, model.initial_state(1).blocks, strict=True):
        assert torch.equal(block(stream, state, (0,))[0], stream)
    head = model.head
    assert torch.equal(head.block(stream, BlockState(model.initial_state(1).head, None), (0,))[0], stream)
    logits, _ = head(stream, model.initial_state(1).head, (0,))
    assert torch.equal(logits, head.classifier.bias.expand_as(logits))


def test_the_values_that_stay_are_scaled_so_that_the_mean_is_kept(build, features):
    model, x = with_dropout(build, 0.25).train(), features(1)
    torch.manual_seed(0)
    block, stream, state = model.blocks[0], model.projector(x), model.initial_state(1).blocks[0]
    block.ffn_norm = block.ffn = None  # one branch alone
    added = block.eval()(stream, state, (0,))[0] - stream
    dropped = block.train()(stream, state, (0,))[0] - stream
    stays = dropped != 0
    torch.testing.assert_close(dropped[stays], added[stays] / 0.75)
    assert 0 < int(stays.sum()) < stays.numel()


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_outside_zero_to_one_is_refused(share):
    with pytest.raises(ConfigError, match="dropout"):
        ModelConfig(dropout=share)
