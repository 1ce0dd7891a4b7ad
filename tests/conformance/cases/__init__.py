"""How to exercise every verb: a valid run on inputs made here, and what the verb can do.

A verb that is registered and has no case fails the suite: a new command adds a file here.
"""

from tests.conformance.cases import (
    detect_navtext,
    eeg_pretrain,
    filter_nbf,
    fuse_lora,
    probe_length,
    prune_nsc,
    rosetta_count,
    shell,
)
from tests.conformance.cases.case import Case

__all__ = ["CASES", "Case"]

CASES: list[Case] = [
    *detect_navtext.CASES,
    *eeg_pretrain.CASES,
    *filter_nbf.CASES,
    *fuse_lora.CASES,
    *probe_length.CASES,
    *prune_nsc.CASES,
    *rosetta_count.CASES,
    *shell.CASES,
]
