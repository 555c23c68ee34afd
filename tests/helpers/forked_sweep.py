"""The sweep command, whose runs and evaluations are forked, so that libraries are imported once.

`tiny.run_each("tests.helpers.forked_sweep", flags)` does what `tiny.run_each("sweep", flags)`
does. A run's data must be prepared: training starts a process for it, which imports TensorFlow.
"""

import os
import runpy
import sys
import threading

from absl import flags

from xlme_jax import sweep
from xlme_jax.configuration import command_line
from xlme_jax.studies.sweeps import runner


def run(self, command, log, inherited):
    """Runs a command in a fork; see `Processes.run`."""
    child = os.fork()
    if not child:
        os._exit(_code_of(command, log))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _code_of(command, log):
    """Becomes a command, with its output in a file; returns its exit code."""
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for module, defined in list(flags.FLAGS.flags_by_module_dict().items()):
        if defined and (module.startswith("xlme_jax.") or module == sys.argv[0]):
            for flag in list(defined):
                delattr(flags.FLAGS, flag.name)
            sys.modules.pop(module, None)
            package, _, name = module.rpartition(".")
            if package in sys.modules and hasattr(sys.modules[package], name):
                delattr(sys.modules[package], name)
    _, _, module, *arguments = command
    sys.argv = [module, *arguments]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 1


if __name__ == "__main__":
    runner.Processes.run = run
    command_line.run_app(sweep.main, arguments=True)
