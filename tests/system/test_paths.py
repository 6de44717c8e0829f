"""Names of files and folders."""

import os

import pytest

from transformer.system import paths
from transformer.system.errors import UserError
from transformer.system.paths import local, looked_up, matching, named_files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    names = ["what?.txt", "whats.txt", "a.txt", "b.txt", "a,b.txt", "x1/d.trees.gz"]
    names += ["books [2020]/1.txt", "books [2020]/2.txt", "Smith, J/1.txt", "home/e.txt"]
    names += ["deep/f.txt", "deep/er/g.txt", "x1/h.trees", "x1/h.trees.gz"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link.txt").symlink_to("a.txt")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # A name that exists is taken literally; a pattern is one where no such name exists.
        ("what?.txt", ["what?.txt"]),
        ("what?.tx?", ["what?.txt", "whats.txt"]),
        ("books [2020]/1.txt", ["books [2020]/1.txt"]),
        ("bo*/what?.txt,[ab].txt", UserError),
        ("[ab].txt", ["a.txt", "b.txt"]),
        ("*/[12].txt", ["Smith, J/1.txt", "books [2020]/1.txt", "books [2020]/2.txt"]),
        ("deep/**/*.txt", ["deep/er/g.txt", "deep/f.txt"]),
        # Commas and blanks.
        ("a.txt, b.txt,", ["a.txt", "b.txt"]),
        ("a,b.txt", ["a,b.txt"]),
        ("whats*,what?.*", ["whats.txt", "what?.txt"]),
        # Each file once, whatever its names.
        ("a.txt,[ab].txt,./a.txt,link.txt", ["a.txt", "b.txt"]),
        ("link.txt,a.txt", ["link.txt"]),
        ("~/e.txt", ["{home}/e.txt"]),
    ],
)
def test_named_files(folder, names, expected):
    if expected is UserError:
        with pytest.raises(UserError, match=r"data.x: there is no file bo\*/what\?.txt \(looked"):
            named_files(names, "data.x")
    else:
        expected = [name.format(home=folder / "home") for name in expected]
        assert named_files(names, "data.x") == expected


def test_names_below_a_folder(folder):
    asked = {"separator": " ", "folder": str(folder), "endings": ("", ".gz")}
    x = folder / "x1"
    expected = [f"{x}/d.trees.gz", f"{x}/h.trees", f"{x}/h.trees.gz", f"{folder}/a.txt"]
    assert named_files("x1/?.trees  a.txt", "data.y", **asked) == expected
    with pytest.raises(UserError, match=r"there is no file .*/~/e.txt, nor ~/e.txt.gz; name text"):
        named_files("~/e.txt", "data.y", **asked)


@pytest.mark.parametrize("names", ["", " , "])
def test_no_names(names):
    with pytest.raises(UserError, match=r"^data\.x is empty; name files, or a pattern$"):
        named_files(names, "data.x")


def test_a_pattern_of_absolute_paths(folder):
    assert sorted(matching(f"{folder}/[ab].txt")) == [f"{folder}/a.txt", f"{folder}/b.txt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("az://bucket/x", "--x is az://bucket/x, and only local files and folders can be used, no"),
        (paths.Path("S3://bucket"), "--x is S3:/?/bucket, .* not S3://; give a local path"),
        ("file:///x", "not file://; give a local path"),
        ("~nosuchuser/x", "--x is ~nosuchuser/x, and no home folder of ~nosuchuser is known"),
        ("caf\udce9/x", r"--x is '/.*/caf\\udce9/x', whose name is not UTF-8; rename"),
        ("a\0b", r"--x is 'a\\x00b', which has a zero byte"),
    ],
)
def test_places_of_other_machines(folder, path, message):
    with pytest.raises(UserError, match=f"^(?s:.*){message}"):
        local(path, "--x")
    flags = [paths.PathParser("x"), paths.PathListParser("x")]
    for parser in flags:
        with pytest.raises(UserError, match=message):
            parser.parse(str(path) if isinstance(path, str) else "S3://bucket")


def local_names(folder) -> dict[str, str]:
    home = f"{folder}/home"
    return {"~": home, "~/x": f"{home}/x"} | {
        name: name for name in ("", "x", "./gs://x", "C:/x", "notes:/x", "10:30/x", "/dev/stdout")
    }


def test_places_of_this_machine(folder):
    for name, expected in local_names(folder).items():
        assert local(name, "--x") == expected
        assert paths.PathParser("x").parse(name) == name  # as it was given


def test_a_list_of_places(folder):
    parse = paths.PathListParser("x").parse
    assert parse("") == []
    assert parse("a.txt, nowhere") == ["a.txt", "nowhere"]
    assert parse("a,b.txt") == ["a,b.txt"]
    assert parse('"no,where",a.txt') == ["no,where", "a.txt"]
    assert parse(["a"]) == ["a"]
    with pytest.raises(UserError, match="--x is az://b"):
        parse("a.txt,az://b")


@pytest.mark.parametrize("name", [b"caf\xe9", b"gone"])
def test_the_current_directory(folder, monkeypatch, name):
    os.mkdir(name)
    monkeypatch.chdir(os.fsdecode(name))
    if name == b"gone":
        os.rmdir(folder / "gone")
    message = "not UTF-8" if name != b"gone" else "the current directory is gone"
    with pytest.raises(UserError, match=message):
        local("x", "--x")
    assert local("/x", "--x") == "/x"
    assert ("gone" in looked_up("x")) == (name == b"gone")
    monkeypatch.chdir(folder)


def test_from_where_a_missing_path_was_looked_up(folder):
    assert looked_up("no.en") == f" (looked up in {folder})"
    assert looked_up("/no.en") == ""
    error = FileNotFoundError(2, "No such file or directory", "no.en")
    expected = f"cannot read no.en: No such file or directory (looked up in {folder}); give one"
    assert str(paths.cannot_read("no.en", error, advice="; give one")) == expected
    other = PermissionError(13, "Permission denied", "no.en")
    assert str(paths.cannot_read("no.en", other)) == "cannot read no.en: Permission denied"
