"""A train command without training, for tests of the sweep: `python fake_train.py --gin.X=Y ...`.

It writes the files of a run of two steps, with "dev/score" = 10 X + SEED, which is
also the accuracy on XNLI in English; that in German is the opposite. X = 'fails' fails;
X = 'waits' waits for a signal and exits like a stopped run. A folder in use is refused.
"""

import ast
import atexit
import json
import os
import signal
import sys
import time

from xlme_jax.storage import locks
from xlme_jax.storage.paths import as_path

flags = dict(arg.split("=", 1) for arg in sys.argv[1:])
values = {
    name.removeprefix("--gin."): ast.literal_eval(value)
    for name, value in flags.items()
    if name.startswith("--gin.")
}
folder = as_path(values["MODEL_DIR"])
# Along a run, the step that it starts from.
x = values["X"] if "X" in values else int(values["INIT_FROM"].split("/")[-1])
folder.mkdir(parents=True, exist_ok=True)


def refuse():
    sys.exit("in use by another run")


lock = locks.hold(folder / locks.LOCK_FILE, refuse)
lock.__enter__()
atexit.register(lock.__exit__, None, None, None)
starts = folder / "starts"
before = starts.read_text() if starts.exists() else ""
starts.write_text(f"{before}{os.getpid()} {sys.argv[1:]}\n")
if x == "fails":
    sys.exit("nothing works")
if x == "waits" and not (folder / "go_on").exists():
    signals = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    (folder / "waiting").write_text("")
    deadline = time.monotonic() + 900
    while not signals and not (folder / "go_on").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    if signals:
        (folder / "signals").write_text(str([int(number) for number in signals]))
        sys.exit(75)
score = 10 * (x if isinstance(x, int) else 0) + values["SEED"]
lines = [
    {
        "step": step,
        "loss": 1 / step,
        "dev/score": score * step / 2,
        "eval/xnli/accuracy/en": score * step / 2,
        "eval/xnli/accuracy/de": -score * step / 2,
    }
    for step in (1, 2)
]
(folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
(folder / "checkpoints" / "2").mkdir(parents=True)
(folder / "checkpoints" / "2" / "files.json").write_text("{}")
