"""Settings: defaults, presets, and errors that name the setting and the fix."""

import pytest

from surgicalmamba.config import load_config, override, save_config
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.backbone import BackboneConfig
from surgicalmamba.model.surgical_mamba import PRESETS, VARIANTS, ModelConfig, PathConfig, RotationConfig


def test_the_default_is_the_papers_configuration():
    config = ModelConfig()
    assert config == PRESETS["paper"]
    assert (config.clip_len, config.n_blocks, config.d_model, config.n_phases) == (256, 4, 768, 7)
    slow = config.block.slow
    assert (slow.chunk_len, slow.d_state, slow.rotation.rank) == (64, 64, 16)
    assert config.backbone.frozen_stages == 2


def test_the_release_preset_differs_where_the_facts_say_it_does():
    config = ModelConfig.preset("release")
    assert (config.clip_len, config.block.slow.chunk_len, config.head.path.chunk_len) == (128, 64, 32)
    assert config.block.slow.dt_shift == -2.0 and config.block.fast.dt_shift == 0.0
    assert config.block.slow.rotation.init == "release" and config.block.slow.intensity.intensity_init == 0.5


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_leave_parts_out(variant):
    config = ModelConfig().variant(variant)
    assert (config.block.fast is None) == ("fast" in VARIANTS[variant])
    assert (config.block.slow.intensity is None) == ("intensity" in VARIANTS[variant])
    for path in config.paths().values():
        assert (path.rotation is None) == ("rotation" in VARIANTS[variant])


MISTAKES = {
    "unknown setting 'n_phase': did you mean 'n_phases'?": lambda: ModelConfig(n_phase=7),
    "unknown setting 'block.slow.chunk_length': did you mean 'chunk_len'?": lambda: ModelConfig(
        block={"slow": {"chunk_length": 3}}
    ),
    "unknown setting 'rang': did you mean 'rank'?": lambda: RotationConfig(rang=3),
    "n_blocks=0: Input should be greater than 0": lambda: ModelConfig(n_blocks=0),
    "head.path.d_state='many': Input should be a valid integer": lambda: ModelConfig(
        head={"path": {"d_state": "many"}}
    ),
    "rotation.rank=16 exceeds d_state=8; use at most 8": lambda: PathConfig(d_state=8),
    "dt_min=0.5 is larger than dt_max=0.1; swap them": lambda: PathConfig(dt_min=0.5),
    "d_feature is needed when backbone is null": lambda: ModelConfig(backbone=None),
    "d_feature=10 contradicts the backbone, which gives 768; leave it out": lambda: ModelConfig(d_feature=10),
    "phases has 2 names but n_phases=7; give one name per phase": lambda: ModelConfig(phases=("a", "b")),
    "block.slow.d_head=64 does not divide the inner width 200": lambda: ModelConfig(d_model=100),
    "block.fast.chunk_len=64 is not below clip_len=64": lambda: ModelConfig(clip_len=64),
    "image_size=100 is not a multiple of 32; the nearest one is 96": lambda: BackboneConfig(image_size=100),
    "unknown preset 'papre'; presets: paper, release, tiny": lambda: ModelConfig.preset("papre"),
    "unknown variant 'no-z'; variants: full": lambda: ModelConfig().variant("no-z"),
    "override 'n_phases' is not of the form key.sub=value": lambda: override({}, ["n_phases"]),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_setting_and_the_fix(message):
    with pytest.raises(ConfigError) as caught:
        MISTAKES[message]()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_every_setting_says_what_it_is():
    def fields(section):
        for name, field in section.model_fields.items():
            yield f"{section.__name__}.{name}", field.description
            inner = [
                t
                for t in (field.annotation, *getattr(field.annotation, "__args__", ()))
                if isinstance(t, type)
            ]
            for t in inner:
                if hasattr(t, "model_fields"):
                    yield from fields(t)

    assert [name for name, description in fields(ModelConfig) if not description] == []


@pytest.mark.parametrize("preset", PRESETS)
def test_a_saved_config_reads_back_equal_and_takes_overrides(tmp_path, preset):
    file = tmp_path / "model.yaml"
    save_config(PRESETS[preset], file)
    assert load_config(ModelConfig, file) == PRESETS[preset]
    changed = load_config(ModelConfig, file, ["n_phases=5", "block.slow.rotation.rank=4", "block.fast=null"])
    assert (changed.n_phases, changed.block.slow.rotation.rank, changed.block.fast) == (5, 4, None)


def test_a_broken_config_file_is_one_line_with_its_name(tmp_path):
    for content, message in (
        ("a: [1", "not valid YAML"),
        ("- 1", "must be a mapping"),
        ("n_phasse: 3", "did you mean 'n_phases'"),
    ):
        file = tmp_path / "broken.yaml"
        file.write_text(content)
        with pytest.raises(ConfigError, match=message) as caught:
            load_config(ModelConfig, file)
        assert "broken.yaml" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read config"):
        load_config(ModelConfig, tmp_path / "absent.yaml")


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(Exception, match="frozen"):
        ModelConfig().n_phases = 3
