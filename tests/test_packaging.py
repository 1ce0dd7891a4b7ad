"""What is shipped is what the repository holds, what pyproject.toml names exists, and other Pythons can run it."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NOT_SHIPPED = {".gitignore", ".ci/run"}
ADDED_TO_SDIST = {"PKG-INFO", "setup.cfg"}
ADDED_TO_WHEEL = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}


@dataclass(frozen=True)
class Archives:
    """The two files that a release consists of."""

    sdist: Path
    wheel: Path


def run(*words: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="session")
def files(root: Path) -> list[str]:
    """The repository's files, those not yet added to git included."""
    if not (root / ".git").exists():
        pytest.skip("not a git repository: nothing to compare with")
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = run(*command, cwd=root).stdout.split("\0")
    return sorted({name for name in listed if name and (root / name).is_file()})


@pytest.fixture(scope="session")
def archives(root: Path, files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """An sdist of a clean copy of the repository, and the wheel built out of that sdist."""
    copy = tmp_path_factory.mktemp("clone")
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, copy / name)
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    return Archives(next(out.glob("*.tar.gz")), next(out.glob("*.whl")))


@pytest.fixture(scope="session")
def installed(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is installed in, without its dependencies."""
    target = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target)
    done = run(*command, archives.wheel, cwd=target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def pyproject(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def pins(root: Path) -> dict[str, Requirement]:
    lines = (root / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in requirements}


def test_the_wheel_holds_what_the_repository_holds(archives: Archives, files: list[str]) -> None:
    names = set(zipfile.ZipFile(archives.wheel).namelist())
    added = {name for name in names if ".dist-info/" in name}
    ours = {f"nipstool/{name}" for name in files if name.startswith("commands/")}
    ours |= {name for name in files if name.startswith("nipstool/")}
    assert names - added == ours
    assert {name.partition(".dist-info/")[2] for name in added} == ADDED_TO_WHEEL
    assert "nipstool/py.typed" in ours


def test_the_sdist_holds_what_the_repository_holds(archives: Archives, files: list[str]) -> None:
    with tarfile.open(archives.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    generated = {name for name in names if name.startswith("nipstool.egg-info/")} | ADDED_TO_SDIST
    assert names - generated == set(files) - NOT_SHIPPED
    assert "tests/test_packaging.py" in names


def test_the_wheel_names_no_other_top_level_package(archives: Archives) -> None:
    with zipfile.ZipFile(archives.wheel) as wheel:
        top = next(name for name in wheel.namelist() if name.endswith("top_level.txt"))
        assert wheel.read(top).split() == [b"nipstool"]


def test_a_regular_install_has_no_package_commands(installed: Path) -> None:
    there = run(
        sys.executable,
        "-c",
        "import nipstool.commands as c; print(c.__file__)",
        cwd=Path("/"),
        PYTHONPATH=str(installed),
    )
    assert there.stdout.strip() == str(installed / "nipstool/commands/__init__.py"), there.stderr
    absent = run(sys.executable, "-c", "import commands", cwd=Path("/"), PYTHONPATH=str(installed))
    assert "ModuleNotFoundError: No module named 'commands'" in absent.stderr


def test_a_regular_install_runs(installed: Path, root: Path) -> None:
    done = run(sys.executable, "-m", "nipstool", "--version", cwd=Path("/"), PYTHONPATH=str(installed))
    assert (done.returncode, done.stdout) == (0, f"nipstool {version_literal(root)}\n"), done.stderr


def test_the_editable_install_has_no_package_commands(root: Path) -> None:
    origins = [json.loads(found.read_text("direct_url.json") or "{}") for found in distributions(name="nipstool")]
    if not any(origin.get("dir_info", {}).get("editable") for origin in origins):
        pytest.skip("this environment has no editable install")
    there = run(sys.executable, "-c", "import nipstool.commands as c; print(c.__file__)", cwd=Path("/"))
    assert there.stdout.strip() == str(root / "commands/__init__.py"), there.stderr
    absent = run(sys.executable, "-c", "import commands", cwd=Path("/"))
    assert "ModuleNotFoundError: No module named 'commands'" in absent.stderr


def test_every_command_file_is_an_entry_point_of_its_own_name(root: Path, pyproject: dict[str, Any]) -> None:
    points = pyproject["project"]["entry-points"]["nipstool.commands"]
    names = [path.stem for path in (root / "commands").glob("*.py") if path.stem != "__init__"]
    assert sorted(points) == sorted(name.replace("_", "-") for name in names)
    for name, target in points.items():
        assert target.partition(":")[0] == f"nipstool.commands.{name.replace('-', '_')}"


def test_every_entry_point_loads(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    for group, points in {"console_scripts": project["scripts"], **project["entry-points"]}.items():
        for name, target in points.items():
            assert callable(EntryPoint(name, target, group).load()), f"{name} = {target}"


def test_the_installed_entry_points_are_those_of_pyproject(pyproject: dict[str, Any]) -> None:
    expected = pyproject["project"]["entry-points"]["nipstool.commands"]
    installed = list(distributions(name="nipstool"))
    assert installed, "nipstool is not installed: make test does it"
    for found in installed:
        points = found.entry_points.select(group="nipstool.commands")
        assert {point.name: point.value for point in points} == expected, "stale: pip install -e . again"


def test_every_folder_with_code_is_a_listed_package(root: Path, pyproject: dict[str, Any]) -> None:
    folders = {path.parent for path in (root / "nipstool").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []
    packages = {".".join(folder.relative_to(root).parts) for folder in folders} | {"nipstool.commands"}
    assert set(pyproject["tool"]["setuptools"]["packages"]) == packages


def version_literal(root: Path) -> str:
    """The version as setuptools reads it, without importing anything."""
    tree = ast.parse((root / "nipstool/__init__.py").read_text())
    values = [
        n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__version__"
    ]
    assert len(values) == 1
    return ast.literal_eval(values[0])


def test_the_version_is_a_literal_and_the_one_of_the_wheel(root: Path, archives: Archives) -> None:
    version = version_literal(root)
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert archives.wheel.name.startswith(f"nipstool-{version}-")


def test_the_package_itself_imports_nothing(root: Path) -> None:
    tree = ast.parse((root / "nipstool/__init__.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def test_constraints_are_exact_and_work_on_any_machine(root: Path, pins: dict[str, Requirement]) -> None:
    for line in (root / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line), line
    assert {"pip", "nipstool"}.isdisjoint(pins)


def own_requirements(pyproject: dict[str, Any]) -> list[Requirement]:
    """All that pyproject.toml asks for: to run, to develop, to compare with, to build."""
    project = pyproject["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return list(map(Requirement, [*project["dependencies"], *extras, *pyproject["build-system"]["requires"]]))


def test_every_direct_dependency_is_pinned_within_its_range(
    pyproject: dict[str, Any], pins: dict[str, Requirement]
) -> None:
    for need in own_requirements(pyproject):
        pin = pins.get(canonicalize_name(need.name))
        assert pin is not None, f"{need.name} is not in constraints.txt"
        (exact,) = pin.specifier
        assert exact.version in need.specifier, f"{pin} is outside {need}"


def test_every_pin_is_needed(pyproject: dict[str, Any], pins: dict[str, Requirement]) -> None:
    """No stray package of some developer's environment: each is reached from nipstool's own requirements."""
    reached: set[tuple[str, str]] = set()
    waiting = own_requirements(pyproject)
    while waiting:
        need = waiting.pop()
        for extra in need.extras or {""}:
            if (key := (canonicalize_name(need.name), extra)) not in reached:
                reached.add(key)
                waiting += requirements_of(need.name, extra)
    assert set(pins) - {name for name, _ in reached} == set()


def requirements_of(name: str, extra: str) -> list[Requirement]:
    """What an installed package needs on the oldest Python, which needs the most."""
    environment = {"extra": extra, "python_version": "3.11", "python_full_version": "3.11.0"}
    lines = [line for found in distributions(name=name) for line in found.requires or []]
    needs = map(Requirement, lines)
    return [need for need in needs if need.marker is None or need.marker.evaluate(environment)]


# --- other Pythons ---


@pytest.fixture(params=["python3.12", "python3.13"])
def other(request: pytest.FixtureRequest) -> str:
    """The path of one interpreter."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/*/bin/{request.param}")
    for found in (shutil.which(request.param), *sorted(map(str, pyenv))):
        # pyenv's shims are on PATH also for versions that are not chosen, and fail.
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    pytest.skip(f"no {request.param} here, on PATH or of pyenv")


