"""InfoXLM's contrast, step by step, compared with NumPy through checkpoints and log of the command.

The reference receives the batches and the weights after each update. It computes momentum encoder,
queue, prefilling and loss itself, in float64.
"""

import collections
import math
import signal
import time

import numpy as np
import pytest
from helpers import tiny
from helpers.runs import load

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

TOLERANCE = 1e-6
STEPS, QUEUE, MOMENTUM, TEMPERATURE = 50, 36, 0.9, 0.25
BINDINGS = {
    "TRAIN_STEPS": STEPS,
    "CHECKPOINT_EVERY": 1,
    "Loop__keep_checkpoints": STEPS,
    "Encoder__num_layers": 2,
    "Encoder__dropout": 0.0,
    "Encoder__attention_dropout": 0.0,
    "XLCo__layer": 1,
    # No multiple of the 8 pairs of a step: the queue wraps around inside of one. Of 4, which eight
    # devices split it into.
    "XLCo__queue_size": QUEUE,
    "XLCo__momentum": MOMENTUM,
    "XLCo__temperature": TEMPERATURE,
    "XLCo__mask_inputs": False,
    "contrast/Sides__mixup": "none",
}


def normalised(x, weights):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weights["scale"]
        + weights["bias"]
    )


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def represent(weights, tokens):
    """Returns the vector of a sentence, int[n]: one post-norm layer, projected state of <s>."""
    encoder, layer = weights["encoder"], weights["encoder"]["layer_0"]
    x = weights["tokens"]["embedding"][tokens]
    x = normalised(x + weights["positions"]["embedding"][: len(tokens)], encoder["embedding_norm"])
    qkv = np.einsum("nd,dchk->cnhk", x, layer["attention"]["qkv"]["kernel"])
    q, k, v = qkv + layer["attention"]["qkv"]["bias"][:, None]
    scores = np.exp(np.einsum("ihk,jhk->hij", q, k) / math.sqrt(q.shape[-1]))
    mixed = np.einsum("hij,jhk->ihk", scores / scores.sum(-1, keepdims=True), v)
    out = layer["attention"]["out"]
    x = normalised(
        x + np.einsum("ihk,hkd->id", mixed, out["kernel"]) + out["bias"], layer["attention_norm"]
    )
    wi, wo = layer["ffn"]["wi"], layer["ffn"]["wo"]
    fed = gelu(x @ wi["kernel"] + wi["bias"]) @ wo["kernel"] + wo["bias"]
    return normalised(x + fed, layer["ffn_norm"])[0] @ weights["projection"]["kernel"]


class Reference:
    """Momentum contrast with a list as the queue."""

    def __init__(self, weights):
        self.key, self.queue = weights, collections.deque(maxlen=QUEUE)

    def step(self, weights, pairs):
        """Returns loss, accuracy and largest score of pairs; their keys replace the oldest ones."""
        keys = [represent(self.key, second) for _, second in pairs]
        losses, right, largest = [], [], 0.0
        if len(self.queue) == QUEUE:
            for (first, _), key in zip(pairs, keys):
                query = represent(weights, first)
                scores = np.array([query @ other for other in [key, *self.queue]]) / TEMPERATURE
                losses.append(
                    np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[0]
                )
                right.append(scores.argmax() == 0)
                largest = max(largest, np.abs(scores).max())
        self.queue.extend(keys)
        return np.mean(losses or [math.nan]), np.mean(right or [math.nan]), largest

    def follow(self, weights):
        """Updates the momentum encoder."""
        self.key = combined(
            lambda key, new: MOMENTUM * key + (1 - MOMENTUM) * new, self.key, weights
        )


def combined(function, left, right):
    if isinstance(left, dict):
        return {name: combined(function, left[name], right[name]) for name in left}
    return function(np.asarray(left, np.float64), np.asarray(right, np.float64))


def lower(params):
    """Returns the weights that the vectors depend on, float64."""
    encoder = {name: params["encoder"][name] for name in ("embedding_norm", "layer_0")}
    kept = {name: params[name] for name in ("tokens", "positions", "projection")}
    tree = {**kept, "encoder": encoder}
    return combined(lambda x, _: x, tree, tree)


