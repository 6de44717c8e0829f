import pytest

from configs import demo
from transformer.runs import trusted_paths
from transformer.runs.run_config import Config


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(**changes):
    config = demo.get_config()
    config.data.update(changes)
    return Config.from_dict(config.to_dict())


def test_what_was_trained_with_is_known(tmp_path):
    run = config(data_dir="data", raw_dir="~/raw")
    expected = {"data.data_dir": "data", "data.raw_dir": "~/raw"}
    assert trusted_paths.unknown(run, given=[]) == expected
    assert trusted_paths.unknown(run, given=["data.raw_dir"]) == {"data.data_dir": "data"}
    trusted_paths.remember(run)
    trusted_paths.remember(run)
    assert trusted_paths.unknown(run, given=[]) == {}
    assert trusted_paths.unknown(config(data_dir=str(tmp_path / "data")), given=[]) == {}
    assert len((tmp_path / "state/transformer-jax/data_paths").read_text().splitlines()) == 2
    other = config(data_dir="data", test_source="/etc/hostname", test_target="/etc/hostname")
    assert trusted_paths.unknown(other, given=[]) == dict.fromkeys(
        ("data.test_source", "data.test_target"), "/etc/hostname"
    )


def test_the_default_folder_is_known():
    assert trusted_paths.unknown(config(), given=[]) == {}


def test_without_a_home_nothing_is_known(tmp_path):
    (tmp_path / "state").write_text("a file")
    trusted_paths.remember(config(data_dir="data"))
    assert trusted_paths.unknown(config(data_dir="data"), given=[]) == {"data.data_dir": "data"}


def test_without_a_home_nothing_is_noted_or_trusted(tmp_path, monkeypatch):
    """A list below the current directory may be a stranger's."""
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    trusted_paths.remember(config(data_dir="data"))
    assert not list(tmp_path.rglob("data_paths"))
    assert "data.data_dir" in trusted_paths.unknown(config(data_dir="data"), [])
