"""Trains a model: flags -> config -> data -> loop.

    python train.py                                              the demo
    python train.py --config=configs/base.py --workdir=runs/base
    python train.py --config=configs/base.py --config.model.num_heads=16 --workdir=runs/h16

A second start with the same --workdir continues where the first one stopped.
"""

if __name__ == "__main__":
    from transformer.startup import use_huge_pages

    use_huge_pages()  # before JAX is imported

import contextlib
import math
import time
from pathlib import Path
from typing import Any

import jax
from absl import flags
from ml_collections import config_flags

from transformer import cli, experiment
from transformer.batching import PackedPairs, TrainingBatches, evaluation_batches, layout
from transformer.checkpoint import Checkpoints
from transformer.errors import UserError
from transformer.evaluation import mean_nll, translate_source
from transformer.experiment import Experiment
from transformer.flops import peak_flops, training_flops
from transformer.logs import MetricsWriter, Progress
from transformer.model import num_params, transformer
from transformer.optimizer import learning_rate, optimizer
from transformer.plots import learning_curve
from transformer.prefetch import prefetch
from transformer.scores import bleu
from transformer.sharding import data_mesh, replicated, split_rows
from transformer.sources import open_source
from transformer.token_cache import token_cache
from transformer.tokenizer import get_tokenizers
from transformer.training import StepMetrics, init_state, make_nll_step, make_train_step
from transformer.translation import Translator

DEMO = Path(__file__).parent / "configs" / "demo.py"

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config file; configs/demo.py if none."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Where the run lives; runs/<name of the config>.")


def main() -> None:
    config_path = Path(config_flags.get_config_filename(flags.FLAGS["config"]))
    if not config_path.is_file():  # config_flags would say so at the first use, at length
        raise UserError(f"there is no config file {config_path}; see configs/")
    workdir = Path(WORKDIR.value or Path("runs") / config_path.stem)
    train(Experiment.from_dict(CONFIG.value.to_dict()), workdir)


