"""A training run: prepare, restore, loop, finish."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from transformer.data import hub
from transformer.models.functional import FunctionalModel, num_params
from transformer.runs import init_from, run_config
from transformer.runs.checkpoints import Checkpoints, saved_steps
from transformer.runs.evaluation import next_command
from transformer.runs.integrity import allow, check_seal, compile_digest, seal
from transformer.runs.log import RunLog, check_can_log
from transformer.runs.loop import Loop, Programs, Updates
from transformer.runs.provenance import add_start
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config
from transformer.system import buckets, distributed
from transformer.system.commands import command
from transformer.system.compilation import Compilations, may_compile, memory_summary
from transformer.system.errors import UserError
from transformer.system.files import write_json
from transformer.system.hardware import memory_limit, memory_of_host, peak_flops, units
from transformer.system.locks import lock_workdir
from transformer.system.preemption import Stopped, StopRequest
from transformer.system.profiling import Profile
from transformer.system.sharding import (
    bytes_per_device,
    data_mesh,
    make_mesh,
    state_sharding,
    without_a_rule,
)
from transformer.system.terminal import go_on_without_readers
from transformer.tasks.task import FACTS, TrainingTask
from transformer.training.freezing import check_freeze, with_frozen
from transformer.training.optimizers import scaled
from transformer.training.schedules import make_schedule
from transformer.training.step import TrainState, abstract_state, begun, init_state


def run(
    config: Config,
    workdir: Path,
    profiled: range = range(0),
    start: Mapping | None = None,
    draw: Callable[[], None] = lambda: None,
) -> None:
    """Trains to the end, or until told to stop; then the process ends with code 75.

    profiled: the steps to trace. start: the entry for this start in WORKDIR/starts.jsonl.
    draw: makes pictures of metrics.jsonl; called after validations.
    """
    go_on_without_readers()
    if distributed.from_first(lambda: config.sha256) != config.sha256:
        raise UserError(
            f"process {jax.process_index()} was given another config than process 0; start all "
            "with the same command and config file"
        )
    try:
        with StopRequest() as stop, contextlib.ExitStack() as stack:
            if distributed.is_first():
                stack.enter_context(lock_workdir(workdir))
            train(config, workdir, stop, profiled, start, draw)
    except Stopped as stopped:
        if stopped.together:
            distributed.leave()
        elif distributed.has_joined():
            distributed.end(stopped.code, "")
        with contextlib.suppress(OSError):  # the disk may be full, or the reader gone
            sys.stdout.flush()
        # Python's shutdown would free memory that JAX's threads, stopped at any point, still use.
        os._exit(stopped.code)


def train(
    config: Config,
    workdir: Path,
    stop: StopRequest,
    profiled: range = range(0),
    start: Mapping[str, Any] | None = None,
    draw: Callable[[], None] = lambda: None,
) -> None:
    """Trains to the end, from the newest checkpoint if there is one."""
    start_time = time.monotonic()
    training, first = config.training, distributed.is_first()
    with Compilations() as compilations, contextlib.ExitStack() as stack:
        # 1. Find mistakes in the user's input before anything is written.
        if first:
            run_config.check_workdir(workdir, config)
            check_seal(workdir)
            check_can_log(workdir, config)
            if (done := max(saved_steps(workdir), default=0)) > training.steps:
                raise UserError(
                    f"{workdir} has a checkpoint of step {done}, and training.steps is "
                    f"{training.steps}; give at least {done}, or another --workdir"
                )
        mesh = make_mesh(config.mesh)
        origin = _origin(config, workdir)
        task = config.kind.prepare(config, mesh, workdir, origin.task if origin else None)
        _check_same_data(task)
        _check_memory(task.task.model, mesh)
        schedule = make_schedule(config.optimizer, config.model.width)
        frozen = check_freeze(training.freeze, task.task.model.abstract_params())
        optimizer = with_frozen(config.kind.make_optimizer(config, schedule), training.freeze)
        if config.optimizer.plateau_patience:
            optimizer = scaled(optimizer)
        if training.freeze:
            print(f"frozen   {frozen}")

        # 2. Make the work directory.
        _begin(workdir, config, task, origin)
        del origin  # training needs the memory of its parameters
        checkpoints = Checkpoints(
            workdir,
            keep_last=training.keep_last,
            best_metric=training.best_metric,
            direction=config.best_metric.better,
        )
        stack.callback(checkpoints.close)

        # 3. Compile the programs and restore the state.
        programs = prepare_programs(config, workdir, task, optimizer, mesh)
        rate = jax.jit(schedule)
        rate(1)  # compiles it now
        stop.wait_for_steps(mesh)
        peak = peak_flops(mesh.devices.flat[0], config.model.dtype)
        mfu = peak and task.flops / task.num_tokens / (peak * mesh.size)
        log = RunLog(workdir, config, lambda n: float(rate(n)), mfu, start_time, draw)
        stack.callback(log.close)
        profile = Profile(workdir / "profile", profiled if first else range(0), programs.step)
        stack.callback(profile.close)
        updates = Updates(task, programs.step, profile)
        stack.callback(updates.close)
        loop = Loop(config, task, programs, updates, checkpoints, log, stop)
        at = loop.restore()
        if first:
            began = {"step": at.step, "data": task.data_id, **hub.revisions()}
            add_start(workdir, began | dict(start or {}))
        print(
            f"start    at step {at.step} of {training.steps}, after "
            f"{time.monotonic() - start_time:.1f} s; {compilations.compiled} programs compiled, "
            f"{compilations.cached} found compiled, in {compilations.seconds:.1f} s",
            flush=True,
        )
        if profiled and at.step > profiled.start:
            print(f"profile  not made: step {profiled.start} is done")

        # 4. Run the loop.
        log.open(at.step, evaluated=at.is_evaluated)
        compilations.expect_none()
        at = loop.run(at)

    # 5. Finish.
    if loop.is_out_of_patience(at):
        print(
            f"stopped early: no better {training.best_metric} in {training.patience} measurements"
        )
    if bad := len(at.monitor.bad):
        print(f"warning: the last {bad} updates were bad", file=sys.stderr)
    then = [next_command(config, task.task, workdir)] if first else []
    print("; ".join([f"done     {at.step} steps", *filter(None, then)]))


def prepare(config: Config, workdir: Path) -> None:
    """Does the part of `train` that needs no devices: the data, and a new work directory.

    Meant for clusters whose accelerator nodes have no network. One process on any machine does it.
    """
    with lock_workdir(workdir):
        run_config.check_workdir(workdir, config)
        check_seal(workdir)
        origin = _origin(config, workdir)
        mesh = data_mesh(jax.local_devices()[:1])
        task = config.kind.prepare(config, mesh, workdir, origin.task if origin else None)
        check_freeze(config.training.freeze, task.task.model.abstract_params())
        _begin(workdir, config, task, origin)
    print(f"prepared {workdir}; {command('train', f'--workdir={workdir}')}")


def _begin(workdir: Path, config: Config, task: TrainingTask, origin: TrainedModel | None) -> None:
    """Writes the files that a run has before its first checkpoint."""
    begun_with = origin and init_from.with_heads(origin, task.task, config)
    if distributed.is_first():
        allow(workdir, run_config.CONFIG, config.to_json())
        buckets.push()  # so that at any moment config.json is allowed there, too
        run_config.save(workdir, config)
        task.task.save(workdir)
        seal(workdir, run_config.files_of(config))
        write_json(workdir / FACTS, task.facts()._asdict())
    if begun_with:
        init_from.keep(workdir, begun_with)
    if distributed.is_first():
        buckets.push()


def prepare_programs(
    config: Config, workdir: Path, task: TrainingTask, optimizer: Any, mesh: jax.sharding.Mesh
) -> Programs:
    """Compiles all that the loop needs and runs it once, the largest first.

    A program that does not fit in memory fails now, not hours later. The state used here is thrown
    away.
    """
    model, ema = task.task.model, config.training.ema
    shapes = abstract_state(model, optimizer, ema)
    print(f"model    {num_params(shapes.params):,} parameters", flush=True)
    shardings = state_sharding(mesh, shapes, model.sharding)
    like = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        shapes,
        shardings,
    )
    print(
        f"state    {units(bytes_per_device(like.params))} of parameters"
        f"{f', {units(bytes_per_device(like.ema))} of their moving average' if ema else ''} and "
        f"{units(bytes_per_device(like.opt_state))} of optimizer state per device, on "
        f"{mesh.size} {mesh.devices.flat[0].platform} device(s), "
        f"{' x '.join(f'{size} {axis}' for axis, size in mesh.shape.items())}",
        flush=True,
    )
    if names := without_a_rule(shapes.params, model.sharding):
        print(
            f"note     the family's sharding table has no row for {', '.join(names)}: copied to "
            "every device"
        )
    init = jax.jit(
        lambda: init_state(model, optimizer, config.training.seed, ema), out_shardings=shardings
    )
    state = init()
    batch, _ = task.batch(0)
    step = task.make_step(optimizer).lower(state, batch).compile()
    distributed.barrier()  # one process may have compiled for longer
    state, _ = jax.block_until_ready(step(state, batch))
    programs = {"train step": step, **task.prepare(state)}
    compile_digest(state)
    for name, program in programs.items():
        print(f"memory   {name}: {memory_summary(program)}")

    def begin() -> TrainState:
        if not config.training.init_from:
            return init()
        given = init_from.restore(workdir, like.params, like.extra)
        with may_compile():
            # Some optimizers and averages begin with the parameters.
            return jax.jit(lambda *x: begun(optimizer, *x, ema), out_shardings=shardings)(*given)

    return Programs(begin, like, step)


def _origin(config: Config, workdir: Path) -> TrainedModel | None:
    """The model of training.init_from, unless the run has its copy already."""
    if not config.training.init_from or distributed.from_first(
        lambda: init_from.is_kept(workdir) or bool(saved_steps(workdir))
    ):
        return None
    origin = init_from.load(config)
    steps = ", ".join(map(str, origin.chosen.steps))
    print(f"initial  the {origin.chosen.checkpoint} of {origin.workdir}, step(s) {steps}")
    return origin


def _check_same_data(task: TrainingTask) -> None:
    if distributed.from_first(lambda: task.data_id) != task.data_id:
        raise UserError(
            f"process {jax.process_index()} reads other data than process 0, or has made another "
            "tokenizer of it; put the data where all processes read the same"
        )


def _check_memory(model: FunctionalModel, mesh: jax.sharding.Mesh) -> None:
    """Raises UserError for a model that cannot fit with any optimizer."""
    limit = memory_limit(mesh.local_devices[0])
    everywhere = limit * mesh.size if limit else memory_of_host() * jax.process_count()
    number = num_params(model.abstract_params())
    if 8 * number > everywhere:  # each parameter and its gradient, in float32
        raise UserError(
            f"the model has {number:,} parameters, which need at least {units(8 * number)} of "
            f"memory to be trained, and there is {units(everywhere)}; make it smaller"
        )
