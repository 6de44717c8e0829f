"""docs/timeline.md: its figures are those of the results that it links to."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/timeline.md").read_text(encoding="utf-8")


def test_figures_are_those_of_the_ledger():
    """RESULTS.md is made of the ledger; a row's last figure column is ours."""
    results = (ROOT / "RESULTS.md").read_text(encoding="utf-8").splitlines()
    found = re.findall(r"\| (\w+) \[([\d.]+)([^]]*)\]\(\.\./results/([\w-]+)\.md\) \|", PAGE)
    assert len(found) == PAGE.count("](../results/") == 7
    for metric, figure, deviation, name in found:
        (row,) = (row for row in results if f"](results/{name}.md)" in row)
        _, _, score, _, ours, _ = row.strip("| ").split(" | ")
        assert score.startswith(f"{metric}, "), name
        numbers = [f"{float(x):.1f}" for x in re.findall(r"\d+\.\d+", ours)]
        assert [figure, *re.findall(r"[\d.]+", deviation)] == numbers, name


def test_other_figures_are_on_their_pages():
    (found,) = re.findall(r"\| accuracy \[([\d.]+ %)\]\((\w+\.md)#", PAGE)
    assert f"**{found[0]}**" in (ROOT / "docs" / found[1]).read_text(encoding="utf-8")


def test_years_rise():
    years = re.findall(r"^\| (\d{4}) \|", PAGE, re.M)
    assert len(years) == 9
    assert years == sorted(years)
