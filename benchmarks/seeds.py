"""Several seeds of one config: trains, evaluates and records each, and says mean and deviation.

    python benchmarks/seeds.py configs/multi30k_tiny.py --seeds=1,2,3 --average_last=10
    python benchmarks/seeds.py configs/multi30k_tiny.py --seeds=1,2,3 --together=3 \\
        --results=OUT/results --export=OUT/models -- --config.model.dtype=bfloat16

What stands behind -- goes to train.py. Each seed gets the work directory RUNS/<name>-<seed>,
logs beside it, and the result RESULTS/<name>-<seed>.json for the ledger; --export puts what was
tested into EXPORT/<name>-<seed>, which is small. The same command again goes on where it was
stopped; a seed that has a result is left alone, whatever the flags say now.
--together trains as many at once, which a GPU is the better for with small models.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from transformer.reports import ledger
from transformer.reports.results_page import mean_and_deviation
from transformer.runs.provenance import ROOT
from transformer.system.errors import UserError


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path, help="a file of configs/")
    parser.add_argument("--seeds", type=numbers, default="1,2,3", help="with commas between them")
    parser.add_argument("--name", help="of the runs; that of the config if none")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where they live")
    parser.add_argument("--results", type=Path, default=Path("results"), help="for the ledger")
    parser.add_argument("--split", default="test", help="splits to test, with commas between them")
    parser.add_argument("--average_last", type=int, help="checkpoints; evaluate.py's if none")
    parser.add_argument("--export", type=Path, help="where to put what translates, without more")
    parser.add_argument("--together", type=int, default=1, help="how many to train at once")
    parser.epilog = "What stands behind -- goes to train.py."
    own = sys.argv[1:]
    end = own.index("--") if "--" in own else len(own)
    args, flags = parser.parse_args(own[:end]), own[end + 1 :]
    name = args.name or args.config.stem
    environment = dict(os.environ)
    if args.together > 1:  # each would take three quarters of a GPU's memory
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

    def call(workdir: Path, script: str, *flags: str) -> None:
        workdir.parent.mkdir(parents=True, exist_ok=True)
        log = workdir.with_name(f"{workdir.name}.{script}.log")
        command = [sys.executable, str(ROOT / f"{script}.py"), f"--workdir={workdir}", *flags]
        with log.open("a") as stream:
            code = subprocess.call(command, stdout=stream, stderr=stream, env=environment)
        if code:
            last = log.read_text().strip().rpartition("\n")[2]
            raise RuntimeError(f"{script}.py ended with exit code {code}; see {log}: {last}")

    def result_of(seed: int) -> Path:
        result = args.results / f"{name}-{seed}.json"
        workdir = args.runs / f"{name}-{seed}"
        if not result.exists():
            config = [f"--config={args.config.resolve()}", f"--config.training.seed={seed}"]
            call(workdir, "train", *config, *flags)
            average = [f"--average_last={args.average_last}"] if args.average_last else []
            call(workdir, "evaluate", f"--split={args.split}", *average, f"--record={result}")
        exported = args.export and args.export / workdir.name
        if exported and workdir.exists() and not exported.exists():
            tested = ledger.read(result)
            chosen = [f"--checkpoint={tested['checkpoint']}"]
            if tested["checkpoint"] == "average":
                chosen.append(f"--average_last={len(tested['checkpoint_steps'])}")
            call(workdir, "evaluate", *chosen, f"--export={exported}")
        return result

    # 1. All of the runs, whatever becomes of the others.
    results, failed = {}, False
    with ThreadPoolExecutor(args.together) as pool:
        futures = {seed: pool.submit(result_of, seed) for seed in args.seeds}
        for seed, future in futures.items():
            try:
                results[seed] = ledger.read(future.result())
            except KeyboardInterrupt:  # train.py, which Ctrl-C reaches as well, saves and ends
                pool.shutdown(cancel_futures=True)
                raise SystemExit(130) from None
            except (RuntimeError, UserError) as error:
                print(f"seed {seed}: {error}", file=sys.stderr)
                failed = True
                continue
            splits = results[seed]["splits"]
            scores = [f"{s} {entry['scores']['bleu']['score']:.2f}" for s, entry in splits.items()]
            print(f"seed {seed}: BLEU {', '.join(scores)}", flush=True)

    # 2. Mean and standard deviation.
    for split in next(iter(results.values()), {"splits": {}})["splits"]:
        found = [r["splits"][split]["scores"]["bleu"]["score"] for r in results.values()]
        print(f"{split}: BLEU {mean_and_deviation(found)}, {len(found)} seeds")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
