from __future__ import annotations

import pytest
import torch

from orlog.algos.edac import similarity


def test_similarity_is_the_number_of_critics_where_all_agree_and_0_without_gradients() -> None:
    assert similarity(torch.randn(1, 6, 2).expand(5, -1, -1)).item() == pytest.approx(5.0)
    assert similarity(torch.zeros(5, 6, 2)).item() == 0
