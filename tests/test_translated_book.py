"""Sentence pairs of a book in Markdown and its translation."""

import pytest
from scripts import assert_refused, run, succeeded

from benchmarks.translated_book import sentence_pairs

SCRIPT = "benchmarks/translated_book.py"
ENGLISH = """# Introduction
:label:`chap_intro`

This is *machine learning*, e.g. by
[gradient descent](https://example.org). (**It `learns`.**)

```{.python .input}
# Not a heading. Nor a sentence.
```

:begin_tab:`jax`

* One item. With two sentences.
* Another,
  on two lines

![Cats.](cats.svg)

Two sentences here. One there.

The slope is $w$. It is positive.

See :numref:`fig`. But not this.

## Summary {.unnumbered}

One block

## More
"""
CHINESE = """# 引言
:label:`chap_intro`

这是*机器学习*，
例如用[梯度下降](https://example.org)。(**它会`学习`。**)

```{.python .input}
# 这不是标题
```

:begin_tab:`jax`

* 一项。两句话。
* 另一项，
  有两行

![猫。](cats.svg)

这里只有一句话。

斜率是$w$。它是正的。

见 :numref:`fig`。但不是这个。

## 小结 {.unnumbered}

第一块

第二块

## 更多
"""
PAIRS = [
    ("Introduction", "引言"),
    ("This is machine learning, e.g. by gradient descent.", "这是机器学习，例如用梯度下降。"),
    ("It learns.", "它会学习。"),
    ("One item. With two sentences.", "一项。两句话。"),
    ("Another, on two lines", "另一项，有两行"),
    ("It is positive.", "它是正的。"),
    ("But not this.", "但不是这个。"),
    ("Summary", "小结"),
    ("More", "更多"),
]


def test_what_is_paired():
    assert list(sentence_pairs(ENGLISH, CHINESE)) == PAIRS
    assert list(sentence_pairs(ENGLISH, CHINESE + "## 再多\n")) == []  # which section is it?


def test_the_files(tmp_path):
    book = tmp_path / "book"
    for chapter in ("b", "a"):
        (book / chapter).mkdir(parents=True)
        (book / chapter / "index_origin.md").write_text(f"# {chapter}\n\n{ENGLISH}")
        (book / chapter / "index.md").write_text(f"# {chapter}\n\n{CHINESE}")
    (book / "alone_origin.md").write_text("# Not translated\n")
    flags = ["--book=book", "--output=pairs"]
    said = succeeded(run(SCRIPT, *flags, cwd=tmp_path)).out.decode()
    assert said == "11 pairs; written to pairs.en and pairs.zh\n"  # a, b, and each other once
    pairs = [("a", "a"), *PAIRS, ("b", "b")]
    for language, texts in zip(("en", "zh"), zip(*pairs, strict=True), strict=True):
        lines = (tmp_path / f"pairs.{language}").read_text(encoding="utf-8").splitlines()
        assert lines == list(texts)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--book=empty"], "--output is missing"),
        (["--output=pairs"], "--book is missing"),
        (["--book=empty", "--output=pairs"], "empty has no sentence"),
        (["--book=latin1", "--output=pairs"], "latin1/a_origin.md is not UTF-8: line 1, byte 4"),
    ],
)
def test_mistakes(flags, part, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin1").mkdir()
    (tmp_path / "latin1" / "a_origin.md").write_bytes("# für\n".encode("latin-1"))
    (tmp_path / "latin1" / "a.md").write_text("# 为\n")
    assert_refused(run(SCRIPT, *flags, cwd=tmp_path), part)
    assert not list(tmp_path.glob("pairs*"))