def train(config: Experiment, workdir: Path) -> None:
    """Trains to the end, from the newest checkpoint if there is one."""
    start_time = time.monotonic()
    experiment.check_workdir(workdir, config)
    mesh = data_mesh()
    training, language = config.training, config.data.target_language

    # 1. Data: text -> tokenizer -> token cache -> packed rows. What is wrong with the user's
    #    input shows in sections 1 and 2, before anything is written to the work directory.
    print(f"data     preparing it, in {config.data.data_dir} if new", flush=True)
    train_source = open_source(config.data, "train")
    validation_source = open_source(config.data, "validation")
    bleu(["a"], ["a"], language)  # a language without a tokenizer shows now, not hours later
    print(f"data     {train_source.describe()}; tokenising them if new", flush=True)
    tokenizers = get_tokenizers(workdir, config.tokenizer, train_source)
    widths = config.data.max_source_length, config.data.max_target_length
    cache_dir = Path(config.data.data_dir).expanduser() / "token_cache"
    train_pairs = token_cache(train_source, tokenizers, cache_dir, *widths)
    print(f"data     {train_pairs.summary}", flush=True)
    validation_pairs = token_cache(validation_source, tokenizers, cache_dir, None, None)
    packed = PackedPairs(train_pairs, *widths, seed=training.seed)
    rows = layout(training.tokens_per_update, training.max_tokens_per_device, *widths, mesh.size)
    batches = TrainingBatches(packed, rows, training.seed)
    validation_batches = list(
        evaluation_batches(validation_pairs, *widths, rows.rows_per_step, mesh.size)
    )

    # 2. The model and its optimizer, at the newest checkpoint.
    vocab_sizes = [tokenizer.vocab_size for tokenizer in tokenizers]
    model = transformer(config.model, *vocab_sizes)
    adam = optimizer(config.model.d_model, config.optimizer)
    experiment.save(workdir, config)
    tokenizers.save(workdir)
    checkpoints = Checkpoints(
        workdir, keep_last=training.keep_last, best_metric=training.best_metric
    )
    state = jax.jit(
        lambda: init_state(model, adam, training.seed), out_shardings=replicated(mesh)
    )()
    notes = {"best": None, "without_better": 0}
    if restored := checkpoints.restore_last(state):
        state, notes = restored
    step = int(state.step)

    # 3. Compilation, and a first run of the validation step: its rows are as long as the
    #    longest validation sentence, and what does not fit in memory is to show now.
    def load_batch(step: int):
        batch = batches[step]
        return jax.device_put(batch, split_rows(mesh, axis=1)), batch.num_tokens

    compilation_start = time.monotonic()
    train_step = (
        make_train_step(model, adam, training, mesh).lower(state, load_batch(step)[0]).compile()
    )
    nll_step = make_nll_step(model, mesh)
    mean_nll(nll_step, state.params, validation_batches[:1])
    compilation_seconds = time.monotonic() - compilation_start
    translator = Translator(model, tokenizers, config.decoding, mesh)

    peak = peak_flops(mesh.devices.flat[0], config.model.dtype)
    lengths = train_pairs.source_lengths, train_pairs.target_lengths
    flops = training_flops(config.model, vocab_sizes[-1], *lengths).sum()
    flops_per_token = flops / packed.num_tokens

    print(
        f"batches  {rows.rows} rows of {widths[0]} + {widths[1]} tokens, {packed.fill:.1%} full, "
        f"{batches.updates_per_epoch:.1f} updates an epoch; on {mesh.size} "
        f"{mesh.devices.flat[0].platform} device(s) {rows.accumulation} x {rows.rows_per_step} rows"
    )
    print(
        f"model    {num_params(state.params):,} parameters, vocabulary of "
        + " and ".join(f"{size:,}" for size in sorted(set(vocab_sizes)))
    )
    print(
        f"start    at step {step} of {training.steps}, after {time.monotonic() - start_time:.1f} s "
        f"({compilation_seconds:.1f} s of them compilation)",
        flush=True,
    )

    # 4. The loop. Metrics stay on the device until they are logged, so that it never waits.
    with (
        contextlib.closing(checkpoints),
        MetricsWriter(workdir, first_step=step) as metrics,
        Progress(training.steps, initial=step) as progress,
        contextlib.closing(prefetch(load_batch, range(step, training.steps))) as loaded,
    ):
        window = Window()
        while step < training.steps and not out_of_patience(notes, training.patience):
            wait_start = time.monotonic()
            batch, num_tokens = next(loaded)
            window.wait += time.monotonic() - wait_start
            state, step_metrics = train_step(state, batch)
            window.add(step_metrics, num_tokens)
            step += 1

            at_checkpoint = step % training.checkpoint_every == 0 or step == training.steps
            # At checkpoints too: nothing is saved unchecked, and no window spans a resume.
            if step % training.log_every == 0 or at_checkpoint:
                values = window.summary()
                if not math.isfinite(values["train/loss"]):
                    raise UserError(
                        f"the loss is {values['train/loss']} at step {step}; start again in "
                        "another --workdir with a lower optimizer.learning_rate_scale, a longer "
                        "optimizer.warmup_steps, or optimizer.max_grad_norm"
                    )
                rate = learning_rate(step, config.model.d_model, config.optimizer)
                values["train/learning_rate"] = float(rate)
                if peak is not None:
                    flops_per_second = flops_per_token * values["train/tokens_per_second"]
                    values["train/mfu"] = flops_per_second / (peak * mesh.size)
                metrics.write(step, values)
                progress.update(
                    step,
                    loss=values["train/loss"],
                    tokens_per_second=values["train/tokens_per_second"],
                )
                window = Window()

            if at_checkpoint:
                scores = {"nll": mean_nll(nll_step, state.params, validation_batches)}
                with_bleu = training.bleu_every and (
                    step % training.bleu_every == 0 or step == training.steps
                )
                if with_bleu:
                    translations = translate_source(translator, state.params, validation_source)
                    scores["bleu"] = translations.bleu(language)
                    progress.print(f"step {step}, validation:\n{translations.examples(3)}")
                metrics.write(step, {f"eval/validation/{k}": v for k, v in scores.items()})
                shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
                progress.print(f"step {step}: validation {shown}")
                notes = updated_notes(notes, scores, training.best_metric)
                checkpoints.save(state, scores, notes)
                window = Window()
    if out_of_patience(notes, training.patience):
        print(
            f"stopped early: no better {training.best_metric} in {training.patience} measurements"
        )
    print(f"done     {step} steps; python evaluate.py --workdir={workdir} --split=test")
    learning_curve(workdir / "metrics.jsonl", workdir / "learning_curve.png")


class Window:
    """The updates since the last line of the log."""

    def __init__(self):
        self.start = time.monotonic()
        self.wait = 0.0  # seconds spent waiting for input
        self.tokens = 0  # source and target, padding excluded
        self.metrics: list[StepMetrics] = []

    def add(self, metrics: StepMetrics, num_tokens: int) -> None:
        self.metrics.append(metrics)
        self.tokens += num_tokens

    def summary(self) -> dict[str, float]:
        """The values to log; waits for the device to finish the updates."""
        metrics = jax.device_get(self.metrics)
        seconds = time.monotonic() - self.start
        target_tokens = sum(int(m.tokens) for m in metrics)
        return {
            "train/loss": sum(float(m.loss) for m in metrics) / target_tokens,
            "train/nll": sum(float(m.nll) for m in metrics) / target_tokens,
            "train/grad_norm": sum(float(m.grad_norm) for m in metrics) / len(metrics),
            "train/tokens_per_second": self.tokens / seconds,
            "input/wait_ms": 1000 * self.wait / len(metrics),
        }


def updated_notes(
    notes: dict[str, Any], scores: dict[str, float], best_metric: str
) -> dict[str, Any]:
    """The notes for early stopping after a measurement."""
    if best_metric not in scores:
        return notes
    score, best = scores[best_metric], notes["best"]
    if best is None or (score < best if best_metric == "nll" else score > best):
        return {"best": score, "without_better": 0}
    return {"best": best, "without_better": notes["without_better"] + 1}


def out_of_patience(notes: dict[str, Any], patience: int) -> bool:
    return 0 < patience <= notes["without_better"]


if __name__ == "__main__":
    cli.run(main, default_config=DEMO)
