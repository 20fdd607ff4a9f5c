"""The authors' released files: their numbers, and what happens with files that are not theirs."""

import importlib.util
import json
import zipfile

import numpy as np
import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.errors import CheckpointError
from surgicalmamba.model.release import infer_config, to_our_names


def filled(release_data, listing):
    """A release state dict made from key names and shapes by the reference fill."""
    spec = importlib.util.spec_from_file_location("fill", release_data("fill.py"))
    fill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill)
    keys = json.loads(release_data(listing).read_text())["state_dict"]
    return {key: torch.from_numpy(fill.fill_one(key, shape)) for key, shape, _ in keys}


@pytest.fixture(scope="module")
def small_file(release_data, tmp_path_factory):
    file = tmp_path_factory.mktemp("release") / "small.pth"
    torch.save({"model": filled(release_data, "small_state_dict.json")}, file)
    return file


@pytest.fixture(scope="module")
def golden(release_data):
    return np.load(release_data("temporal_clip.npz"))


@pytest.fixture
def small_model(small_file):
    return sm.load_release(small_file, clip_len=16, chunk_len=8, head_chunk_len=8)


def test_golden_logits_and_intensities_in_float32(small_model, golden):
    with torch.no_grad():
        output = small_model.forward_features(torch.from_numpy(golden["features"]))
    np.testing.assert_allclose(output.logits[0], golden["logits"], rtol=0, atol=3e-5)
    np.testing.assert_allclose(output.intensity_logits[0].T, golden["lambda_logits"], rtol=0, atol=3e-5)
    np.testing.assert_allclose(
        torch.sigmoid(output.intensity_logits[0]).T, golden["lambdas"], rtol=0, atol=3e-5
    )


