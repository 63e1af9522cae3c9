"""Uninitialized memory is poisoned: a kernel that reads what it never wrote is found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def _poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        if tensor.is_floating_point():
            return tensor.fill_(float("nan"))
        return tensor.fill_(torch.iinfo(tensor.dtype).max)

    return wrapper


@pytest.fixture(autouse=True, scope="package")
def poisoned_memory() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", _poisoned(torch.empty))
        patch.setattr(torch, "empty_like", _poisoned(torch.empty_like))
        patch.setattr(torch.Tensor, "new_empty", _poisoned(torch.Tensor.new_empty))
        yield
