"""Trains a model: flags -> config -> data -> loop.

    python train.py                                              the demo
    python train.py --config=configs/base.py --workdir=runs/base
    python train.py --config=configs/base.py --config.model.num_heads=16 --workdir=runs/h16

A second start with the same --workdir continues where the first one stopped.
--profile=100:103 writes a trace of the updates from step 100 to step 103 to WORKDIR/profile.
"""

if __name__ == "__main__":
    from transformer.system.startup import use_huge_pages

    use_huge_pages()  # before JAX is imported

import collections
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import jax
from absl import flags
from ml_collections import config_flags

from transformer.data.batches import Batch, EvaluationBatches, PackedPairs, TrainingBatches
from transformer.data.packing import row_widths
from transformer.data.prefetch import prefetch
from transformer.data.sources import open_source, training_source
from transformer.data.token_cache import token_cache
from transformer.data.tokenizers import get_tokenizers
from transformer.decoding.translation import Translator
from transformer.evaluation.evaluation import Translations, mean_nll, translate_source
from transformer.models.family import Sizes, build_model, find_family
from transformer.models.functional import num_params
from transformer.reports.plots import learning_curve
from transformer.runs import cli, experiment, init_from
from transformer.runs.checkpoints import Checkpoints, saved_steps
from transformer.runs.experiment import Experiment
from transformer.runs.integrity import digest
from transformer.runs.logs import MetricsWriter, Progress, read_metrics
from transformer.runs.provenance import add_start, conditions, relative
from transformer.system import distributed
from transformer.system.compilation import Compilations, memory_summary, units
from transformer.system.errors import UserError
from transformer.system.hardware import peak_flops
from transformer.system.locks import lock_workdir
from transformer.system.preemption import Stopped, StopRequest
from transformer.system.profiling import STEP, Profile, step_range
from transformer.system.sharding import (
    bytes_per_device,
    distribute,
    make_mesh,
    row_shards,
    split_rows,
    state_sharding,
)
from transformer.training.divergence import Monitor, norms_by_layer, write_report
from transformer.training.optimizers import learning_rate, optimizer
from transformer.training.step import (
    TrainState,
    Window,
    abstract_state,
    init_state,
    make_nll_step,
    make_train_step,
    update_layout,
)

DEMO = Path(__file__).parent / "configs" / "demo.py"
UPDATES_AHEAD = 2  # that the device may have in hand while the host goes on
TRIES_AT_THE_END, SECONDS_BETWEEN_TRIES = 60, 10.0  # to save the last checkpoint

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config file; configs/demo.py if none."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Where the run lives; runs/<name of the config>.")
PROFILE = flags.DEFINE_string(
    "profile", None, "START:STOP; trace the updates between these steps into WORKDIR/profile."
)


def main() -> None:
    distributed.initialize()
    config_path = Path(config_flags.get_config_filename(flags.FLAGS["config"]))
    if not config_path.is_file():  # config_flags would say so at the first use, at length
        raise UserError(f"there is no config file {config_path}; see configs/")
    workdir = Path(WORKDIR.value or Path("runs") / config_path.stem)
    config = Experiment.from_dict(CONFIG.value.to_dict())
    profiled = range(0)
    if PROFILE.value is not None:
        profiled = step_range(PROFILE.value, config.training.steps)
    # Now: the files that this process has read may soon be of another commit.
    start = {
        **conditions(),
        "config_file": relative(str(config_path)),
        "overrides": dict(config_flags.get_override_values(flags.FLAGS["config"])),
    }
    if distributed.from_first(lambda: config.sha256) != config.sha256:
        raise UserError(
            f"process {jax.process_index()} was given another config than process 0; start all "
            "with the same command and config file"
        )
    try:
        with StopRequest() as stop, contextlib.ExitStack() as stack:
            if distributed.is_first():
                stack.enter_context(lock_workdir(workdir))
            train(config, workdir, stop, profiled, start)
    except Stopped as stopped:
        if stopped.together:
            distributed.leave()
        elif distributed.has_joined():
            distributed.end(stopped.code, "")
        with contextlib.suppress(OSError):  # the disk may be full, the reader gone
            sys.stdout.flush()
        # Python would take down what JAX's threads, stopped at no time in particular, still use.
        os._exit(stopped.code)


