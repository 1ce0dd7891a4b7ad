"""Counts as people write them."""

import pytest

from nipstool.kit.counts import counted


@pytest.mark.parametrize(("count", "told"), [(0, "0 signs"), (1, "1 sign"), (2, "2 signs")])
def test_one_is_no_plural(count: int, told: str) -> None:
    assert counted(count, "sign") == told
