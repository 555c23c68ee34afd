"""Trains or fine-tunes: `python -m xlme_jax.train --gin_file=gin_configs/runs/quickstart.gin`."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from xlme_jax import api
from xlme_jax.configuration import command_line
from xlme_jax.validation import shell

if TYPE_CHECKING:  # Errors in flags import no JAX.
    from xlme_jax.training import peers

_COORDINATOR = flags.DEFINE_string(
    "coordinator_address",
    None,
    "host:port of process 0, where --distributed does not detect it: it knows srun, Open MPI 4, "
    "Cloud TPUs and GKE's TPUs.",
)
_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "Number of processes (default: what srun, mpirun or torchrun says)."
)
_PROCESS = flags.DEFINE_integer(
    "process_id", None, "Index of this process (default: what srun, mpirun or torchrun says)."
)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the processes of a detected cluster.")
_PEER_TIMEOUT = flags.DEFINE_integer(
    "peer_timeout", 60, "Seconds without a sign of life from another process that end this one.", 1
)
_STEP_TIMEOUT = flags.DEFINE_integer(
    "step_timeout",
    600,
    "Seconds without a finished step that end a process of several: another one is stuck.",
    1,
)
_PHASE_TIMEOUT = flags.DEFINE_integer(
    "phase_timeout",
    10_800,
    "Seconds without a finished step that end a process of several while it prepares or copies "
    "data, compiles, or evaluates.",
    1,
)
_RESUME_WITH_CHANGES = flags.DEFINE_bool(
    "resume_with_changes",
    False,
    "Resume the run in MODEL_DIR although it was trained with other values of what determines the "
    "weights: its newest checkpoint is continued with those of now. Otherwise that is refused.",
)


def main() -> int:
    """Joins the other processes, builds the configuration and trains.

    From here to the gradient: `api.train`, `runs.assembly.train` (builds what the loop needs),
    `training.loop.train` (the loop), `training.step.make_train_step` (one update).

    Returns:
      The exit code: 0, or EXIT_STOPPED if a signal ended the run early.
    """
    from xlme_jax.training import host_memory, peers
    from xlme_jax.training.stopping import EXIT_STOPPED, StopOnSignal, Stopped, say

    host_memory.keep_freed()
    _keep_compiled_programs()
    if _DISTRIBUTED.value or _COORDINATOR.value:
        peers.join(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _PEER_TIMEOUT.value)
    else:
        peers.check_single(trains=True)
    with (
        StopOnSignal(step_timeout=_STEP_TIMEOUT.value, phase_timeout=_PHASE_TIMEOUT.value) as stop,
        peers.Watch(_PEER_TIMEOUT.value, say) as watch,
        _not_waiting_for_others(watch),
    ):
        peers.check_devices(say)
        config = api.load_config(flags.FLAGS.gin_file, flags.FLAGS.gin_bindings)
        command = shell.join(["python", "-m", "xlme_jax.train", *sys.argv[1:]])
        try:
            api.train(
                config,
                stop=stop,
                command=command,
                resume_with_changes=_RESUME_WITH_CHANGES.value,
            )
        except Stopped as stopped:
            say(str(stopped))
            return EXIT_STOPPED
    return 0


def _keep_compiled_programs() -> None:
    """Lets JAX keep compiled programs for the next start, unless the user has set JAX's cache."""
    import jax

    from xlme_jax.storage.caches import trim, user_cache

    if jax.config.values["jax_compilation_cache_dir"] is None:
        trim(user_cache(), "*-cache")
        jax.config.update("jax_compilation_cache_dir", str(user_cache()))
        # The many small programs of a start together cost as much as a large one.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@contextlib.contextmanager
def _not_waiting_for_others(watch: peers.Watch) -> Iterator[None]:
    """Ends this process at once on an error if the run has several processes.

    A normal exit would wait for the other processes, and these may be waiting for this one. With
    one process, the error is raised as usual.

    Args:
      watch: the watch over the other processes, which is closed first.
    """
    import jax

    from xlme_jax.training import peers
    from xlme_jax.training.stopping import say

    try:
        yield
    except Exception as error:
        if jax.process_count() == 1:
            raise
        watch.close()
        if _is_lost_peer(error):
            say(peers.lost_peers(f"a computation failed ({str(error).splitlines()[0]})"))
            peers.leave(peers.EXIT_LOST_PEERS)
        if not isinstance(error, ValueError):
            traceback.print_exc()
        say(f"Process {jax.process_index()}: {type(error).__name__}: {error}")
        peers.leave(1)


def _is_lost_peer(error: BaseException | None) -> bool:
    """Returns whether an error looks like the loss of another process.

    The first error of JAX's runtime in the chain of causes decides: it is a failed collective,
    unless memory is exhausted. Without such an error, no process is lost.
    """
    import jax

    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            return "RESOURCE_EXHAUSTED" not in str(error)
        error = error.__cause__
    return False


if __name__ == "__main__":
    command_line.run_app(main)
