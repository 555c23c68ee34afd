"""Ctrl-C, kills, read-only folders and a clock that jumps: every command, at several moments.

Training itself is in test_signals.py and test_faults.py.
"""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from helpers import commands, hf_folders, tiny

# Seconds after which a command that was interrupted hangs.
DEADLINE = 30
# Shares of the time that a command takes undisturbed.
MOMENTS = (0.35, 0.5, 0.65, 0.8, 0.9)
SWEEP = {"TRAIN_STEPS": 6, "CHECKPOINT_EVERY": 2, "Loop__evaluate_every": 100}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Returns a folder with what the commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    hf_folders.write_checkpoint(folder / "run", "xlme", steps=(7, 8, 9))
    hf_folders.write_checkpoint(folder / "translator", "translate", Encoder__num_layers=2)
    hf_folders.write_xlmr(folder / "hf")
    tiny.write_tiny_data(folder / "data")
    sentences = [f"abc {'de' * (1 + n % 5)} h{n}" for n in range(100)]
    for language in ("spa", "eng"):
        path = folder / "benchmarks" / "tatoeba" / f"tatoeba.spa-eng.{language}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(sentences) + "\n")
    for name in ("reference", "first", "second"):
        (folder / f"{name}.txt").write_text("\n".join(f"{s} {name}" for s in sentences * 20))
    return folder


def arguments(command, inputs, output):
    """Returns the arguments of a command that writes `output`."""
    texts = ",".join(str(inputs / f"{name}.txt") for name in ("reference", "first", "second"))
    training = tiny.flags(output, inputs / "data", "xlm", **SWEEP)
    given = {
        "prepare": ["--tasks=cldr", "--languages=en,el,tr", f"--output={output}"],
        "train_vocabulary": ["--tasks=cldr", "--size=1200", f"--output={output}/v.model"],
        "export": [f"--checkpoint={inputs / 'run'}", f"--output={output}/e"],
        "average": [f"--checkpoint={inputs / 'run'}", "--last=3", f"--output={output}/a"],
        "import_hf": [f"--source={inputs / 'hf'}", f"--output={output}/h"],
        "evaluate": [
            f"--checkpoint={inputs / 'run'}",
            "--tasks=tatoeba",
            f"--data={inputs / 'benchmarks'}",
            f"--output={output}",
        ],
        "report": [f"--translations={texts}", f"--output={output}"],
        "translate": [
            f"--checkpoint={inputs / 'translator'}",
            f"--source={inputs / 'first.txt'}",
            "--target=fr",
            f"--output={output}/translations.txt",
        ],
        "inspect": [*training, "--step=3", f"--output={output}/page.html"],
        "sampling": [f"--data={inputs / 'data'}", "--alpha=0.9", f"--output={output}/a.png"],
        "sweep": [*training, "--seeds=2", f"--output={output}"],
        "train": training,
        "demo": [f"--checkpoint={inputs / 'run'}", "--port=0"],
    }
    return given[command]


COMMANDS = [
    "prepare",
    "train_vocabulary",
    "export",
    "average",
    "import_hf",
    "evaluate",
    "report",
    "translate",
    "inspect",
    "sampling",
    "sweep",
    "train",
]