def pairs_of(rows):
    """Yields the two sentences of each pair of a batch, in order."""
    for tokens, segments in zip(rows["tokens"], rows["segment_ids"]):
        for odd in range(1, segments.max(), 2):
            yield tokens[segments == odd], tokens[segments == odd + 1]


def oldest_first(carried):
    """Returns the queue of a checkpoint, oldest key first."""
    place = int(carried["count"]) % QUEUE
    queue = np.asarray(carried["queue"])
    return np.concatenate([queue[place:], queue[:place]])


def check(model_dir, data_dir, bindings):
    """Compares each step of a run; returns the largest error of a loss.

    The error is relative to the step's largest score, whose float32 rounding error is 6e-8.
    """
    config = load(model_dir, data_dir, objective="infoxlm", **bindings)
    objective = config.objective.build(tiny.VOCABULARY)
    optimizer = config.optimizer.build(STEPS)
    mesh = meshes.make_mesh(config.mesh)
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optimizer, mesh, config.loop.seed)
        state = states.fresh_state(objective, optimizer, abstract, config.loop.seed)
    batches = make_iterator(
        PreparedDataset.load(data_dir), config.streams_of(objective), config.loop.seed
    )
    reference = Reference(lower(state.params))
    while len(reference.queue) < QUEUE:  # Prefilled with what the first batches hold.
        reference.step(lower(state.params), list(pairs_of(next(batches)["contrast"])))
    logged = {line["step"]: line for line in tiny.metrics(model_dir)}
    worst = 0.0
    checkpoints = Checkpoints(model_dir, keep=STEPS)
    for step in range(1, STEPS + 1):
        pairs = list(pairs_of(next(batches)["contrast"]))
        loss, accuracy, scale = reference.step(lower(state.params), pairs)
        worst = max(worst, abs(logged[step]["contrast/xlco_loss"] - loss) / scale)
        assert logged[step]["contrast/xlco_accuracy"] == pytest.approx(accuracy)
        state, record = checkpoints.restore(step, abstract)
        reference.follow(lower(state.params))
        np.testing.assert_allclose(
            oldest_first(state.carried), np.stack(reference.queue), rtol=1e-5, atol=1e-5
        )
        combined(
            lambda key, found: np.testing.assert_allclose(found, key, rtol=1e-5, atol=1e-6),
            reference.key,
            state.carried["key"],
        )
        assert record.data == batches.get_state()
    checkpoints.close()
    batches.close()
    return worst


@pytest.mark.slow
def test_one_device(tmp_path, tiny_data):
    tiny.train(*tiny.flags(tmp_path, tiny_data, "infoxlm", **BINDINGS))
    worst = check(tmp_path, tiny_data, BINDINGS)
    print(f"largest error of a loss: {worst:.1e} of the largest score")
    assert worst < TOLERANCE


@pytest.mark.slow
def test_eight_devices(tmp_path, tiny_data):
    meshed = {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2}
    tiny.train(*tiny.flags(tmp_path, tiny_data, "infoxlm", **BINDINGS, **meshed), devices=8)
    assert check(tmp_path, tiny_data, BINDINGS) < TOLERANCE


@pytest.mark.slow
def test_killed_and_resumed(tmp_path, tiny_data):
    flags = tiny.flags(tmp_path, tiny_data, "infoxlm", **BINDINGS)
    process = tiny.start(["-m", "xlme_jax.train", *flags])
    deadline = time.monotonic() + 300
    while not (tmp_path / "checkpoints" / "20").is_dir() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / "checkpoints" / "20").is_dir()
    assert not (tmp_path / "checkpoints" / str(STEPS)).is_dir()
    output = tiny.train(*flags)
    assert "Resuming from the checkpoint of step" in output
    assert "batches before the first step" not in output  # The queue came along.
    assert check(tmp_path, tiny_data, BINDINGS) < TOLERANCE
