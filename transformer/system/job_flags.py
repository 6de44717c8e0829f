"""The flags of a job of several processes, apart from what joins it: --help needs no JAX."""

from absl import flags

COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "host:port of process 0, for a job of several processes."
)
NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "How many processes the job has.", upper_bound=100_000
)
PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Which of them this one is, from 0.", upper_bound=100_000
)
