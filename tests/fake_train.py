"""A train command without training, for tests of the sweep: `python fake_train.py --gin.X=Y ...`.

It writes the files of a run of two steps, with "dev/score" = 10 X + SEED. X = 'fails' fails;
X = 'waits' waits for a signal and exits like a stopped run.
"""

import ast
import json
import os
import signal
import sys
import time
from pathlib import Path

flags = dict(arg.split("=", 1) for arg in sys.argv[1:])
values = {
    name.removeprefix("--gin."): ast.literal_eval(value)
    for name, value in flags.items()
    if name.startswith("--gin.")
}
folder, x = Path(values["MODEL_DIR"]), values["X"]
folder.mkdir(parents=True, exist_ok=True)
with open(folder / "starts", "a") as file:
    file.write(f"{os.getpid()} {sys.argv[1:]}\n")
if x == "fails":
    sys.exit("nothing works")
if x == "waits" and not (folder / "go_on").exists():
    signals = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    (folder / "waiting").touch()
    while not signals and not (folder / "go_on").exists():
        time.sleep(0.01)
    if signals:
        (folder / "signals").write_text(str([int(number) for number in signals]))
        sys.exit(75)
score = 10 * (x if isinstance(x, int) else 0) + values["SEED"]
with open(folder / "metrics.jsonl", "w") as file:
    for step in (1, 2):
        file.write(json.dumps({"step": step, "loss": 1 / step, "dev/score": score * step / 2}))
        file.write("\n")
(folder / "checkpoints" / "2").mkdir(parents=True)
(folder / "checkpoints" / "2" / "files.json").write_text("{}")
