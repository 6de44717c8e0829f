"""The package is a house of rooms, and imports between them run one way."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import transformer
from transformer.models.family import FAMILIES
from transformer.tasks.task import TASKS

PACKAGE = Path(transformer.__file__).parent
# As the map in the package's docstring lists them.
ROOMS = re.findall(r"^    (\w+)  +\w", transformer.__doc__.split("checks that.")[1], re.M)
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imported(source: str) -> list[str]:
    """The modules of this package that a file imports, also inside of functions."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name for name in names if name.startswith("transformer.")]


def test_the_map_lists_the_rooms():
    assert sorted(ROOMS) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    assert not [path for path in FILES if len(path.parts) == 1 and not path.stem.startswith("__")]


# What a room's docstring promises in a sentence, "Imports no ...", as patterns of modules.
PROMISES = {
    "model": r"transformer\.models",
    "family": rf"transformer\.models\.({'|'.join(FAMILIES)})\b",
    "task module": rf"transformer\.tasks\.({'|'.join(TASKS)})\b",
    "optimizer": r"transformer\.training",
    "score": r"transformer\.metrics",
    "work directory": r"transformer\.runs",
}


def promised(doc: str) -> list[str]:
    sentence = re.search(r"Imports no ([\w\s,]+)\.", doc)
    return re.split(r",? (?:and )?no ", " ".join(sentence[1].split())) if sentence else []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_keeps_its_promise(room):
    """And says what lives there."""
    module = ast.parse((PACKAGE / room / "__init__.py").read_text())
    title, _, text = ast.get_docstring(module).partition("\n\n")
    assert title.endswith(".")
    assert text
    kinds = promised(text)
    assert kinds or room in ("system", "reports", "exports", "commands")
    for path in (PACKAGE / room).rglob("*.py"):
        for name in imported(path.read_text(encoding="utf-8")):
            for kind in kinds:
                assert not re.match(PROMISES[kind], name), f"{path} imports {name}"


def test_imports_run_one_way():
    """And no file is too long to hold in the head."""
    for path in FILES:
        rooms = ROOMS[: ROOMS.index(path.parts[0]) + 1] if len(path.parts) > 1 else ROOMS
        source = (PACKAGE / path).read_text(encoding="utf-8")
        for name in imported(source):
            assert name.split(".")[1] in rooms, f"{path} imports {name}"
        assert len(source.splitlines()) <= 400, path


def module_of(name: str) -> str:
    """The module that an imported name is, or belongs to."""
    parts = name.split(".")[1:]
    while not (
        PACKAGE.joinpath(*parts).with_suffix(".py").exists()
        or PACKAGE.joinpath(*parts, "__init__.py").exists()
    ):
        parts.pop()
    return ".".join(parts)


def circles(graph: dict[str, set[str]]) -> set[str]:
    """The modules that are part of a circle, or lead to one: none can be the first to stay."""
    while leaves := {name for name, uses in graph.items() if not uses & graph.keys()}:
        graph = {name: uses for name, uses in graph.items() if name not in leaves}
    return set(graph)


@pytest.mark.parametrize("room", ROOMS)
def test_no_modules_of_a_room_import_each_other(room):
    graph = {}
    for path in FILES:
        if path.parts[0] == room:
            own = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            names = imported((PACKAGE / path).read_text(encoding="utf-8"))
            graph[own] = {module_of(name) for name in names} - {own}
    assert not circles(graph)


def test_the_checks_see_circles_and_imports():
    assert imported("def f():\n    from transformer.runs import cli") == ["transformer.runs.cli"]
    assert imported("import transformer.runs.cli, os") == ["transformer.runs.cli"]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_importing_the_package_takes_no_time():
    """Nobody waits for JAX who only asks for a docstring."""
    code = "import sys, transformer; print(*{'jax', 'flax', 'numpy'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, check=True
    )
    assert done.stdout == b"\n"


def test_tests_mirror_the_rooms():
    tests = Path(__file__).parent
    for path in tests.glob("*/**/test_*.py"):
        room, subject = path.parent.relative_to(tests), path.stem.removeprefix("test_")
        found = [(PACKAGE / room / subject).with_suffix(".py"), PACKAGE / room / subject]
        assert any(candidate.exists() for candidate in found), path
