"""Flags that say where the work of a command runs, for `prepare` and `train_vocabulary`."""

from absl import flags

flags.DEFINE_integer(
    "workers", 0, "Worker processes; 0 selects a number from the amount of work.", 0
)
flags.DEFINE_string("runner", "", "Apache Beam runner, such as DirectRunner; empty: no Beam.")
flags.DEFINE_list("runner_options", [], "Further Beam options, such as --project=mine.")
