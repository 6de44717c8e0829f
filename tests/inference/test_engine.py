"""Lines through a model that reverses them, and knows a few things that it cannot do."""

import gzip
import hashlib
import io
import json
import tracemalloc

import pytest
from damage import assert_used_or_refused, damaged

from transformer.data.text_files import lines_as_they_come
from transformer.decoding.translation import Translation
from transformer.inference import engine
from transformer.inference.engine import Engine, Options
from transformer.inference.output import Done, open_output
from transformer.system.errors import UserError


class Reverse:
    """A model whose k-th translation is the line reversed, with k exclamation marks."""

    limits = 40, 40

    def __init__(self):
        self.calls = []

    def is_long(self, text):
        return len(text) > 40

    is_long_target = is_long

    def find(self, requests, nbest, alignments):
        if nbest > 4:
            raise UserError("the beam is 4; ask for fewer")
        texts = [request.source for request in requests]
        if any(texts):
            self.calls.append(texts)
        if any("impossible" in text for text in texts):
            raise UserError("that is impossible; do another thing")
        found = []
        for text, prefix, constraints, number in requests:
            before = prefix if number is None else f"{number}:"
            after = "".join(constraints)
            found.append(
                [
                    Translation(
                        f"{before}{text[::-1]}{after}{'!' * k}",
                        -k / 2,
                        -float(k),
                        ["a", "b"],
                        [-float(k), 0.0],
                        [(0, k)] if alignments else None,
                    )
                    for k in range(nbest)
                ]
                if text
                else []
            )
        return found

    def score(self, pairs, alignments):
        return [
            Translation(y, -2.0, -4.0, ["c", "d"], [-3.0, -1.0], [(1, 0)] if alignments else None)
            for _, y in pairs
        ]


class Memory:
    """An output in memory."""

    is_terminal = False
    name = "memory"

    def __init__(self):
        self.done = Done()
        self.writes = []

    def write(self, text, lines, input_sha256):
        self.writes.append(text)
        self.done = Done(lines, input_sha256)


def run(lines, model=None, **options) -> list[str]:
    """What is written, in the blocks in which it is written."""
    output = Memory()
    if isinstance(lines, bytes):
        lines = lines_as_they_come(io.BytesIO(lines), "in")
    Engine(model or Reverse(), Options(**options), output, "in").run(lines)
    return output.writes


# --- Lines --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ""),
        (b"ab\ncd\n", "ba\ndc\n"),
        (b"ab\ncd", "ba\ndc\n"),
        (b"ab\r\n\r\n\n \ncd\r", "ba\n\n\n\ndc\n"),
        (b"\xef\xbb\xbfab\n\xef\xbb\xbfcd\n", "ba\ndc\ufeff\n"),
        ("a\u2028b\u0085c\x0cd\n".encode(), "d\x0cc\u0085b\u2028a\n"),
        (b"a\0b\x1b[31m\n", "m13[\x1bb\0a\n"),
    ],
)
def test_each_line_is_answered_with_one_line(content, expected):
    assert "".join(run(content)) == expected


def test_what_is_there_is_answered_before_the_next_line_is_waited_for():
    answered = []

    def typed():
        yield "ab"
        yield "cd"
        yield None
        answered.extend(output.writes)
        yield "ef"

    output = Memory()
    Engine(Reverse(), Options(), output, "in").run(typed())
    assert answered == ["ba\ndc\n"]
    assert output.writes == ["ba\ndc\n", "fe\n"]


