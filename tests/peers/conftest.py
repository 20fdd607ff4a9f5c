"""Networks of these tests start from the same weights in every run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_weights():
    torch.manual_seed(0)
