"""Pictures of layers and words, from the command line."""

from scripts import assert_refused, run, succeeded
from small_bert import trained_bert

from transformer.exports import bert_folder


def test_pictures_of_a_run(toy_run, tmp_path):
    workdir = f"--workdir={toy_run / 'run'}"
    for arguments, name in (
        (["--trust_paths", f"--data_dir={toy_run / 'data'}"], "words.svg"),
        (["--source=one two"], "layers.png"),
    ):
        command = ["look", workdir, *arguments, f"--out={tmp_path / name}"]
        assert succeeded(run(*command, cwd=toy_run)).out == f"wrote {tmp_path / name}\n".encode()
    assert (tmp_path / "words.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_bert_of_the_hub(random_params, tmp_path):
    bert_folder.write(trained_bert(random_params), tmp_path)
    for flag in ("--source=one [MASK]", "--words=one,two,three"):
        succeeded(run("look", "--workdir=.", flag, "--out=x.png", cwd=tmp_path))
    found = run("look", "--workdir=.", cwd=tmp_path)
    assert_refused(found, "has no pairs in which words can be counted; name words")


def test_flags_that_do_not_go_together(toy_run, tmp_path):
    for arguments, message in (
        (["--words=one", "--source=one"], "--words and --source are for two pictures"),
        (["--target=one"], "--target is given without its --source"),
        (["--words=one,two"], "2 words are given; a plane needs three or more"),
        (["--source="], "the source sentence is empty"),
        (["--out=x.pdf"], "x.pdf"),
    ):
        out = f"--out={tmp_path / 'x.png'}"
        found = run("look", f"--workdir={toy_run / 'run'}", out, *arguments, cwd=tmp_path)
        assert_refused(found, message)
    assert not list(tmp_path.iterdir())
