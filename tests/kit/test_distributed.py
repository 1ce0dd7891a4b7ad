"""A group of processes: what a process alone sees of it, and how work is shared."""

import torch

from nipstool.kit.distributed import Group, joined


def test_shares_are_everything_once():
    items = list(range(11))
    shares = [Group(rank, 3).share(items) for rank in range(3)]
    assert sorted(item for share in shares for item in share) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_process_alone_is_a_group_of_one():
    with joined() as group:
        assert group == Group(0, 1)
        assert group.gather("mine") == ["mine"]
        gradient = torch.ones(2)
        group.add([gradient, None])
        assert gradient.tolist() == [1.0, 1.0]
