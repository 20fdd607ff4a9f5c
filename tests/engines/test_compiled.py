"""The compiled engine: fixed shapes for one stream, free ones for several; a missing C++ compiler
is an error."""

import pytest
import torch

from engines.conftest import live_config, run_beside_eager
from surgicalmamba.engines.compiled import CompiledEngine, compiler_problem
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.errors import EngineError
from surgicalmamba.model.surgical_mamba import SurgicalMamba

CPU = torch.device("cpu")


def test_without_a_compiler_one_line_says_what_to_install(monkeypatch, tmp_path, model):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        EngineError, match=r"the compiled engine cannot run here: a C\+\+ compiler .* install g\+\+ or clang"
    ):
        CompiledEngine(model)
    monkeypatch.setenv("CXX", "my-compiler")
    assert "CXX names, my-compiler," in compiler_problem(CPU)


@pytest.mark.skipif(compiler_problem(CPU) != "", reason="torch.compile needs a C++ compiler")
def test_single_frames_and_ends_of_chunks_agree_with_eager():
    torch.manual_seed(0)
    model = SurgicalMamba(
        live_config(backbone=None, d_feature=10).variant("without-fast")
    ).eval()  # fewer parts to compile
    logits, state = run_beside_eager(CompiledEngine(model), EagerEngine(model), [0], n_frames=26)
    assert logits < 1e-5 and state < 1e-5