def train(
    config: Experiment,
    workdir: Path,
    stop: StopRequest,
    profiled: range = range(0),
    start: Mapping[str, Any] | None = None,
) -> None:
    """Trains to the end, from the newest checkpoint if there is one.

    start: what WORKDIR/starts.jsonl is to say of this start, but for the step.
    """
    start_time = time.monotonic()
    with Compilations() as compilations:
        run = Run(config, workdir, stop, compilations)
        run.prepare_programs()
        run.restore()
        if distributed.is_first():
            add_start(workdir, {"step": run.step, "data": run.data_id, **(start or {})})
        print(
            f"start    at step {run.step} of {config.training.steps}, after "
            f"{time.monotonic() - start_time:.1f} s; {compilations.compiled} programs compiled, "
            f"{compilations.cached} found compiled, in {compilations.seconds:.1f} s",
            flush=True,
        )
        if profiled and run.step > profiled.start:
            print(f"profile  not made: step {profiled.start} is done")
        run.loop(profiled if distributed.is_first() else range(0))


class Run:
    """A run, from text to the last checkpoint."""

    def __init__(
        self, config: Experiment, workdir: Path, stop: StopRequest, compilations: Compilations
    ):
        self.start_time = time.monotonic()
        self.config, self.workdir, self.stop = config, workdir, stop
        self.compilations = compilations
        self.training = training = config.training
        if distributed.is_first():
            experiment.check_workdir(workdir, config)
        self.mesh = mesh = make_mesh(config.mesh)
        other = None  # whose parameters it begins with
        if training.init_from and not distributed.from_first(
            lambda: init_from.is_kept(workdir) or saved_steps(workdir)
        ):
            other = init_from.load(config)
            steps = ", ".join(map(str, other.steps))
            print(f"initial  the {other.checkpoint} of {other.workdir}, step(s) {steps}")

        # 1. Data: text -> tokenizer -> token cache -> packed rows. What is wrong with the user's
        #    input shows here, before anything is written to the work directory.
        print(f"data     preparing it, in {config.data.data_dir} if new", flush=True)
        with distributed.first_alone():
            source = training_source(config.data)
            self.validation_source = open_source(config.data, "validation")
            Translations(["a"], ["a"], ["a"]).bleu(config.data)  # a language that has no tokenizer
            print(f"data     {source.describe()}; tokenising them if new", flush=True)
            self.tokenizers = (
                other.tokenizers if other else get_tokenizers(workdir, config.tokenizer, source)
            )
            limits = config.data.max_source_length, config.data.max_target_length
            cache_dir = Path(config.data.data_dir).expanduser() / "token_cache"
            sampling = config.tokenizer.sampling_alpha, config.tokenizer.num_samples
            pairs = token_cache(source, self.tokenizers, cache_dir, *limits, *sampling)
            print(f"data     {pairs.summary}", flush=True)
            validation_pairs = token_cache(
                self.validation_source, self.tokenizers, cache_dir, None, None
            )
        lengths = pairs.source_lengths, pairs.target_lengths
        widths = row_widths(*lengths, *limits)
        self.packed = PackedPairs(pairs, *widths, seed=training.seed)
        rows = update_layout(training, *widths, mesh)
        self.batches = TrainingBatches(self.packed, rows, training.seed)
        self.validation = EvaluationBatches(
            validation_pairs, *widths, rows.rows_per_step, row_shards(mesh)
        )
        self.data_id = experiment.data_id(source, self.validation_source, self.tokenizers)
        if distributed.from_first(lambda: self.data_id) != self.data_id:
            raise UserError(
                f"process {jax.process_index()} reads other text than process 0, or has made "
                "another tokenizer of it; put the data where all processes read the same"
            )
        print(
            f"batches  {rows.rows} rows of {widths[0]} + {widths[1]} tokens, "
            f"{self.packed.fill:.1%} full, {self.batches.updates_per_epoch:.1f} updates an epoch; "
            f"on {mesh.size} {mesh.devices.flat[0].platform} device(s), "
            f"{' x '.join(f'{size} {axis}' for axis, size in mesh.shape.items())}, "
            f"{rows.accumulation} x {rows.rows_per_step} rows"
        )

        # 2. The model, its optimizer, and the work directory.
        vocab_sizes = self.tokenizers.vocab_sizes
        sizes = Sizes(*vocab_sizes, config.tokenizer.joint, *limits)
        self.model = build_model(config.model, sizes)
        self.optimizer = optimizer(config.model.d_model, config.optimizer)
        print(
            f"model    {num_params(self.model.abstract_params()):,} parameters, vocabulary of "
            + " and ".join(f"{size:,}" for size in sorted(set(vocab_sizes))),
            flush=True,
        )
        self.peak = peak_flops(mesh.devices.flat[0], config.model.dtype)
        flops = find_family(config.model.family).flops(config.model, sizes, *lengths).sum()
        self.flops_per_token = flops / self.packed.num_tokens
        if distributed.is_first():
            experiment.save(workdir, config)
            self.tokenizers.save(workdir)
        if other:
            init_from.keep(workdir, other)
        self.checkpoints = Checkpoints(
            workdir, keep_last=training.keep_last, best_metric=training.best_metric
        )

    def prepare_programs(self) -> None:
        """Compiles all that the loop needs and runs it once, the largest first.

        So what does not fit in memory shows now. The state used up here is not the real one.
        """
        shapes = abstract_state(self.model, self.optimizer)
        shardings = state_sharding(self.mesh, shapes, self.model.sharding)
        self.like = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            shardings,
        )
        print(
            f"state    {units(bytes_per_device(self.like.params))} of parameters and "
            f"{units(bytes_per_device(self.like.opt_state))} of optimizer state per device",
            flush=True,
        )
        self.init_state = jax.jit(
            lambda: init_state(self.model, self.optimizer, self.training.seed),
            out_shardings=shardings,
        )
        state = self.init_state()
        batch, _ = self.load_batch(0)
        train_step = make_train_step(self.model, self.optimizer, self.training, self.mesh)
        self.train_step = train_step.lower(state, batch).compile()
        distributed.meet()  # one may have compiled for longer
        state, _ = self.train_step(state, batch)
        jax.block_until_ready(state)

        nll_step = make_nll_step(self.model, self.mesh)
        batch = next(self.validation_batches())
        self.nll_step = nll_step.lower(state.params, batch).compile()
        mean_nll(self.nll_step, state.params, [batch])

        self.translator = Translator(self.model, self.tokenizers, self.config.decoding, self.mesh)
        searches = {}
        if self.training.bleu_every:
            searches = self.translator.prepare(state.params, self.validation_source)

        digest(state.params), digest(state.opt_state)
        self.learning_rate(1)
        self.stop.wait_for_steps(self.mesh)
        for name, program in {
            "train step": self.train_step,
            "validation step": self.nll_step,
            **searches,
        }.items():
            print(f"memory   {name}: {memory_summary(program)}")

    def restore(self, *, scheduled_only: bool = False) -> None:
        """Takes up the newest checkpoint, or begins."""
        restored = self.checkpoints.restore_newest(self.like, scheduled_only=scheduled_only)
        self.window, self.monitor = Window(), Monitor(self.training)
        self.patience = {"best": None, "without_better": 0}
        if restored is None:
            self.state, self.is_evaluated = self.begin(), True
        else:
            notes, scores = restored.notes, restored.scores
            if notes["data"] != self.data_id:
                raise UserError(
                    f"the training or validation text has changed since {self.workdir} was "
                    "begun; put it back, or start again in another --workdir"
                )
            self.state, self.is_evaluated = restored.state, scores is not None
            self.window = Window(notes["window"])
            self.monitor.restore(notes["monitor"])
            self.patience = scores["patience"] if scores else notes["patience"]
        self.step = int(self.state.step)

    def begin(self) -> TrainState:
        """The state of a new run."""
        state = self.init_state()
        if self.training.init_from:
            with self.compilations.allowed():
                state = state._replace(params=init_from.params(self.workdir, self.like.params))
        return state

    def loop(self, profiled: range) -> None:
        training = self.training
        first = distributed.is_first()
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.closing(self.checkpoints))
            self.metrics = stack.enter_context(
                MetricsWriter(self.workdir, first_step=self.step, evaluated=self.is_evaluated)
                if first
                else distributed.Quiet()
            )
            self.target_tokens, self.seconds_before = self.last_totals()
            self.progress = stack.enter_context(
                Progress(training.steps, initial=self.step) if first else distributed.Quiet()
            )
            profile = Profile(self.workdir / "profile", profiled, self.train_step)
            stack.callback(profile.close)
            self.start_loading()
            stack.callback(lambda: self.loaded.close())
            self.compilations.expect_none()

            while True:
                # 1. Validation of a checkpoint, which is on its way to the disk meanwhile.
                if self.is_due() and not self.is_evaluated:
                    self.evaluate()
                if self.step >= training.steps or self.is_out_of_patience():
                    break

                # 2. An update.
                profile.before(self.step, self.state)
                wait_start = time.monotonic()
                batch, num_tokens = next(self.loaded)
                self.window.wait += time.monotonic() - wait_start
                with jax.profiler.StepTraceAnnotation(STEP, step_num=self.step):
                    self.state, metrics = self.train_step(self.state, batch)
                self.pending.append((self.step, metrics, num_tokens))
                self.step, self.is_evaluated = self.step + 1, False
                profile.after(self.step, self.state)

                # 3. Its metrics, a little later, so that the device never waits for the host.
                stop_now, is_due = self.stop.seen(), self.is_due()
                at_log = self.step % training.log_every == 0 or is_due
                self.look_at_metrics(0 if at_log or stop_now else UPDATES_AHEAD)
                if self.monitor.has_diverged:
                    self.roll_back()
                    continue
                if at_log:
                    self.log()

                # 4. A checkpoint.
                if is_due or stop_now:
                    self.save(scheduled=is_due)
                if stop_now:
                    self.checkpoints.wait()
                    self.progress.print(f"stopped after step {self.step}")
                    raise Stopped(together=True)
            self.make_sure_of_the_last_checkpoint()
        self.finish()

    def is_due(self) -> bool:
        """Whether a checkpoint is scheduled at this step."""
        steps = self.training.steps, self.training.checkpoint_every
        return self.step > 0 and (self.step == steps[0] or self.step % steps[1] == 0)

    def is_out_of_patience(self) -> bool:
        return 0 < self.training.patience <= self.patience["without_better"]

    def start_loading(self) -> None:
        """Begins to load batches ahead of the steps to come."""
        offset = self.monitor.offset
        numbers = range(self.step + offset, self.training.steps + offset)
        self.loaded = prefetch(self.load_batch, numbers)
        self.pending: collections.deque = collections.deque()  # updates whose metrics are to come

    def load_batch(self, number: int) -> tuple[Batch, int]:
        """A batch on the devices, and how many source and target tokens it has."""
        rows = self.batches.rows(number)
        batch = distribute(self.packed.batch, rows, split_rows(self.mesh, axis=1))
        return batch, self.packed.num_tokens_of(rows)

    def validation_batches(self) -> Iterator[Batch]:
        for number in range(len(self.validation)):
            rows = self.validation.rows(number)
            yield distribute(self.validation.packed.batch, rows, split_rows(self.mesh, axis=0))

    def learning_rate(self, update: int) -> float:
        return float(learning_rate(update, self.config.model.d_model, self.config.optimizer))

    def look_at_metrics(self, not_yet: int) -> None:
        """Takes in the metrics of the updates in hand, but for the newest `not_yet`."""
        while len(self.pending) > not_yet and not self.monitor.has_diverged:
            step, metrics, num_tokens = self.pending.popleft()
            metrics = jax.device_get(metrics)
            self.window.add(metrics, num_tokens)
            if bad := self.monitor.add(step, metrics):
                self.progress.print(f"warning: {bad} ({len(self.monitor.bad)} in a row)")

    def last_totals(self) -> tuple[float, float]:
        """Target tokens and seconds of the run so far, as its log says; 0 if nothing."""
        lines = read_metrics(self.workdir / "metrics.jsonl") if distributed.is_first() else []
        found = [line for line in lines if line["step"] <= self.step and "total/seconds" in line]
        names = ("total/target_tokens", "total/seconds")
        tokens, seconds = (max((line[name] for line in found), default=0) for name in names)
        return tokens, seconds

    def log(self) -> None:
        values = self.window.summary()
        values["train/learning_rate"] = self.learning_rate(self.step - self.monitor.skipped)
        self.target_tokens += self.window.target_tokens
        values["total/target_tokens"] = self.target_tokens
        values["total/seconds"] = self.seconds_before + time.monotonic() - self.start_time
        values["train/skipped_updates"] = self.monitor.skipped
        values["train/skipped_batches"] = self.monitor.offset
        if self.peak is not None:
            flops_per_second = self.flops_per_token * values["train/tokens_per_second"]
            values["train/mfu"] = flops_per_second / (self.peak * self.mesh.size)
        self.metrics.write(self.step, values)
        self.progress.update(
            self.step,
            loss=values["train/loss"],
            tokens_per_second=values["train/tokens_per_second"],
        )
        self.window = Window()

    def save(self, *, scheduled: bool) -> None:
        """Begins to save; not while the loss is bad, but for the very last checkpoint."""
        if self.monitor.bad and self.step < self.training.steps:
            self.progress.print(f"warning: nothing is saved at step {self.step}: the loss is bad")
            self.is_evaluated = True  # so much as there is to evaluate
            return
        monitor = self.monitor.notes()
        if scheduled:  # whoever restores it has a new checkpoint
            monitor["rollbacks"] = 0
        notes = {
            "data": self.data_id,
            "window": self.window.notes(),
            "monitor": monitor,
            "patience": self.patience,
        }
        with self.compilations.allowed():  # Orbax slices what several devices have
            self.checkpoints.save(self.state, notes, scheduled=scheduled)

    def evaluate(self) -> None:
        def stop_here(*_) -> None:
            if self.stop.seen():
                self.progress.print(f"stopped in the validation of step {self.step}")
                raise Stopped(together=True)

        step, training = self.step, self.training
        batches = (stop_here() or batch for batch in self.validation_batches())
        scores = {"nll": mean_nll(self.nll_step, self.state.params, batches)}
        if training.bleu_every and (step % training.bleu_every == 0 or step == training.steps):
            translations = translate_source(
                self.translator, self.state.params, self.validation_source, stop_here
            )
            scores["bleu"] = translations.bleu(self.config.data)
            self.progress.print(f"step {step}, validation:\n{translations.examples(3)}")
        self.metrics.write(step, {f"eval/validation/{k}": v for k, v in scores.items()})
        shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self.progress.print(f"step {step}: validation {shown}")
        self.patience = updated_patience(self.patience, scores, training.best_metric)
        self.scores = {**scores, "patience": self.patience}
        self.checkpoints.record_scores(step, self.scores)
        if distributed.from_first(lambda: self.checkpoints.has(step)):
            self.monitor.rollbacks = 0
        self.is_evaluated = True
        self.window = Window()  # its clock starts now

    def roll_back(self) -> None:
        """Back to the last scheduled checkpoint, and on with the batches after the bad ones."""
        diverged, step = self.monitor, self.step
        if diverged.has_given_up:
            self.report_divergence()
        self.loaded.close()
        self.state = None  # its memory is needed
        self.restore(scheduled_only=True)
        self.checkpoints.remove_unscheduled()
        self.monitor.pass_over(diverged, self.step)
        self.metrics.rewind(self.step, evaluated=self.is_evaluated)
        self.target_tokens, _ = self.last_totals()
        self.start_loading()
        self.progress.print(
            f"warning: the loss is bad; from step {step} back to step {self.step}, and on with "
            f"batch {self.step + self.monitor.offset} "
            f"(rollback {self.monitor.rollbacks} of {self.training.max_rollbacks})"
        )

    def report_divergence(self) -> NoReturn:
        path = self.workdir / "divergence.json"
        bad = self.monitor.bad
        with self.compilations.allowed():
            batch, _ = self.load_batch(bad[0].batch)
            smoothing = self.training.label_smoothing
            norms = norms_by_layer(self.model, self.state.params, batch, smoothing)
        if distributed.is_first():
            pairs = [self.packed.pairs_of(self.batches.rows(b.batch)) for b in bad]
            write_report(path, self.monitor, pairs, self.packed, self.tokenizers, norms)
        raise UserError(
            f"the loss is bad again after {self.monitor.rollbacks} rollbacks ({bad[-1]}; its "
            f"running average is {self.monitor.average}); {path} has the batches, their text and "
            "norms by layer; start again in another --workdir with a lower "
            "optimizer.learning_rate_scale, a longer optimizer.warmup_steps, or "
            "optimizer.max_grad_norm"
        )

    def make_sure_of_the_last_checkpoint(self) -> None:
        """Waits for it; where it cannot be saved, tries for some minutes."""
        for _ in range(TRIES_AT_THE_END):
            self.checkpoints.wait()
            if distributed.from_first(lambda: self.checkpoints.has(self.step)):
                return
            self.progress.print(f"warning: trying again in {SECONDS_BETWEEN_TRIES:.0f} s")
            time.sleep(SECONDS_BETWEEN_TRIES)
            if self.stop.seen():
                raise Stopped(together=True)
            self.save(scheduled=True)
            self.checkpoints.record_scores(self.step, self.scores)
        raise UserError(
            f"the last checkpoint, of step {self.step}, cannot be saved in {self.workdir}; make "
            "room there, then start again to go on from the one before it"
        )

    def finish(self) -> None:
        if self.is_out_of_patience():
            print(
                f"stopped early: no better {self.training.best_metric} in "
                f"{self.training.patience} measurements"
            )
        if bad := len(self.monitor.bad):
            print(f"warning: the last {bad} updates were bad", file=sys.stderr)
        evaluate = f"python evaluate.py --workdir={self.workdir} --split=test"
        print(f"done     {self.step} steps; {evaluate}")
        if distributed.is_first():
            learning_curve(self.workdir / "metrics.jsonl", self.workdir / "learning_curve.png")


def updated_patience(
    patience: dict[str, Any], scores: dict[str, float], best_metric: str
) -> dict[str, Any]:
    """What early stopping knows after a measurement."""
    if best_metric not in scores:
        return patience
    score, best = scores[best_metric], patience["best"]
    if best is None or (score < best if best_metric == "nll" else score > best):
        return {"best": score, "without_better": 0}
    return {"best": best, "without_better": patience["without_better"] + 1}


if __name__ == "__main__":
    cli.run(main, default_config=DEMO)
