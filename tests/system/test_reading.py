import ast
import json
import os
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import pytest

import transformer
from transformer.system.errors import UserError, code_of_the_user
from transformer.system.reading import (
    MISSING,
    Count,
    Number,
    open_plain,
    parse_json,
    plain,
    read_json,
    read_json_lines,
    read_text,
)

PACKAGE = Path(transformer.__file__).parent


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "text").write_text("ä\n")
    (folder / "near").symlink_to("text")
    (folder / "far").symlink_to("../secret")
    (folder / "device").symlink_to("/dev/zero")
    (folder / "nothing").symlink_to("no such file")
    (folder / "circle").symlink_to("circle")
    (folder / "inner" / "up").symlink_to("../../secret")
    (folder / "out").symlink_to("..")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize("name", ["text", "near", "inner/../text"])
def test_what_is_inside_is_read(folder, name):
    assert read_text(folder / name, folder) == "ä\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("far", "far is outside of"),
        ("inner/up", "up is outside of"),
        ("out/secret", "secret is outside of"),
        ("../secret", "secret is outside of"),
        ("/etc/hostname", "/etc/hostname is outside of"),
        ("device", "device is outside of"),
        ("pipe", "pipe is a pipe or a device; put a plain file"),
        ("inner", "cannot read .*inner: Is a directory"),
        ("circle", "cannot read .*circle: Too many levels"),
        ("a\0b", "is no name of a file"),
        (300 * "a", "File name too long"),
    ],
)
def test_what_is_refused(folder, name, said):
    with pytest.raises(UserError, match=said):
        read_text(folder / name, folder)


def test_a_pipe_among_data(folder):
    with pytest.raises(UserError, match="pipe is a pipe or a device"):
        plain(folder / "pipe")
    for name in ("text", "far", "inner", "nothing"):
        assert plain(folder / name) == folder / name


@pytest.mark.parametrize("name", ["nothing", "no", "no/no", "text/no"])
def test_what_is_missing_is_told_apart(folder, name):
    with pytest.raises(MISSING):
        read_text(folder / name, folder)


def test_a_link_to_elsewhere_is_not_written_to(folder):
    for mode in ("ab", "r+b", "wb"):
        with pytest.raises(UserError, match="far is outside of"):
            open_plain(folder / "far", folder, mode)
    assert (folder / "far").read_text() == "secret"
    with open_plain(folder / "near", folder, "ab") as file:
        file.write(b"more")
    assert (folder / "text").read_text() == "ä\nmore"


def test_the_size_is_bounded(folder):
    with (folder / "text").open("wb") as file:
        file.truncate(1 << 40)  # which takes no room
    with pytest.raises(UserError, match="text has more than 256 MiB"):
        read_text(folder / "text", folder)
    with pytest.raises(UserError, match="text has more than 16 MiB"):
        read_json(folder / "text", folder, Any)


# --- JSON ---------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Count
    right: list[str]


class Thing(TypedDict):
    pair: Pair
    scores: dict[str, float | None]
    more: NotRequired[Number | str]
    inner: NotRequired["Thing"]


GOOD = {"pair": {"left": 0, "right": ["a"]}, "scores": {"x": 1, "y": None}}