def test_blocks_grow_and_hold_few_characters(monkeypatch):
    def sizes(lines):
        model = Reverse()
        run(lines, model)
        return list(map(len, model.calls))

    monkeypatch.setattr(engine, "LINES_AT_ONCE", 7)
    monkeypatch.setattr(engine, "_LINES_AT_FIRST", 2)
    assert sizes(["a"] * 27) == [2, 4, 7, 7, 7]
    # The next line has to be waited for.
    assert sizes([*["a"] * 3, None, *["a"] * 12]) == [2, 1, 3, 7, 2]
    monkeypatch.undo()
    assert sizes(["a"] * 1500) == [128, 256, 512, 512, 92]
    monkeypatch.setattr(engine.jax, "default_backend", lambda: "gpu")
    assert sizes(["a"] * 6000) == [128, 256, 512, 1024, 2000, 2000, 80]
    monkeypatch.undo()
    monkeypatch.setattr(engine, "_CHARACTERS_AT_ONCE", 50)
    assert sizes(["a" * 30] * 5) == [2, 2, 1]


@pytest.mark.parametrize("done", [2, 6, 13])
def test_the_blocks_after_a_kill_are_those_without(done, monkeypatch):
    """And so are the scores, whose last digits depend on what is translated together."""
    monkeypatch.setattr(engine, "LINES_AT_ONCE", 7)
    monkeypatch.setattr(engine, "_LINES_AT_FIRST", 2)
    lines = list("abcdefghijklmnopqrstu")
    whole, model, output = Reverse(), Reverse(), Memory()
    run(lines, whole)
    text = "".join(f"{line}\n" for line in lines[:done])
    output.done = Done(done, hashlib.sha256(text.encode()).hexdigest())
    Engine(model, Options(), output, "in").run(lines)
    assert model.calls == whole.calls[-len(model.calls) :]


def test_memory_does_not_grow_with_the_number_of_lines():
    """The text of these alone would take 3 MB."""
    output = Memory()
    output.write = lambda *_: None
    lines = ("a" * 140 for _ in range(20_000))
    model = Reverse()
    model.is_long = lambda text: False
    model.find = lambda requests, **_: [[] for _ in requests]
    tracemalloc.start()
    Engine(model, Options(), output, "in").run(lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


# --- Lines that cannot be used ------------------------------------------------------------

BAD = {
    "not UTF-8: line 3, byte 2": b"a\xff",
    "line 3 is longer than 16777216 bytes": b"a" * 16_777_217,
    "line 3: that is impossible": b"impossible",
}


@pytest.mark.parametrize("message", BAD)
def test_lines_before_a_bad_one_are_written(message, capsys):
    content = b"ab\ncd\n" + BAD[message] + b"\nef\n"
    output = Memory()
    lines = lines_as_they_come(io.BytesIO(content), "in")
    model = Reverse()
    model.is_long = lambda text: False
    with pytest.raises(UserError, match=f"^in.*{message}"):
        Engine(model, Options(), output, "in").run(lines)
    assert output.writes == ["ba\ndc\n"]
    assert output.done.lines == 2

    assert "".join(run(content, model, skip_bad_lines=True)) == "ba\ndc\n\nfe\n"
    assert message in capsys.readouterr().err
    *_, passed, _ = "".join(run(content, model, skip_bad_lines=True, format="json")).splitlines()
    assert json.loads(passed)["line"] == 3
    assert message in json.loads(passed)["error"]


def test_a_file_that_is_damaged_in_the_middle():
    content = io.BytesIO(gzip.compress(b"ab\n" * 3_000)[:-9])
    for skip in (False, True):
        content.seek(0)
        output = Memory()
        stream = Engine(Reverse(), Options(skip_bad_lines=skip), output, "in.gz")
        with gzip.open(content) as file, pytest.raises(UserError, match=r"in\.gz is damaged"):
            stream.run(lines_as_they_come(file, "in.gz"))
        assert set("".join(output.writes).splitlines()) == {"ba"}


@pytest.mark.parametrize(
    ("policy", "expected"), [("split", "translated in pieces"), ("cut", "cut there")]
)
def test_a_long_line_is_warned_of(policy, expected, capsys):
    assert run([*"ab", "c" * 41], long_lines=policy) == ["a\nb\n" + "c" * 41 + "\n"]
    warning = f"warning: in, line 3 is longer than 40 tokens; it is {expected}\n"
    assert capsys.readouterr().err == warning


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["a" * 41], {"long_lines": "refuse"}, "line 1 is longer than 40 tokens"),
        (["a" * 41 + "\tb"], {"score": True}, "line 1 is longer than 40 tokens"),
        (
            ["a\tb", "a\t" + "b" * 41],
            {"prefixes": True},
            "line 2 gives more than 40 tokens of a translation",
        ),
        (["ab\tx\ty"], {"prefixes": True}, "line 1 has more than one tab"),
        (["ab"], {"score": True}, "line 1 is no pair"),
        # What no line can have is blamed on none.
        ([], {"nbest": 5, "skip_bad_lines": True}, "^the beam is 4; ask for fewer"),
    ],
)
def test_what_is_refused(lines, options, message):
    with pytest.raises(UserError, match=message):
        run(lines, **options)


