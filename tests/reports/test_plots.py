import math

import pytest
from matplotlib.figure import Figure

from transformer.reports.plots import curves_figure, learning_curve
from transformer.runs.metric_writers import MetricsWriter
from transformer.system.errors import UserError

BETTER = {"nll": "lower", "bleu": "higher"}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures = []
    savefig = Figure.savefig

    def save(figure, *args, **settings):
        figures.append(figure)
        return savefig(figure, *args, **settings)

    monkeypatch.setattr(Figure, "savefig", save)
    return figures


def write(workdir, *lines):
    with MetricsWriter(workdir, first_step=0, evaluated=True) as writer:
        for step, metrics in lines:
            writer.write(step, metrics)
    return workdir / "metrics.jsonl"


def curves(axes):
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines
    }


def test_values_that_cannot_be_drawn_are_left_out():
    for values in ([math.nan] * 2, [math.inf, 1.0, 1e308, None, -1e308, 0.0]):
        figure = curves_figure("a", {"nats": {"b": list(enumerate(values))}})
        assert figure.drawn("png")
        shown = figure.axes[0].lines[0].get_ydata()
        assert [y for y in shown if not math.isnan(y)] == [y for y in values if y in (0.0, 1.0)]


def test_learning_curve(tmp_path, drawn):
    metrics_path = write(
        tmp_path / "base$^$",
        (100, {"train/nll": 5.5, "train/grad_norm": 1.0}),
        (100, {"eval/validation/nll": 5.0, "eval/validation/bleu": 10.0}),
        (200, {"train/nll": 3.5, "train/grad_norm": 1.0}),
        (200, {"eval/validation/nll": 3.0, "eval/validation/bleu": 27.25}),
        (300, {"eval/validation/nll": 3.25, "eval/validation/bleu": math.nan}),
    )
    with metrics_path.open("a") as file:
        file.write('{"step": 400, "train/l')  # the run is writing
    learning_curve(metrics_path, tmp_path / "curve.png", BETTER)

    data = (tmp_path / "curve.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    assert {path.name for path in tmp_path.iterdir()} == {"base$^$", "curve.png"}
    (figure,) = drawn
    assert figure.get_suptitle() == "base$^$"
    loss, bleu = figure.axes
    assert curves(loss) == {
        "training, with dropout": ([100, 200], [5.5, 3.5]),
        "validation (best 3.00 at step 200)": ([100, 200, 300], [5.0, 3.0, 3.25]),
    }
    assert curves(bleu) == {
        "validation (best 27.25 at step 200)": (
            [100, 200, 300],
            pytest.approx([10.0, 27.25, math.nan], nan_ok=True),
        )
    }
    assert (loss.get_ylabel(), bleu.get_ylabel()) == (
        "nats per token",
        "BLEU",
    )
    assert bleu.get_xlabel() == "step (updates)"


def test_missing_metrics_are_not_drawn(tmp_path, drawn):
    for i, (metric, label) in enumerate(
        [("train/nll", "nats per token"), ("eval/validation/bleu", "BLEU")]
    ):
        metrics_path = write(tmp_path / str(i), (100, {metric: 2.0}))
        learning_curve(metrics_path, tmp_path / "curve.png", BETTER)
        (axes,) = drawn[i].axes
        assert axes.get_ylabel() == label
        assert len(axes.lines) == 1


def test_every_metric_has_a_panel_and_its_best(tmp_path, drawn):
    lines = [(k, {"eval/validation/fid": 9.0 - k, "eval/test/nll": 3.0 + k}) for k in (1, 2)]
    learning_curve(write(tmp_path, *lines), tmp_path / "curve.png", {"fid": "lower"} | BETTER)
    loss, fid = drawn[0].axes
    assert (loss.get_ylabel(), fid.get_ylabel()) == ("nats per token", "fid")
    assert [line.get_label() for line in fid.lines] == ["validation (best 7.00 at step 2)"]
    assert [line.get_label() for line in loss.lines] == ["test (best 4.00 at step 1)"]


def test_nothing_to_draw(tmp_path):
    metrics_path = write(tmp_path, (100, {"train/grad_norm": 1.0, "train/nll": math.nan}))
    with pytest.raises(UserError, match="nothing to draw: expected numbers for train/nll"):
        learning_curve(metrics_path, tmp_path / "curve.png", BETTER)
    metrics_path.write_text("")
    with pytest.raises(UserError, match="nothing to draw"):
        learning_curve(metrics_path, tmp_path / "curve.png", BETTER)
    assert not (tmp_path / "curve.png").exists()