def test_golden_logits_and_intensities_in_float64(small_model, golden):
    with torch.no_grad():
        output = small_model.double().forward_features(torch.from_numpy(golden["features"]).double())
    np.testing.assert_allclose(output.logits[0], golden["logits_fp64"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(output.intensity_logits[0].T, golden["lambda_logits_fp64"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("cut", [1, 7, 16])
def test_golden_values_hold_for_single_frames_and_any_other_cut(small_model, golden, cut):
    state, logits = None, []
    with torch.no_grad():
        for part in torch.from_numpy(golden["features"]).split(cut, dim=1):
            output = small_model.forward_features(part, state)
            logits.append(output.logits)
            state = output.state
    np.testing.assert_allclose(torch.cat(logits, 1)[0], golden["logits"], rtol=0, atol=3e-5)


def test_golden_intermediate_values(small_model, golden):
    seen = {}

    def keep(name, value):
        seen.setdefault(name, []).append(value[0])

    model = small_model
    model.projector.register_forward_hook(lambda m, i, o: keep("visual_proj", o))
    model.norm.register_forward_hook(lambda m, i, o: keep("frame_norm", o))
    model.head.block.register_forward_hook(lambda m, i, o: keep("head_block0_out", o[0]))
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda m, i, o, index=index: keep(f"block{index}_out", o[0]))
        block.out_proj.register_forward_hook(lambda m, i, o, index=index: keep(f"block{index}_mamba_out", o))
        block.slow.register_forward_hook(lambda m, i, o, index=index: keep(f"block{index}_y_slow", o.y))
        block.fast.register_forward_hook(lambda m, i, o, index=index: keep(f"block{index}_y_fast", o.y))
    with torch.no_grad():
        model.forward_features(torch.from_numpy(golden["features"]))
    names = [name.removeprefix("mid_") for name in golden.files if name.startswith("mid_")]
    assert len(names) == 11
    for name in names:
        np.testing.assert_allclose(
            torch.cat(seen[name]), golden[f"mid_{name}"], rtol=0, atol=3e-5, err_msg=name
        )


def test_golden_slow_states_after_every_clip(small_model, golden):
    state, start = None, 0
    for clip, length in enumerate(golden["clip_lens"]):
        with torch.no_grad():
            state = small_model.forward_features(
                torch.from_numpy(golden["features"][:, start : start + length]), state
            ).state
        start += length
        for block in range(2):
            slow = state.blocks[block].slow
            np.testing.assert_allclose(
                slow.ssm[0], golden[f"slow_ssm_after_clip{clip}_block{block}"], rtol=0, atol=3e-5
            )
            np.testing.assert_allclose(
                slow.conv_tail[0].T, golden[f"slow_conv_after_clip{clip}_block{block}"], rtol=0, atol=3e-5
            )


def test_every_key_of_the_full_size_release_has_its_place(release_data):
    listing = json.loads(release_data("official_state_dict.json").read_text())["state_dict"]
    weights = {key: torch.empty(shape, device="meta") for key, shape, _ in listing}
    config = infer_config(weights, clip_len=128, chunk_len=64, head_chunk_len=32)
    assert (
        config == sm.ModelConfig.preset("release").with_(block=config.block, head=config.head)
        and config.block.slow.dt_rank == 48
    )  # sizes are explicit in what was read from the file
    with torch.device("meta"):
        needed = {name: value.shape for name, value in sm.SurgicalMamba(config).state_dict().items()}
    assert {name: value.shape for name, value in to_our_names(weights).items()} == needed


def test_sizes_come_from_the_shapes(small_model):
    config = small_model.config
    assert (config.d_model, config.n_blocks, config.n_phases, config.clip_len) == (64, 2, 5, 16)
    assert (config.block.slow.d_state, config.block.slow.rotation.rank, config.head.path.rotation.rank) == (
        16,
        4,
        16,
    )
    assert (config.block.slow.chunk_len, config.block.fast.chunk_len, config.head.path.chunk_len) == (8, 8, 8)


class Payload:
    """Unpickling this would run code."""

    def __reduce__(self):
        return (open, ("pwned.txt", "w"))


def write(path, content):
    path.write_bytes(content)
    return path


def test_wrong_truncated_and_dangerous_files_each_give_one_clear_line(small_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = small_file.read_bytes()
    weights = torch.load(small_file, weights_only=True)["model"]
    torch.save({"model": Payload()}, tmp_path / "code.pth")
    torch.save([1, 2, 3], tmp_path / "list.pth")
    torch.save({"model": {"fc.weight": torch.zeros(2, 2)}}, tmp_path / "other.pth")
    torch.save(
        {"model": {k: v for k, v in weights.items() if not k.startswith("frame_norm")}},
        tmp_path / "missing.pth",
    )
    torch.save({"model": weights | {"extra.weight": torch.zeros(1)}}, tmp_path / "extra.pth")
    torch.save({"model": weights | {"frame_norm.weight": torch.zeros(9)}}, tmp_path / "shape.pth")
    with zipfile.ZipFile(tmp_path / "archive.pth", "w") as archive:
        archive.writestr("readme.txt", "not weights")
    cases = {
        "do not exist": tmp_path / "absent.pth",
        "is empty": write(tmp_path / "empty.pth", b""),
        "not a torch weights file": write(tmp_path / "text.pth", b"hello, this is text\n" * 50),
        "truncated or damaged": write(tmp_path / "half.pth", whole[: len(whole) // 2]),
        "could run code": tmp_path / "code.pth",
        "holds no state dict": tmp_path / "list.pth",
        "is no SurgicalMamba release file": tmp_path / "other.pth",
        r"missing \(norm.weight, norm.bias\)": tmp_path / "missing.pth",
        r"1 unexpected \(extra.weight\)": tmp_path / "extra.pth",
        r"1 mis-shaped \(norm.weight is \(9,\), expected \(64,\)\)": tmp_path / "shape.pth",
        "damaged|not a torch": tmp_path / "archive.pth",
    }
    for message, file in cases.items():
        with pytest.raises(CheckpointError, match=message) as caught:
            sm.load_release(file, clip_len=16, chunk_len=8, head_chunk_len=8)
        assert "\n" not in str(caught.value) and file.name in str(caught.value), file
    assert not (tmp_path / "pwned.txt").exists()


def test_a_data_parallel_prefix_and_a_bare_state_dict_are_understood(small_file, small_model, tmp_path):
    weights = torch.load(small_file, weights_only=True)["model"]
    torch.save({f"module.{key}": value for key, value in weights.items()}, tmp_path / "ddp.pth")
    loaded = sm.load_release(tmp_path / "ddp.pth", clip_len=16, chunk_len=8, head_chunk_len=8)
    for ours, reference in zip(loaded.parameters(), small_model.parameters(), strict=True):
        assert torch.equal(ours, reference)


def test_an_imported_release_model_saves_and_loads_as_ours(small_model, tmp_path, golden):
    small_model.save(tmp_path / "ours")
    with torch.no_grad():
        logits = sm.load(tmp_path / "ours").forward_features(torch.from_numpy(golden["features"])).logits
    np.testing.assert_allclose(logits[0], golden["logits"], rtol=0, atol=3e-5)