# --- What is asked for --------------------------------------------------------------------


def test_nbest():
    assert run(["ab", "", "cd"], nbest=2) == ["ba\nba!\n\n\ndc\ndc!\n"]
    rows = "1\t1\t0\t0\tba\n1\t2\t-0.5\t-1\tba!\n2\t1\t\t\t\n"
    assert run(["ab", ""], nbest=2, format="tsv") == [rows]
    first, second = map(json.loads, run(["ab", ""], nbest=2, format="json")[0].splitlines())
    assert (first["line"], first["source"]) == (1, "ab")
    assert [x["text"] for x in first["translations"]] == ["ba", "ba!"]
    assert first["translations"][1]["log_prob"] == -1
    assert second == {"line": 2, "source": "", "translations": []}


def test_numbers_of_lines_for_samples():
    """Blank lines and blocks count; the same lines are the same in a pipe and in a file."""
    assert "".join(run(b"ab\n\nab\n", seed_by="line")) == "1:ba\n\n3:ba\n"
    assert "".join(run(b"ab\n\nab\n")) == "ba\n\nba\n"


def test_alignments():
    assert run(["ab", ""], nbest=2, alignments=True) == ["ba ||| 0-0\nba! ||| 0-1\n\n\n"]
    assert run(["ab"], alignments=True, format="tsv") == ["1\t1\t0\t0\tba\t0-0\n"]
    (line,) = run(["ab"], alignments=True, format="json")
    assert json.loads(line)["translations"][0]["alignment"] == "0-0"


def test_prefixes_and_constraints():
    assert run(["ab\tx", "cd", "ef\t"], prefixes=True) == ["xba\ndc\nfe\n"]
    assert run(["ab\tx\ty", "cd"], constraints=True) == ["baxy\ndc\n"]
    assert run(["ab\tx\ty\t"], prefixes=True, constraints=True) == ["xbay\n"]
    assert run(["ab\tx"]) == ["x\tba\n"]  # a tab like others


def test_scores():
    pairs = ["ab\r\tcd", "", "ef\tgh"]  # "\r": from files with Windows' line ends
    assert run(pairs, score=True) == ["-4\n\n-4\n"]
    assert run(pairs, score=True, alignments=True) == ["-4 ||| 1-0\n\n-4 ||| 1-0\n"]
    assert run(pairs[:2], score=True, format="tsv") == ["1\t-4\t2\t7.38906\n2\t\t\t\n"]
    found = json.loads(run(pairs, score=True, format="json")[0].splitlines()[0])
    assert found["source"] == "ab"
    assert found["token_log_probs"] == [-3, -1]
    assert found["perplexity"] == 7.389056
    scored = Engine(Reverse(), Options(score=True), Memory(), "in")
    scored.run(pairs)
    expected = "pairs: 2, tokens: 4, log-probability: -8.00, perplexity: 7.389"
    assert scored.summary() == expected
    # After a kill, those of the first start are not known.
    output = Memory()
    Engine(Reverse(), Options(score=True), output, "in").run(["ij\tkl"])
    continued = Engine(Reverse(), Options(score=True), output, "in")
    continued.run(["ij\tkl", *pairs])
    assert continued.summary() == f"after line 1 alone: {expected}"