def start(command, given, log, variables=None):
    """Starts a command in a process group of its own, as a terminal does."""
    return commands.Command(
        given,
        log.parent,  # No MODEL_DIR; what looks into it is not used.
        log,
        variables=variables,
        python=("-m", f"xlme_jax.{command}"),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(process, timeout=commands.HANG):
    """Waits for all processes of a command to end; returns its exit code."""
    try:
        return process.end(timeout)
    except subprocess.TimeoutExpired:
        send(process, signal.SIGKILL)
        raise AssertionError(f"it hangs:\n{process.said()}") from None


def send(process, number):
    os.killpg(process.process.pid, number)


def differences(folder, expected):
    """Lists how what a command wrote differs from that of an undisturbed one, but for times."""
    runs = [manifest.parent for manifest in sorted(expected.rglob("manifest.json"))]
    names = [run.relative_to(expected) for run in runs]
    files, expected_files = _files(folder, names), _files(expected, names)
    return [
        *(text for name in names for text in commands.differences(folder / name, expected / name)),
        *sorted(files.keys() ^ expected_files.keys()),
        *(
            name
            for name in files.keys() & expected_files.keys()
            if files[name] != expected_files[name]
        ),
    ]


def _files(folder, runs):
    """Returns {file or array: bytes} of a folder without its runs."""
    checkpoints = sorted(path.parent for path in folder.rglob("files.json"))
    inner = [*checkpoints, *(folder / run for run in runs)]
    files = {
        str(path.relative_to(folder)): _timeless(path, folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.name.startswith(".")
        and path.suffix not in (".log", ".html", ".png", ".vm", ".md")
        and not any(other in path.parents for other in inner)
    }
    of_no_run = [
        path for path in checkpoints if not any(folder / run in path.parents for run in runs)
    ]
    return files | {
        f"{checkpoint.relative_to(folder)}/{name}": array
        for checkpoint in of_no_run
        for name, array in commands.bits(checkpoint).items()
    }


def _timeless(path, folder):
    text = path.read_bytes().replace(str(folder).encode(), b"")
    measured = r"started|\w*seconds\w*|tokens_per_second|mfu|date|time|created|command|sha256"
    return re.sub(rf'"({measured})": ?[^,}}\n]+'.encode(), b"", text)


@pytest.fixture(scope="module")
def undisturbed(inputs, tmp_path_factory):
    """Returns a function: command -> its output folder, and the seconds that it took."""
    known = {}

    def run(command):
        if command not in known:
            seconds = []
            for _ in range(2):  # The first one reads and compiles what the next ones find cached.
                folder = tmp_path_factory.mktemp("undisturbed") / "out"
                folder.mkdir()
                begin = time.monotonic()
                process = start(command, arguments(command, inputs, folder), folder.parent / "log")
                assert end(process) == 0, process.said()
                seconds.append(time.monotonic() - begin)
            known[command] = folder, min(seconds)
        return known[command]

    return run


def disturb(command, inputs, folder, number, seconds):
    """Sends a signal to all processes of a command; returns exit code, seconds, output."""
    folder.mkdir(exist_ok=True)
    process = start(command, arguments(command, inputs, folder), folder.parent / "log")
    time.sleep(seconds)
    begin = time.monotonic()
    if process.process.poll() is None:
        send(process, number)
    return end(process, DEADLINE), time.monotonic() - begin, process.said()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_and_the_same_one_completes(inputs, undisturbed, tmp_path, command, number):
    expected, seconds = undisturbed(command)
    folder, codes = tmp_path / "out", []
    for moment in MOMENTS:
        code, taken, said = disturb(command, inputs, folder, number, moment * seconds)
        codes.append(code)
        assert taken < DEADLINE
        if code == 0:
            break
        if number == signal.SIGINT:
            assert code in (75, 130, -signal.SIGINT), said
            # While Python imports, nothing is written, and Python says that it was interrupted.
            assert "Traceback" not in said or "run_app" not in said, said
    assert codes[0] != 0, "it was over before it was interrupted"
    if codes[-1] != 0:
        again = start(command, arguments(command, inputs, folder), tmp_path / "log")
        # The last one may have ended between its work and its exit.
        done = end(again) == 0 or "already" in again.said()
        assert done, (codes, again.said())
    print(f"\n{command} {number.name}: {codes}, {seconds:.1f} s undisturbed")
    assert differences(folder, expected) == [], codes


@pytest.mark.slow
def test_the_demo_ends_at_ctrl_c(inputs, tmp_path):
    demo = start("demo", arguments("demo", inputs, tmp_path), tmp_path / "log")
    assert demo.until_said("http://"), demo.said()
    send(demo, signal.SIGINT)
    assert end(demo, DEADLINE) in (0, 130)
    assert "Traceback" not in demo.said()


# A library that shifts the clock a day ahead 12 seconds after the start, and back 6 seconds later.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

typedef int (*clock_function)(clockid_t, struct timespec *);

static clock_function real(void) {
  static clock_function function;
  if (!function) function = (clock_function)dlsym(RTLD_NEXT, "clock_gettime");
  return function;
}

static long shift(void) {
  static time_t start;
  struct timespec now;
  real()(CLOCK_MONOTONIC, &now);
  if (!start) start = now.tv_sec;
  long passed = now.tv_sec - start;
  return passed < 12 ? 0 : passed < 18 ? 86400 : -86400;
}

int clock_gettime(clockid_t id, struct timespec *time) {
  int result = real()(id, time);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) time->tv_sec += shift();
  return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}
"""


@pytest.fixture
def jumping_clock(tmp_path):
    """Returns environment variables for a process whose clock jumps."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["prepare", "sweep", "train"])
def test_a_clock_that_jumps_changes_nothing(inputs, undisturbed, tmp_path, jumping_clock, command):
    expected, _ = undisturbed(command)
    folder = tmp_path / "out"
    folder.mkdir()
    given = arguments(command, inputs, folder)
    process = start(command, given, tmp_path / "log", jumping_clock)
    assert end(process) == 0, process.said()
    assert differences(folder, expected) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["prepare", "train"])
def test_of_two_writers_one_waits_or_is_refused(inputs, undisturbed, tmp_path, command):
    expected, _ = undisturbed(command)
    folder = tmp_path / "out"
    folder.mkdir()
    given = arguments(command, inputs, folder)
    pair = [start(command, given, tmp_path / f"log{n}") for n in range(2)]
    codes = [end(process) for process in pair]
    if command == "train":
        assert sorted(codes) == [0, 1]
        assert "is in use by another run" in pair[codes.index(1)].said()
    else:
        assert codes == [0, 0], [process.said() for process in pair]
    assert differences(folder, expected) == []


@pytest.fixture
def read_only(small_disk, inputs):
    """Returns a read-only disk with a copy of `inputs` and an empty folder `out`."""
    disk = small_disk("200m")
    shutil.copytree(inputs, disk / "inputs")
    (disk / "out").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    return disk


@pytest.mark.slow
def test_read_only_folders(inputs, tmp_path, read_only):
    """What cannot be written is named in one line; what is only read need not be writable."""
    for command in COMMANDS:
        given = arguments(command, inputs, read_only / "out")
        refused = start(command, given, tmp_path / "log")
        assert end(refused) == 1, refused.said()
        assert "Traceback" not in refused.said()
        last = refused.said().strip().splitlines()[-1]
        assert "Error: " in last and str(read_only) in last, last
    home = {"HOME": str(read_only), "XDG_CACHE_HOME": str(read_only / "cache")}
    for command in COMMANDS:
        output = tmp_path / command
        output.mkdir()
        given = arguments(command, read_only / "inputs", output)
        reader = start(command, given, tmp_path / "log", home)
        assert end(reader) == 0, reader.said()
