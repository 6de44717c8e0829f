import pytest

from transformer.data.test_sets import read_files, sacrebleu_test_set
from transformer.system.errors import UserError


@pytest.mark.parametrize(
    ("source", "target", "is_there"),
    [("en", "zh", True), ("eng", "zho_Hans", True), ("en-GB", "cmn", True), ("en", "de", False)],
)
def test_a_test_set_is_found_by_other_codes(source, target, is_there, tmp_path, monkeypatch):
    text = tmp_path / "text"
    text.write_text("a\n")
    monkeypatch.setattr("sacrebleu.utils.get_langpairs_for_testset", lambda name: ["en-zh"])
    monkeypatch.setattr("sacrebleu.utils.get_source_file", lambda name, pair: f"{tmp_path}/text")
    monkeypatch.setattr("sacrebleu.utils.get_reference_files", lambda name, pair: [str(text)])
    if not is_there:
        with pytest.raises(UserError, match="wmt17 has no en-de; it has: en-zh"):
            sacrebleu_test_set("wmt17", source, target)
        return
    assert sacrebleu_test_set("wmt17", source, target).references == [["a"]]


@pytest.mark.parametrize("name", ["test", "latest"])
def test_a_file_does_not_take_the_folder_of_a_split_or_the_link(name, tmp_path):
    (tmp_path / name).write_text("a\n")
    test = read_files(str(tmp_path / name), [str(tmp_path / name)])
    assert test.name == f"{name}.txt"
    assert list(test.inputs) == ["source", "reference"]