# --- A start after a kill -----------------------------------------------------------------


def to_file(path, lines, identity=(), model=None):
    with open_output(str(path), None, io.BytesIO()) as output:
        output.begin(lambda: dict(identity))
        Engine(model or Reverse(), Options(), output, "in").run(lines)


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_a_file_is_continued(tmp_path, monkeypatch, name):
    monkeypatch.setattr(engine, "_LINES_AT_FIRST", 2)
    monkeypatch.setattr(engine, "LINES_AT_ONCE", 2)
    path, note = tmp_path / name, tmp_path / f".{name}.unfinished"
    lines = ["ab", "", "cd", "ef", "gh"]

    def content():
        data = path.read_bytes()
        return (gzip.decompress(data) if name == "out.gz" else data).decode()

    def killed():
        yield from lines[:4]
        raise UserError("stop")

    with pytest.raises(UserError, match="stop"):
        to_file(path, killed())
    assert content() == "ba\n\ndc\nfe\n"
    assert note.exists()
    with path.open("a") as file:
        file.write("half a li")  # a kill while it writes
    model = Reverse()
    to_file(path, lines, model=model)
    assert model.calls == [["gh"]]
    assert content() == "ba\n\ndc\nfe\nhg\n"
    assert not note.exists()
    to_file(path, ["x"])  # it was complete, so this is new
    assert content() == "x\n"


def stopped(path, identity=()):
    """Leaves an output of two lines unfinished."""
    with pytest.raises(UserError):
        to_file(path, ["ab", "cd", "impossible"], identity)
    assert path.read_text() == "ba\ndc\n"


def test_a_file_is_continued_only_with_the_same_input_and_options(tmp_path):
    path = tmp_path / "out"
    stopped(path, {"beam_size": 4})
    expected = r"was begun otherwise \(beam_size was 4 and is 5\); continue it as it was begun, or"
    with pytest.raises(UserError, match=expected):
        to_file(path, ["ab", "cd", "ef"], {"beam_size": 5})
    for other in (["ab"], ["ab", "xy", "ef"]):
        with pytest.raises(UserError, match="its 2 lines were made from other text than in"):
            to_file(path, other, {"beam_size": 4})
    assert path.read_text() == "ba\ndc\n"
    path.write_text("Precious\n")
    with pytest.raises(UserError, match="out was changed since it was left unfinished"):
        to_file(path, ["ab", "cd", "ef"], {"beam_size": 4})
    assert path.read_text() == "Precious\n"
    path.unlink()
    to_file(path, ["ef"], {"beam_size": 5})
    assert path.read_text() == "fe\n"


def test_a_bad_line_is_the_same_under_another_name_of_the_input():
    output, options = Memory(), Options(skip_bad_lines=True)
    Engine(Reverse(), options, output, "in").run([UserError("in is not UTF-8"), "ab"])
    lines = [UserError("./in is not UTF-8"), "ab", "cd"]
    Engine(Reverse(), options, output, "./in").run(lines)
    assert output.writes == ["\nba\n", "dc\n"]


def test_damaged_notes_are_refused_in_one_line(tmp_path):
    stopped(tmp_path / "out")
    note = tmp_path / ".out.unfinished"
    content, lines = json.loads(note.read_text()), (tmp_path / "out").read_bytes()
    identity = content["identity"]

    def use():
        with open_output(str(tmp_path / "out"), None, io.BytesIO()) as output:
            output.begin(lambda: identity)

    used = []
    for altered in damaged(content, 150):
        (tmp_path / "out").write_bytes(lines)
        note.write_bytes(altered)
        used.append(assert_used_or_refused(use, "out", altered))
    assert 5 < sum(used) < 145