def with_(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


@pytest.mark.parametrize(
    "text",
    [
        with_(),
        with_(more=float("nan")),
        with_(more="text"),
        with_(unknown=[{}, 3]),
        with_(inner=GOOD),
    ],
)
def test_what_is_of_its_type_is_given_back(text):
    assert str(parse_json(text, Thing)) == str(json.loads(text))
    assert str(parse_json(text.encode(), Thing)) == str(json.loads(text))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "Expecting value"),
        ("nul", "Expecting value"),
        (b"\xff{}", "can't decode byte 0xff"),
        ('"a\0b"', "Invalid control character"),
        ("\0", "Expecting value"),
        (100_000 * "[", "too many brackets within each other"),
        (100_000 * '{"a":', "too many brackets within each other"),
        (51 * "[" + 51 * "]", "too many brackets within each other"),
        ("1" * 100_000, "a number of 100000 digits"),
        ("-" + "1" * 41, "a number of 42 digits"),
        ('{"a": 1, "b": {"x": 1, "x": 2}}', "'x' is there twice"),
        ("[]", r"it is \[\]; expected an object"),
        ("null", "it is None; expected an object"),
        ("3", "it is 3; expected an object"),
        ('"text"', "it is 'text'; expected an object"),
        ("{}", "pair is missing"),
        (with_(pair=[0, ["a"]]), r"pair is \[0, \['a'\]\]; expected an object"),
        (with_(pair={"left": 0}), r"pair\.right is missing"),
        (with_(pair={"left": 0, "right": [], "z": 1}), r"pair\.z is not known"),
        (with_(pair={"left": -1, "right": []}), r"pair\.left is -1; expected a whole number from"),
        (with_(pair={"left": True, "right": []}), r"pair\.left is True; expected a whole number"),
        (with_(pair={"left": 1.0, "right": []}), r"pair\.left is 1\.0; expected a whole number"),
        (with_(pair={"left": 1, "right": "a"}), r"pair\.right is 'a'; expected a list"),
        (with_(pair={"left": 1, "right": ["a", 2]}), r"pair\.right\[1\] is 2; expected a text"),
        (with_(scores={"x": float("nan")}), r"scores\.x is nan; expected a finite number"),
        (with_(scores={"x": float("inf")}), r"scores\.x is inf; expected a finite number"),
        (with_(scores={"x": "1"}), r"scores\.x is '1'; expected a finite number"),
        (with_(scores={"x": True}), r"scores\.x is True; expected a finite number"),
        (with_(more=[]), r"more is \[\]; expected a number"),
        (with_(inner={"pair": 3}), r"inner\.scores is missing"),
        (with_(inner=GOOD | {"scores": 3}), r"inner\.scores is 3; expected an object"),
    ],
)
def test_what_is_damaged(tmp_path, content, said):
    with pytest.raises(ValueError, match=said) as error:
        parse_json(content, Thing)
    assert len(str(error.value)) < 200
    path = tmp_path / "x"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=rf"/x is damaged \(.*{said}.*\); [rm]"):
        read_json(path, tmp_path, Thing, "mend it")


def test_lines(tmp_path):
    (tmp_path / "x").write_text('{"a": 1}\n{"a": 2}\n{"a"')
    arguments = tmp_path / "x", tmp_path, dict[str, int], "mend it"
    assert read_json_lines(*arguments, is_growing=True) == [{"a": 1}, {"a": 2}]
    with pytest.raises(UserError, match="/x, line 3: mend it"):
        read_json_lines(*arguments)
    (tmp_path / "x").write_text('{"a": 1}\n[]\n')
    said = r"/x, line 2: mend it \(it is \[\]; expected an object\)"
    with pytest.raises(UserError, match=said):
        read_json_lines(*arguments)


# --- Code of the user ---------------------------------------------------------------------


class Interrupt(KeyboardInterrupt):
    pass


class Mute(BaseException):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no"), "ValueError: no"),
        (SystemExit(3), "SystemExit: 3"),
        (Interrupt("x"), "Interrupt: x"),
        (Mute(), "str.. failed"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_whatever_a_config_file_raises_is_one_line(error, said):
    with (
        pytest.raises(UserError, match=rf"^mine\.py cannot be used: .*{said}.* \(line \d+ of .*"),
        code_of_the_user("mine.py"),
    ):
        raise error


def test_an_interrupt_is_none_of_the_files_faults():
    with pytest.raises(KeyboardInterrupt), code_of_the_user("mine.py"):
        raise KeyboardInterrupt


# --- The only door ------------------------------------------------------------------------

READING = {"open", "read_text", "read_bytes", "load", "loads", "load_file", "copy", "copyfile"}
# Files of the project and of the user, no files of a work directory, a result or an export.
ALLOWED = {
    "exports/workdir.py",  # writes
    "reports/attention_page.py",  # a template of ours
    "reports/lab_server.py",  # the same
    "reports/recipes.py",  # a table of ours
    "runs/cli.py",  # /dev/null
    "runs/fields.py",  # config files of ours
    "runs/launcher.py",  # logs beside the work directories
    "runs/trusted_paths.py",  # below ~/.local/state
    "inference/output.py",  # what --output names
}


def readings(source: str) -> set[str]:
    """The functions of READING that a file calls, but for methods of its own objects."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            if isinstance(node.func, ast.Name) and node.func.id == "open":
                name = "open"
            if name in READING and not ast.unparse(node.func).startswith(("self.", "log.open")):
                found.add(ast.unparse(node.func))
    return found


OURS = {
    "FeatureClassifier.load",
    "run_config.load",
    "WordPiece.load",
    "Tokenizers.load",
    "model.load",
    "init_from.load",
    "copy.copy",  # of an object
}


@pytest.mark.parametrize("room", ["runs", "reports", "inference", "exports"])
def test_files_are_opened_at_the_door(room):
    """What opens a file of a work directory calls transformer/system/reading.py."""
    paths = list((PACKAGE / room).glob("*.py"))
    assert paths
    for path in paths:
        name = path.relative_to(PACKAGE).as_posix()
        found = readings(path.read_text(encoding="utf-8")) - OURS
        assert not found or name in ALLOWED, f"{name} calls {found}"
