import atexit
import gc
import os
import signal
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

# These tests may be a background job, which ignores Ctrl-C, or started by nohup.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Whoever runs these tests does not know the paths of their data: see runs/trusted_paths.py.
_STATE = tempfile.TemporaryDirectory()
atexit.register(_STATE.cleanup)
os.environ["XDG_STATE_HOME"] = _STATE.name
# Programs that the scripts compiled, for all workers of a test run.
if "COMPILED_BY_TESTS" not in os.environ:
    _COMPILED = tempfile.TemporaryDirectory()
    atexit.register(_COMPILED.cleanup)
    os.environ["COMPILED_BY_TESTS"] = _COMPILED.name
# Broadcasting between ranks hides mistakes of shape.
jax.config.update("jax_numpy_rank_promotion", "raise")
# Traced programs are many small objects, which Python would search for garbage again and again.
gc.set_threshold(50_000, 50, 100)
# What these tests compile runs once or twice: a third of the time to compile is worth more.
jax.config.update("jax_disable_most_optimizations", True)
_FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]  # a part for each thread costs more in all
if jax.__version_info__ < (0, 11):  # fuses loops in an older way, in half the time; gone later
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS])

# A worker that begins one of these last ends long after the others.
LONGEST = {
    *("test_resume", "test_command_line", "test_checkpoints", "test_bad_input", "test_benchmarks"),
    *("test_model", "test_rnn", "test_translation", "test_universal", "test_search"),
    *("test_families", "test_image_runs", "test_sharding", "test_lowering", "test_distributed"),
}


def pytest_configure(config):
    config.option.loadscopereorder = False  # files with the most tests first, in xdist


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture(scope="module")
def compiled_once():
    """Programs of this process come from the cache that the scripts use."""
    names = ("dir", "min_compile_time_secs", "min_entry_size_bytes")
    keys = ["jax_compilation_cache_dir", *(f"jax_persistent_cache_{n}" for n in names[1:])]
    before = [getattr(jax.config, key) for key in keys]
    for key, value in zip(keys, (os.environ["COMPILED_BY_TESTS"], 0.0, -1)):
        jax.config.update(key, value)
    compilation_cache.reset_cache()
    yield
    for key, value in zip(keys, before):
        jax.config.update(key, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory):
    """A folder with a text and `run`, which train.py made of it in two steps; not to be changed."""
    import scripts

    folder = tmp_path_factory.mktemp("toy_run")
    scripts.write_toy(folder, train=97, validation=5)
    flags = [*scripts.toy_flags(), "--workdir=run"]
    scripts.succeeded(scripts.run("train.py", *flags, cwd=folder))
    return folder


@pytest.fixture(scope="session")
def random_params():
    """random_params(model, seed=0): random arrays for every parameter of a FunctionalModel.

    Biases and scales too, so that none can be left out unnoticed; and drawn by NumPy, since
    compiling the initialisers takes seconds.
    """

    def draw(model, seed=0):
        rng = np.random.default_rng(seed)

        def leaf(path, shape):
            mean = 1.0 if path[-1].key == "scale" else 0.0
            return jnp.asarray(rng.normal(mean, 0.3, shape.shape), shape.dtype)

        return jax.tree_util.tree_map_with_path(leaf, model.abstract_params())

    return draw
