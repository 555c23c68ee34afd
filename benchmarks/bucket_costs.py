"""Measures what a run in a bucket waits for, against an emulator in another process.

    python benchmarks/bucket_costs.py data
    python benchmarks/bucket_costs.py checkpoint

`data`: batches of the training pipeline, from a data set of `input.py` in the bucket, whose server
adds `--latency` seconds to each request. A step is a pause of the time that a batch takes at
`--rate` tokens a second; what `next` takes beyond it is waiting. Measured with the local copies
that training makes (`Train.data_cache`), whose copying is reported too, and without.

`checkpoint`: seconds that saving a checkpoint of `xlm_base.gin` holds up the step, and seconds
until it is complete, on a disk and in the bucket in turn. The server keeps objects on the same
disk.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.buckets import Bucket, copy_folder, emulated_bucket


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["data", "checkpoint"])
    parser.add_argument("--latency", type=float, nargs="+", default=[0.02, 0.1])
    parser.add_argument("--rate", type=float, default=1e6, help="Tokens a second of a step.")
    parser.add_argument("--tasks", type=int, default=300, help="Number of bitext tasks.")
    parser.add_argument("--pairs", type=int, default=150, help="Median pairs per task.")
    parser.add_argument("--rows", type=int, default=128, help="Rows per stream.")
    parser.add_argument("--length", type=int, default=512, help="Tokens per row.")
    parser.add_argument("--batches", type=int, default=100, help="Batches with local copies.")
    parser.add_argument("--uncached", type=int, default=1, help="Batches without.")
    parser.add_argument("--layers", type=int, default=12, help="Layers of the checkpoint's model.")
    parser.add_argument("--vocabulary", type=int, default=250_002, help="Its vocabulary.")
    parser.add_argument("--repeats", type=int, default=3, help="Checkpoints of each kind.")
    parser.add_argument("--output", help="By default benchmarks/results/bucket_WHAT.json.")
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cache is not None:
        print(json.dumps(_wait_for_batches(options)), flush=True)
        return
    about = machine.describe("gcsfs", "orbax-checkpoint", "array_record", "grain")
    with emulated_bucket() as server:
        found = (_data if options.what == "data" else _checkpoints)(options, server)
    output = options.output or f"benchmarks/results/bucket_{options.what}.json"
    machine.write(output, {**about, "options": vars(options), "results": found})


# --- Data. ---


def _data(options: argparse.Namespace, server: Bucket) -> list[dict[str, Any]]:
    from input import write

    from xlme_jax.storage.paths import as_path

    found = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        sizes = write(data, options.tasks, options.pairs)
        copy_folder(data, as_path("gs://bucket/data"))
        for latency in options.latency:
            server.inject(latency=latency)
            for cached in (True, False):
                cache = Path(folder) / f"cache-{latency}" if cached else ""
                row = {"latency": latency, "local copies": cached, "bytes": sizes["bytes"]}
                found.append(row | _in_a_process(options, cache))
                print(" ", found[-1], flush=True)
    return found


def _in_a_process(options: argparse.Namespace, cache: Path | str) -> dict[str, float]:
    # Of its own, because its threads end only after the batch that they are reading.
    names = ("rate", "rows", "length", "batches", "uncached")
    given = [f"--{name}={getattr(options, name)}" for name in names]
    command = [sys.executable, __file__, "data", f"--cache={cache}", *given]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def _wait_for_batches(options: argparse.Namespace) -> dict[str, float]:
    """Returns seconds until the first batch and the share of time that steps wait for the next."""
    from xlme_jax.data.batches.pipeline import make_iterator
    from xlme_jax.data.batches.streams import PairStream, TextStream
    from xlme_jax.data.prepared import PreparedDataset

    begin = time.monotonic()
    dataset = PreparedDataset.load("gs://bucket/data")
    if options.cache:
        dataset.copy_from_bucket(options.cache)
    copied = time.monotonic() - begin
    streams = [
        PairStream("bitext", options.rows, options.length),
        TextStream("text", options.rows, options.length),
    ]
    batches = make_iterator(dataset, streams, seed=0)
    next(batches)
    first = time.monotonic() - begin
    waited, begin = 0.0, time.monotonic()
    count = options.batches if options.cache else options.uncached
    for _ in range(count):
        asked = time.monotonic()
        next(batches)
        waited += time.monotonic() - asked
        time.sleep(len(streams) * options.rows * options.length / options.rate)
    share = waited / (time.monotonic() - begin)
    batches.close()
    return {
        "opening and copying, s": round(copied, 2),
        "first batch after, s": round(first, 2),
        "batches": count,
        "share of time waiting": round(share, 4),
    }


# --- Checkpoints. ---


def _checkpoints(options: argparse.Namespace, server: Bucket) -> dict[str, Any]:
    from xlme_jax.checkpoints.checkpoints import Checkpoints
    from xlme_jax.checkpoints.saved import RunRecord
    from xlme_jax.storage.paths import as_path

    del server
    state = _state(options.layers, options.vocabulary)
    seconds: dict[str, dict[str, list[float]]] = {}
    folder = Path(tempfile.mkdtemp())
    places = {"disk": folder / "run", "bucket": as_path("gs://bucket/run")}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    checkpoints = {name: Checkpoints(place, keep=1) for name, place in places.items()}
    for step in range(1, options.repeats + 2):
        for name, saver in checkpoints.items():
            begin = time.monotonic()
            saver.save(step, state, RunRecord({}, "", ""))
            held_up = time.monotonic() - begin
            saver.wait()
            row = {"held up": held_up, "until complete": time.monotonic() - begin}
            print(" ", name, {what: round(value, 2) for what, value in row.items()}, flush=True)
            if step > 1:  # The first save compiles the digests.
                for what, value in row.items():
                    seconds.setdefault(name, {}).setdefault(what, []).append(round(value, 3))
    for saver in checkpoints.values():
        saver.close()
    shutil.rmtree(folder)
    pairs = zip(seconds["bucket"]["held up"], seconds["disk"]["held up"])
    ratio = round(statistics.median(one / other for one, other in pairs), 3)
    print(f"  the step is held up {ratio} times as long as on a disk")
    return {"bytes": _bytes(state), "seconds": seconds, "held up, bucket / disk": ratio}


def _state(layers: int, vocabulary: int) -> Any:
    """Returns a train state of `xlm_base.gin`'s shapes; random, so that it does not compress."""
    import jax
    import numpy as np

    from xlme_jax.configuration import loading
    from xlme_jax.training import mesh as meshes
    from xlme_jax.training import sharded_state as states

    bindings = [f"Encoder.num_layers = {layers}"]
    config = loading.load(["gin_configs/runs/xlm_base.gin"], bindings, "Train")
    objective = config.objective.build(vocabulary)
    optimizer = config.optimizer.build(config.loop.train_steps)
    abstract = states.abstract_state(objective, optimizer, meshes.make_mesh(config.mesh))
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> jax.Array:
        drawn = rng.standard_normal(leaf.shape, np.float32).astype(leaf.dtype)
        return jax.device_put(drawn, leaf.sharding)

    return jax.tree.map(draw, abstract)


def _bytes(state: Any) -> int:
    import jax

    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


if __name__ == "__main__":
    main()
