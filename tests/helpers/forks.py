"""Starts Python processes as copies of one that has imported their libraries.

To import JAX, Flax, Optax and Orbax takes seconds, to fork a process milliseconds. A copy is a
child of this process as any other: `Popen` waits for it, signals it and reads its output.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types

from absl import flags

_SET_CHILD_SUBREAPER = 36
# Variables that no library reads when it is imported, and PYTHONPATH, which a copy reads again.
_READ_LATER = (
    *("XLA_FLAGS", "PJRT_NPROC", "HOME", "XDG_CACHE_HOME", "PYTEST_CURRENT_TEST", "PYTHONPATH"),
    *("JAX_COORDINATOR_PORT", "JAX_LOCAL_DEVICE_IDS", "CUDA_VISIBLE_DEVICES"),
)
# Of launchers, whose variables JAX reads when processes join.
_PREFIXES_READ_LATER = ("SLURM_", "OMPI_", "PMI")


class Server:
    """A process that imports modules and makes copies of itself; ends with this process.

    Args:
      variables: its environment variables.
    """

    def __init__(self, variables):
        self._variables = variables
        self.requests, other = socket.socketpair()
        self.answers = self.requests.makefile()
        with other:
            code = f"from tests.helpers import forks; forks._serve({other.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], env=variables, pass_fds=[other.fileno()]
            )

    def suits(self, variables):
        """Returns whether what the libraries read when they were imported is the same."""
        return read_early(variables) == read_early(self._variables)


def read_early(variables):
    """Returns the variables that libraries may read when they are imported."""
    return {
        name: value
        for name, value in variables.items()
        if name not in _READ_LATER and not name.startswith(_PREFIXES_READ_LATER)
    }


class Popen(subprocess.Popen):
    """A copy of the process of a server that runs `-m MODULE` or `-c TEXT` instead of Python.

    Args:
      server: a `Server`.
      modules: what it imports first and its later copies have, too.
      changes: what this copy imports, too.
      arguments: arguments of Python.
      options: options of `subprocess.Popen`, of those that choose files, variables and sessions.
    """

    def __init__(self, server, modules, changes, arguments, **options):
        self._server, self._modules, self._changes = server, modules, changes
        super().__init__(list(map(str, arguments)), **options)

    def _execute_child(self, *arguments):
        parameters = inspect.signature(subprocess.Popen._execute_child)
        given = parameters.bind(self, *arguments).arguments
        assert not (given["preexec_fn"] or given["pass_fds"] or given["process_group"] != -1)
        files = {0: given["p2cread"], 1: given["c2pwrite"], 2: given["errwrite"]}
        request = {
            "modules": self._modules,
            "changes": self._changes,
            "arguments": given["args"],
            "folder": os.path.abspath(given["cwd"] or "."),
            "variables": dict(os.environ if given["env"] is None else given["env"]),
            "session": given["start_new_session"],
        }
        requests = self._server.requests
        # An orphan becomes a child of its nearest ancestor that asked for orphans.
        _adopt(True)
        try:
            taken = [number if file == -1 else file for number, file in files.items()]
            socket.send_fds(requests, [b"-"], taken)
            requests.sendall(json.dumps(request).encode() + b"\n")
            answer = self._server.answers.readline()
        finally:
            _adopt(False)
        assert answer, "the process that makes copies of itself has ended"
        self.pid, self._child_created = int(answer), True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))


def _adopt(wanted):
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def _serve(number):
    """Answers requests for copies until the other end of the socket is closed."""
    requests = socket.socket(fileno=number)
    lines = requests.makefile()
    while True:
        _, files, _, _ = socket.recv_fds(requests, 1, 3)
        if not files:
            os._exit(0)  # The other end is closed.
        request = json.loads(lines.readline())
        for module in request["modules"]:
            importlib.import_module(module)
        _forget_flags()
        # Copies collect no garbage among what was imported, and among the rest more rarely.
        gc.freeze()
        gc.set_threshold(5_000, 20, 50)
        assert threading.active_count() == 1, threading.enumerate()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                requests.sendall(str(child).encode())
                os._exit(0)  # Its child is an orphan.
            requests.close()
            lines.close()
            _become(request, files)
        os.waitpid(between, 0)
        requests.sendall(b"\n")
        for file in files:
            os.close(file)


def _forget_flags():
    """Makes copies import anew what defines flags: other modules define the same names."""
    for name, defined in list(flags.FLAGS.flags_by_module_dict().items()):
        if defined and name.startswith("xlme_jax."):
            for flag in list(defined):
                delattr(flags.FLAGS, flag.name)
            package, _, last = name.rpartition(".")
            delattr(sys.modules[package], last)
            del sys.modules[name]


def _become(request, files):
    """Runs what a request asks for, and ends as Python ends, without freeing all modules."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    (kind, what, *rest), code = request["arguments"], 0
    for module in request["changes"]:
        importlib.import_module(module)
    try:
        if kind == "-m":
            sys.argv = [what, *rest]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [kind, *rest]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), vars(main))
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            file.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)
