import json
import lzma
import math

import pytest
from scripts import assert_refused, run, succeeded

from transformer.data.extraction import extract, read_articles, scores
from transformer.data.text_files import read_lines
from transformer.system.errors import UserError

PARAGRAPHS = ["The Red Barn is red.", "A barn.", "Nothing of it.", "Red wine, red roses, red."]


def test_scores():
    """red: in 2 of 4 paragraphs; barn: in 2 of 4; the, in one, is a word of the title, too."""
    half, quarter = math.log(2), math.log(4)
    found = scores("The red barn", PARAGRAPHS)
    assert found == pytest.approx([3 * half + quarter, half, 0, 3 * half])


def test_the_best_paragraphs_come_first():
    text = extract("The red barn", PARAGRAPHS, max_words=100)
    order = [text.index(PARAGRAPHS[i]) for i in (0, 3, 1, 2)]
    assert text.startswith("The red barn The Red Barn")
    assert order == sorted(order)
    assert extract("The red barn", PARAGRAPHS, max_words=5) == "The red barn The Red"


def test_words():
    """Of any script; an accent as a character of its own, or not; _ is no letter."""
    assert scores("café", ["cafe\u0301 x", "cafe"]) == [math.log(2), 0]
    assert scores("हिन्दी", ["हिन्दी", "हिन्दू"]) == [math.log(2), 0]
    assert scores("barn", ["a_barn", "x"]) == [math.log(2), 0]


def test_ties_are_ties():
    """Whatever the order in which a process has the words of a set."""
    words = [f"w{i}" for i in range(20)]
    tied = [f"{word}{5 * ' rare'}{3 * ' common'}{5 * ' usual'}" for word in words]
    others = ["rare", *4 * ["common"], *9 * ["usual"]]
    found = scores(" ".join([*words, "rare", "common", "usual"]), [*tied, *others])
    assert len(set(found[: len(tied)])) == 1


def write(folder, **files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)


def test_the_command(tmp_path):
    files = dict(title="A barn\n", summary="It is red.\n", one="x y\nz\n\nbarn\n", two="q")
    write(tmp_path / "in/b", **files)
    write(tmp_path / "in/a", title="Rain", one="rain\n\nsun")
    (tmp_path / "in/a/link.txt").symlink_to("one.txt")  # one file, which is read once
    articles = list(read_articles(tmp_path / "in"))
    (tmp_path / "link.jsonl.zst").symlink_to("out.jsonl.zst")
    options = "--input=in", "--output=link.jsonl.zst", "--max_words=4"
    succeeded(run("extract", *options, cwd=tmp_path))
    lines = [json.loads(line) for line in read_lines(tmp_path / "out.jsonl.zst")]
    assert lines == [
        {"name": "a", "title": "Rain", "document": "Rain rain sun", "summary": ""},
        {"name": "b", "title": "A barn", "document": "A barn barn x", "summary": "It is red."},
    ]
    refused = run("extract", "--input=in", "--output=in", cwd=tmp_path)
    assert_refused(refused, "cannot write in: Is a directory")
    # Compressed, or with endings in capitals, they are still no texts about the title.
    for name in ("title.txt", "summary.txt", "one.txt"):
        path = tmp_path / "in/b" / name
        path.with_suffix(".TXT.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    assert list(read_articles(tmp_path / "in")) == articles


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"title": " \n", "x": "y"}, r"title\.txt is empty"),
        ({"title": "x"}, "has no texts about"),
        ({"one": "x"}, r"a has no title\.txt; add it"),
    ],
)
def test_bad_folders(files, message, tmp_path):
    write(tmp_path / "a", **files)
    with pytest.raises(UserError, match=message):
        list(read_articles(tmp_path))
    with pytest.raises(UserError, match="no folders"):
        list(read_articles(tmp_path / "a"))
