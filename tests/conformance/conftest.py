"""What the conformance suite runs on: the registry, and folders with a case's inputs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.cases import Case
from tests.conformance.registry import Registry, registered
from tests.conformance.shell import Server, Shell, environment


@pytest.fixture(scope="session")
def registry() -> Registry:
    return registered(tuple(sorted(environment().items())))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def other_server() -> Iterator[Server]:
    """One whose process hashes in another order."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def start(tmp_path: Path, server: Server) -> Callable[[Case], Shell]:
    """A folder with a case's inputs, whose runs are forks of the server."""

    def start(case: Case) -> Shell:
        shell = Shell(tmp_path, server)
        case.make(shell.work)
        return shell

    return start
