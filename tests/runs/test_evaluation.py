import json

from transformer.runs.evaluation import write_outputs
from transformer.tasks.task import Outputs

ODD = ["two  spaces ", "\ttab", "line\u2028separator\u0085", '"quotes" ‘’', "", "a\rb", "ä"]


def test_files_are_verbatim(tmp_path):
    outputs = Outputs({"sources": ODD, "hypotheses": ["h"] * 7}, {}, "")
    directory = write_outputs(tmp_path, "a/b", outputs, {"bleu": {"score": 1.5}})
    assert directory == tmp_path / "eval" / "a_b"
    text = (directory / "sources.txt").read_bytes().decode()
    assert text.split("\n")[:-1] == ODD
    assert json.loads((directory / "scores.json").read_text()) == {"bleu": {"score": 1.5}}
    assert sorted(path.name for path in directory.iterdir()) == [
        "hypotheses.txt",
        "scores.json",
        "sources.txt",
    ]
