from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from processes import no_room_beyond

from transformer.system import compilation
from transformer.system.compilation import (
    Compilations,
    CompilationWarning,
    convolution_options,
    may_compile,
    memory_summary,
    use_cache,
)


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """The user's cache folder; JAX's settings return to what they were."""
    settings = {
        name: getattr(jax.config, name)
        for name in (
            "jax_compilation_cache_dir",
            "jax_persistent_cache_min_compile_time_secs",
            "jax_persistent_cache_min_entry_size_bytes",
        )
    }
    for name in settings:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    yield tmp_path / "caches"
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()


def function(name):
    """A function that no earlier jit knows."""

    def f(x):
        return x + 1

    f.__name__ = name
    return jax.jit(f)


def ones(*shape):
    return np.ones(shape, np.float32)


def start():
    """(compiled, cached) of two programs, in as good as a new process."""
    reset_cache()
    use_cache()
    with Compilations() as compilations:
        for name in "f", "g":
            np.testing.assert_array_equal(function(name)(ones(3)), ones(3) + 1)
    return compilations.compiled, compilations.cached


def entries(caches):
    return sorted((caches / "transformer-jax").glob("*/*-cache"))


# --- The cache ------------------------------------------------------------------------------


def test_the_users_cache_folder(caches, capsys):
    assert start() == (2, 0)
    assert [path.name.split("-")[0] for path in entries(caches)] == ["jit_f", "jit_g"]
    assert start() == (0, 2)
    assert capsys.readouterr() == ("", "")


def test_each_type_of_cpu_has_a_folder(caches, monkeypatch):
    def folder(cpuinfo):
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: cpuinfo)
        return compilation._default_folder()

    old = folder("cpu MHz\t: 2596\nmodel name\t: A\nflags\t: sse avx\n" * 2)
    assert Path(old).parent == caches / "transformer-jax"
    assert old == folder("cpu MHz\t: 1700\nmodel name\t: A\nflags\t: sse avx\n" * 3)
    assert old != folder("cpu MHz\t: 2596\nmodel name\t: B\nflags\t: sse avx\n" * 2)
    assert old != folder("cpu MHz\t: 2596\nmodel name\t: A\nflags\t: sse avx avx512f\n" * 2)


def test_no_folder(caches, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    jax.config.update("jax_compilation_cache_dir", "")  # as JAX does when it is imported
    assert start() == start() == (2, 0)
    assert jax.config.jax_compilation_cache_dir is None
    assert not caches.exists()


def test_damaged_entries_are_replaced(caches, capsys):
    assert start() == (2, 0)
    f, g = entries(caches)
    f.write_bytes(f.read_bytes()[:1000])
    assert start() == (1, 1)  # only that one is compiled
    capsys.readouterr()
    for entry, content in ((f, f.read_bytes()[:1000]), (g, b"")):
        entry.write_bytes(content)
    assert start() == (2, 0)
    error = capsys.readouterr().err
    assert error.startswith(f"warning: compiling, since the cache {f.parent} has a fault: error: ")
    assert error.count("\n") == 1
    assert start() == (0, 2)
    assert capsys.readouterr().err == ""


def test_a_folder_that_is_a_file(caches, capsys):
    caches.write_text("")
    assert start() == (2, 0)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "has a fault: " in error


def test_a_full_disk(caches, capsys):
    with no_room_beyond(1000):
        assert start() == (2, 0)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "File too large" in error
    assert entries(caches) == []  # not even a part of one
    assert (start(), start()) == ((2, 0), (0, 2))
    assert capsys.readouterr().err == ""


# --- The count ------------------------------------------------------------------------------


def test_compilations_after_the_start():
    f = function("grow")
    with Compilations() as compilations:
        f(ones(2))
        assert (compilations.compiled, compilations.cached) == (1, 0)
        assert compilations.seconds > 0
        compilations.expect_none()
        f(ones(2))
        with pytest.warns(CompilationWarning, match=r"^program 2, jit\(grow\), .* shape or dtype"):
            f(ones(3))
        with may_compile():
            f(ones(5))
        with pytest.raises(CompilationWarning):  # as warnings are errors here
            f(ones(7))
        f(ones(2))
    assert compilations.programs == 4
    f(ones(11))
    assert compilations.programs == 4


# --- Memory ---------------------------------------------------------------------------------


def test_donated_memory_counts_once():
    x = jax.ShapeDtypeStruct((2**18, 3), np.float32)  # 3 MiB

    def summary(**options):
        return memory_summary(jax.jit(lambda x: x + 1, **options).lower(x).compile())

    assert summary() == "6.0 MiB, 0.0 MiB of it temporary"
    assert summary(donate_argnums=0) == "3.0 MiB, 0.0 MiB of it temporary"


def test_options_for_convolutions(monkeypatch):
    assert convolution_options("gpu") is None
    options = convolution_options("cpu")
    program = jax.jit(lambda x: x + 1, compiler_options=options).lower(1.0).compile()
    assert program(1.0) == 2
    # A version of XLA that does not know the option goes without it.
    monkeypatch.setattr(compilation, "OWN_CONVOLUTIONS", {"xla_cpu_no_such_option": "1"})
    convolution_options.cache_clear()
    assert convolution_options("cpu") is None
    convolution_options.cache_clear()
