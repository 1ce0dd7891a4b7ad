"""Which cases a test runs over."""

import pytest

from tests.conformance.cases import CASES

every = pytest.mark.parametrize("case", CASES, ids=str)
with_json = pytest.mark.parametrize("case", [case for case in CASES if case.json], ids=str)
with_config = pytest.mark.parametrize("case", [case for case in CASES if case.setting], ids=str)
writers = pytest.mark.parametrize("case", [case for case in CASES if case.output], ids=str)
printers = pytest.mark.parametrize("case", [case for case in CASES if not case.output], ids=str)
streamers = pytest.mark.parametrize("case", [case for case in CASES if case.writes_stdout], ids=str)
stdin_readers = pytest.mark.parametrize("case", [case for case in CASES if case.reads_stdin], ids=str)
readers = pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in CASES for name in case.inputs], ids=str
)
