"""Compilation: the cache of programs on disk, their count, and their memory."""

import contextlib
import functools
import hashlib
import os
import platform
import re
import warnings
from pathlib import Path
from typing import Self

import jax
from jax import monitoring

from transformer.system.cpu import cpu_lines
from transformer.system.files import user_caches
from transformer.system.hardware import units
from transformer.system.paths import checked
from transformer.system.terminal import say

# JAX's warning when it continues without its cache. Groups: program, error.
CACHE_TROUBLE = r"Error (?:reading|writing) persistent compilation cache entry for '(.*?)': (.*)"


# Keeps XLA from handing convolutions to YNNPACK, a library of kernels for CPUs.
OWN_CONVOLUTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": (
        "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
    )
}


class CompilationWarning(UserWarning):
    """Time went into an unexpected compilation."""


@functools.cache
def convolution_options(platform: str) -> dict[str, str] | None:
    """`jax.jit`'s `compiler_options` for a program of convolutions and their gradients.

    On CPUs XLA's own convolutions are faster than YNNPACK's (jax 0.10; in 0.12 only the gradients
    of kernels are). None for other platforms, and where XLA does not know the option.
    """
    if platform != "cpu":
        return None
    try:
        jax.jit(lambda: 0, compiler_options=OWN_CONVOLUTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return None
    return OWN_CONVOLUTIONS


def use_cache() -> None:
    """Keeps compiled programs in the user's cache folder, for the next start.

    JAX_COMPILATION_CACHE_DIR names another folder; if it is empty, there is no cache. A faulty
    folder costs one line on standard error and the time to compile. Call this once, before the
    first computation. Raises UserError for a folder that is not on this machine.
    """
    for name, value in {
        "jax_compilation_cache_dir": _default_folder(),
        # Small and quick programs are kept, too: there are many, and they add up.
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    folder = jax.config.jax_compilation_cache_dir
    if not folder:  # with "" XLA would still write a GPU's files, to the current directory
        jax.config.update("jax_compilation_cache_dir", None)
    else:
        checked(folder, "JAX_COMPILATION_CACHE_DIR", in_buckets=False)

    show, told = warnings.showwarning, False

    def showwarning(message, category, *args, **kwargs) -> None:
        nonlocal told
        if match := re.match(CACHE_TROUBLE, str(message), re.DOTALL):
            # JAX never overwrites an entry. One cut short, by a full disk or the end of its
            # process, would be compiled again at every start. Once removed, it is rewritten.
            with contextlib.suppress(OSError):
                for entry in Path(folder).glob(f"{match[1]}-*-cache"):
                    entry.unlink(missing_ok=True)
            if told:
                return
            told = True
            message = f"compiling, since the cache {folder} has a fault: {match[2]}"
        elif not issubclass(category, CompilationWarning):
            return show(message, category, *args, **kwargs)
        say(f"warning: {' '.join(str(message).split())}"[:400])

    warnings.filterwarnings("always", CACHE_TROUBLE)
    warnings.showwarning = showwarning


def _default_folder() -> str | None:
    """The folder for compiled programs; None if the user has no home.

    Each type of CPU has its own, as machines may share a home: a program made for one CPU may
    crash on another, and JAX's names of the entries do not tell them apart.
    """
    if (caches := user_caches()) is None:
        return None
    names = "vendor_id", "cpu family", "model", "flags", "CPU ", "Features"  # x86 and Arm
    cpu = {platform.processor(), *(line for line in cpu_lines() if line.startswith(names))}
    digest = hashlib.sha256("\n".join(sorted(cpu)).encode()).hexdigest()[:12]
    return str(caches / f"{platform.machine()}-{digest}")


class Compilations:
    """Counts the programs that JAX compiles or reads from its cache during the `with` block.

    An operation outside jit, such as x + 1, is a program, too.
    """

    def __init__(self):
        self.programs = 0
        self.cached = 0  # programs read from the cache on disk
        self.seconds = 0.0  # spent by XLA and in the cache, not on tracing and lowering
        self._expects_none = False

    @property
    def compiled(self) -> int:
        return self.programs - self.cached

    def expect_none(self) -> None:
        """From now on every new program gives a CompilationWarning."""
        self._expects_none = True

    def __enter__(self) -> Self:
        monitoring.register_event_listener(self._on_event)
        monitoring.register_event_duration_secs_listener(self._on_duration)
        return self

    def __exit__(self, *_) -> None:
        monitoring.unregister_event_listener(self._on_event)
        monitoring.unregister_event_duration_listener(self._on_duration)

    def _on_event(self, event: str, **_) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            self.cached += 1

    def _on_duration(self, event: str, seconds: float, fun_name: str = "?", **_) -> None:
        if event != "/jax/core/compile/backend_compile_duration":  # which cache hits send, too
            return
        self.programs += 1
        self.seconds += seconds
        if self._expects_none:
            warnings.warn(  # the number keeps Python from dropping it as a repetition
                f"program {self.programs}, {fun_name}, was new after the start and took "
                f"{seconds:.1f} s: a shape or dtype has changed",
                CompilationWarning,
                stacklevel=2,
            )


def may_compile() -> warnings.catch_warnings:
    """Suspends `Compilations.expect_none` during a `with` block."""
    return warnings.catch_warnings(action="ignore", category=CompilationWarning)


def memory_summary(compiled: jax.stages.Compiled) -> str:
    """The memory of a program on each device, such as "1.2 GiB, 0.9 GiB of it temporary".

    A donated argument and the result that replaces it count once.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        return "unknown"
    arguments_and_results = (
        memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    )
    total = arguments_and_results + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return f"{units(total)}, {units(memory.temp_size_in_bytes)} of it temporary"
