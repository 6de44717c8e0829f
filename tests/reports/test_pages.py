"""The pages in a real browser: what users do, injection, scripts of the world, length."""

import hashlib

import numpy as np
import pytest
from browser import CHROMIUM, browser
from small_models import trained_model
from test_run_report import REFERENCES, write_run

from transformer.inference.attention_maps import attention_of
from transformer.reports.attention_page import attention_page
from transformer.reports.pages import image, panels, svg, table, text
from transformer.reports.pages import page as html_page
from transformer.reports.run_report import page as report_page
from transformer.reports.run_report import run_of

PHONE, DESKTOP = 390, 1200
EVIL = "one </script><script>document.title='X'</script><img src=x onerror=\"document.title='X'\">"
SCRIPTS = "Größe <b>one</b> & two 机器 翻译 القطة نامت बिल्ली चटाई 😀 👩‍👩‍👧 🇫🇷"
# What is drawn: the elements, and the pixels of canvases.
PICTURE = """(() => { const box = document.getElementById("picture");
  return box.innerHTML + [...box.querySelectorAll("canvas")].map(c => c.toDataURL()).join(); })()"""
FIRST = "document.querySelector('g.token')"


def in_a_browser(test):
    here = pytest.mark.skipif(
        CHROMIUM is None,
        reason="the pages are NOT tested in a browser: install one, apt-get install chromium",
    )
    return pytest.mark.slow(here(test))


def test_html_is_what_was_meant():
    """Without a browser."""
    page = html_page("<a>", [table(["x"], [["<b>"], ["1,234"], [image(b"\x89PNG", "'\"")]])])
    assert "<title>&lt;a&gt;</title>" in page
    assert "<td><bdi>&lt;b&gt;</bdi></td>" in page
    assert "<td class=n><bdi>1,234</bdi></td>" in page
    assert 'alt="&#x27;&quot;" src="data:image/png;base64,iVBO' in page
    assert text("&") == "&amp;"


def test_a_figure_is_drawn_the_same_each_time():
    def drawn():
        figure, (axes, _) = panels(2)
        axes.plot([1, 2], [3, 4], label="x")
        axes.legend()
        return svg(figure)

    assert drawn() == drawn()


@pytest.fixture(scope="module")
def tab():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def model(random_params):
    return trained_model(random_params, num_encoder_layers=2, num_decoder_layers=2)


def write_page(directory, model, source, target):
    path = directory / "attention.html"
    path.write_text(attention_page(model, attention_of(model, source, target), source, target))
    return path


def picture(tab) -> str:
    return hashlib.sha256(tab.run(PICTURE).encode()).hexdigest()


@in_a_browser
def test_what_a_user_does(tab, model, tmp_path):
    tab.errors.clear()
    tab.open(write_page(tmp_path, model, EVIL, "three two one"), PHONE)
    assert tab.run("document.title") == "Attention"
    assert tab.run("document.documentElement.scrollWidth") <= PHONE
    assert tab.run("document.getElementById('source').textContent") == EVIL
    pictures = [picture(tab)]
    for control, value in (
        ("layer", "0"), ("head", "0"), ("head", "1"), ("map", "encoder"), ("layer", "1"),
        ("head", "rollout"), ("map", "decoder"), ("view", "matrix"), ("view", "many"),
    ):  # fmt: skip
        tab.choose(control, value)
        pictures.append(picture(tab))
    assert len(set(pictures)) == len(pictures)

    tab.choose("view", "lines")
    tab.choose("head", "0")
    before = picture(tab)
    tab.hover(FIRST)
    assert " looks at: " in tab.run("document.getElementById('said').textContent")
    assert picture(tab) != before
    tab.run("document.getElementById('words').click()")
    assert picture(tab) != before
    assert "three" in tab.run("document.getElementById('picture').textContent")
    tab.choose("view", "matrix")
    tab.hover("document.querySelector('#picture canvas')", 0.01, 0.01)
    assert tab.run("document.getElementById('said').textContent") == (
        "\u2068BOS\u2069 looks at \u2068BOS\u2069: 100 %"  # it sees nothing else
    )
    which = "document.getElementById('which')"  # what a printed page says in place of the form
    assert tab.run(f"getComputedStyle({which}).display") == "none"
    assert tab.run(f"{which}.textContent") == "Layer 2, head 1"
    tab.choose("view", "many")
    assert tab.run(f"{which}.textContent") == "All layers and heads"
    tab.run("document.querySelector('.many figure').click()")
    assert tab.run("document.getElementById('view').value") == "matrix"
    assert tab.errors == []


@in_a_browser
def test_the_numbers_are_those_of_the_model(tab, model, tmp_path):
    tab.open(write_page(tmp_path, model, "one two", "two"), DESKTOP)
    found = attention_of(model, "one two", "two")
    weights_HTS = found.maps["cross"][1]
    rows = tab.run("shown('cross', 1, '1').rows")
    np.testing.assert_allclose(rows, weights_HTS[1], atol=1e-5)
    rows = tab.run("shown('cross', 1, 'mean').rows")
    np.testing.assert_allclose(rows, weights_HTS.mean(axis=0), atol=1e-5)


@in_a_browser
def test_scripts_of_the_world(tab, model, tmp_path):
    tab.errors.clear()
    path = write_page(tmp_path, model, SCRIPTS, SCRIPTS)
    for width in (PHONE, DESKTOP):
        tab.open(path, width)
        tab.run("document.getElementById('words').click()")
        drawn = tab.run("[...document.querySelectorAll('#picture text')].map(t => t.textContent)")
        assert {*SCRIPTS.split()} <= {*drawn}
        assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.errors == []


@in_a_browser
def test_512_tokens(tab, model, tmp_path):
    tab.errors.clear()
    tokenizer, sentence = model.task.tokenizers.source, "two"
    while len(tokenizer.encode(f"{sentence} one")) <= 512:
        sentence += " one"
    tab.open(write_page(tmp_path, model, sentence, "two one"), PHONE)
    for name in ("cross", "encoder"):
        tab.choose("map", name)
        for view in ("many", "matrix", "lines"):
            tab.choose("view", view)
            assert tab.run("document.getElementById('picture').childElementCount") == 1
        tab.hover(FIRST)
        assert "looks at" in tab.run("document.getElementById('said').textContent")
    tab.choose("head", "rollout")
    assert tab.run("document.documentElement.scrollWidth") <= PHONE
    assert tab.errors == []


@in_a_browser
def test_reports(tab, tmp_path):
    evil = [*REFERENCES[:29], "<script>document.title='X'</script>"]
    write_run(tmp_path / "a", 7, evil)
    (tmp_path / "page.html").write_text(report_page([run_of(tmp_path / "a")]))
    tab.errors.clear()
    for width in (PHONE, DESKTOP):
        tab.open(tmp_path / "page.html", width)
        assert tab.run("document.title") == "a"
        assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.errors == []
