"""The pictures of a run for slides, and the command that writes them."""

import shutil
import xml.etree.ElementTree as ET

import pytest
from scripts import assert_refused, run, succeeded
from small_models import trained_model

from configs import rnn_sutskever
from transformer.data.vocabulary import EOS
from transformer.inference.beam_tree import Node, Tree
from transformer.models.rnn.rnn_config import RNNConfig
from transformer.reports.beam_figure import COLOURS, draw_tree
from transformer.reports.run_pictures import PICTURES, Run, write_pictures

SVG = "{http://www.w3.org/2000/svg}"


def tree() -> Tree:
    """BOS, then "a" or "b"; "a" ends, "b" is dropped."""
    nodes = [
        Node(-1, 1, 1.0, 0.0, 0.0, "kept", []),
        Node(0, 7, 0.75, -0.3, -0.3, "kept", []),
        Node(0, 8, 0.25, -1.4, -1.4, "dropped", []),
        Node(1, EOS, 0.5, -1.0, -0.7, "finished", []),
        Node(1, 8, 0.5, -1.0, -0.7, "kept", []),
    ]
    return Tree(nodes, [], [[1, 3]])


def test_a_tree_by_hand():
    figure = draw_tree(tree(), {7: "a$", 8: "b", EOS: "EOS"}.__getitem__)
    places = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert places.keys() == {"BOS", r"a\$ 0.75", "b 0.25", "EOS 0.50", "b 0.50"}
    assert [places[x][0] for x in ("BOS", r"a\$ 0.75", "EOS 0.50")] == [0, 1, 2]
    assert places[r"a\$ 0.75"][1] > places["b 0.25"][1]  # the more probable one is above
    lines = [line for line in figure.axes[0].lines if line.get_color() == COLOURS["output"]]
    assert len(lines) == 2  # BOS to "a", "a" to EOS
    assert figure.drawn("png").startswith(b"\x89PNG")


def test_what_a_model_lacks_is_left_out(random_params, tmp_path):
    sizes = {"embedding_size": 6, "hidden_size": 7, "encoder_layers": 1, "decoder_layers": 1}
    model = rnn_sutskever.get_config().model.to_dict()
    config = RNNConfig(**model | {k: v for k, v in sizes.items() if k in model})
    lstm = trained_model(random_params, vocab_sizes=(271, 272), base=config)
    names = ["architecture", "attention", "positions", "masks", "beam_tree", "by_length"]
    lines = list(write_pictures(Run(lstm, "one two"), tmp_path, names))
    left_out = {line.split(":")[0].split()[-1]: line for line in lines if "left out" in line}
    assert left_out.keys() == {"attention", "positions", "masks", "by_length"}
    assert "model.attention=none" in left_out["attention"]
    assert left_out["positions"].endswith("the model has none")
    assert "evaluate the run first" in left_out["by_length"]
    (said,) = (x for x in write_pictures(Run(lstm), tmp_path / "x", ["beam_tree"]) if "left" in x)
    assert "no sentence is given; add --source='...' (cannot read " in said
    alt = (tmp_path / "alt.md").read_text()
    assert alt.count("](") == 2
    assert f"![{PICTURES['architecture'][1]}](architecture.png)" in alt
    for name in ("architecture", "beam_tree"):
        svg = ET.fromstring((tmp_path / f"{name}.svg").read_text())
        assert svg.findtext(f"{SVG}title") == f"run: {name.replace('_', ' ')}"
        assert svg.findtext(f"{SVG}desc") == PICTURES[name][1]
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_writes_all_of_a_run(toy_run, tmp_path):
    shutil.copytree(toy_run, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "run" / "eval" / "test"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("sources", "references", "hypotheses"):
        (folder / f"{name}.txt").write_text("one\none two three four\n")
    flags = ["--workdir=run", "--output=slides", "--trust_paths"]
    lines = succeeded(run("pictures", *flags, cwd=tmp_path)).out.decode().splitlines()
    assert [line for line in lines if "left out" in line] == ["left out  steps: the model has none"]
    names = [f"{name}.{end}" for name in PICTURES for end in ("png", "svg") if name != "steps"]
    assert sorted(x.name for x in (tmp_path / "slides").iterdir()) == sorted([*names, "alt.md"])
    assert "four" in (tmp_path / "slides/masks.svg").read_text()  # of the short sentence


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        ("pictures", ["--workdir=run"], "--output is missing"),
        ("pictures", ["--workdir=run", "--output=x", "--only=mask"], "there are: architecture, "),
        ("pictures", ["--output=x"], "--workdir is missing"),
        ("summary", ["--workdir=run", "--diagram=x.txt"], "x.txt must end in .png or .svg"),
        ("summary", ["--workdir=nothing"], "nothing is not a work directory"),
    ],
)
def test_what_is_refused(toy_run, tmp_path, command, flags, message):
    (tmp_path / "run").symlink_to(toy_run / "run")
    assert_refused(run(command, *flags, cwd=tmp_path), message)
    assert not (tmp_path / "x").exists()


def test_the_command_summary(toy_run, tmp_path):
    flags = [f"--workdir={toy_run / 'run'}", "--diagram=x.svg"]
    out = succeeded(run("summary", *flags, cwd=tmp_path)).out.decode()
    assert "EncoderLayer" in out
    assert "MFLOPs: of matrix products in a forward pass over 32 source tokens and 32" in out
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()
    flags = ["--config=demo", "--config.model.num_encoder_layers=5", "--format=csv"]
    out = succeeded(run("summary", *flags, cwd=tmp_path)).out.decode()
    assert '"    0-4, each",EncoderLayer' in out
