"""A group of processes: what a process alone sees of it, and how work is shared."""

import pytest
import torch

from nipstool.kit.distributed import Group, joined
from nipstool.kit.runtime import choose_device


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


def test_every_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 1)
    assert choose_device("cuda:0") == torch.device("cuda", 0)
    assert choose_device("cpu") == torch.device("cpu")