@pytest.fixture
def words_alone(other: str, root: Path, tmp_path: Path) -> Path:
    """A folder with what the command line is made of: typer and what it needs, built for that interpreter."""
    folder = tmp_path / "words"
    pip = [other, "-m", "pip", "install", "--quiet", "--retries", "0", "--target", str(folder)]
    done = subprocess.run([*pip, "-c", str(root / "constraints.txt"), "typer"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pip of {other} cannot fetch typer: {done.stderr.strip()[-200:]}")
    return folder


def test_the_wheel_without_torch(
    other: str, installed: Path, words_alone: Path, tmp_path: Path, pyproject: dict[str, Any]
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, (installed, words_alone)))
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "COLUMNS": "80", "LC_ALL": "C.UTF-8"}
        # Without the site, so that what the interpreter has installed of its own cannot help.
        command = [other, "-S", "-B", "-m", "nipstool", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    names = pyproject["project"]["entry-points"]["nipstool.commands"]
    whole = run("--help")
    assert whole.returncode == 0, whole.stderr
    for name in names:
        assert name in whole.stdout
        told = run(name, "--help")
        assert (told.returncode, told.stderr) == (0, ""), name
        assert "Usage:" in told.stdout
        refused = run(name, "--no-such-option")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    for shell in ("bash", "zsh", "fish"):
        assert set(names) <= set(run("completion", shell).stdout.replace("'", " ").replace(":", " ").split())
