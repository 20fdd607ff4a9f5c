"""What follows from a configuration alone agrees with the model built from it."""

import pytest
import torch

from surgicalmamba.model.surgical_mamba import VARIANTS, Grid, empty_state, rotation_grids


@pytest.mark.parametrize("variant", VARIANTS)
def test_grids_and_memory_are_those_of_the_built_paths(build, features, variant):
    model = build(variant)
    grids = rotation_grids(model.config)
    assert grids == {group: Grid(paths[0].config.chunk_len, paths[0].clip_len) for group, paths in model.rotating_paths().items()}
    every_path = [path for block in model.blocks for path in (block.slow, block.fast) if path is not None]
    assert any(path.rotator is not None for path in [*every_path, model.head.block.slow]) == bool(grids)
    with torch.no_grad():
        after = model.forward_features(features(3)).state
    assert [t.shape for t in empty_state(model.config, 1).tensors()] == [t.shape for t in after.tensors()]
    assert empty_state(model.config, 3).frame_index == (0, 0, 0)


def test_memory_is_float32_for_half_precision_weights_and_float64_for_double(build):
    config = build().config
    assert empty_state(config, 1, torch.bfloat16).head.ssm.dtype == torch.float32
    assert empty_state(config, 1, torch.float64).head.ssm.dtype == torch.float64
