import json
import sys

import pytest

from xlme_jax.training.metrics import METRICS_FILE, MetricsWriter, Samples
from xlme_jax.training.trackers import TensorBoard, WandB

FACTS = {"id": "run1234", "name": "small", "config": {"Loop.seed": "3"}}


def read_events(path):
    """Decodes TFRecord framing: length (8 bytes), CRC (4), payload, CRC (4)."""
    from tensorboardX.proto import event_pb2

    data, events = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        events.append(event_pb2.Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    return events


class Recorder:
    """A tracker of another package."""

    def __init__(self):
        self.calls = []

    def start(self, folder, step):
        self.calls.append(("start", folder, step))
        return self

    def write(self, step, values):
        self.calls.append((step, dict(values)))

    def close(self):
        self.calls.append("close")


def test_trackers_get_what_is_finite(tmp_path):
    recorder = Recorder()
    with MetricsWriter(tmp_path, 5, trackers=[recorder.start]) as writer:
        writer.write(10, {"loss": 2.5, "grad_norm": float("inf")})
    expected = [("start", tmp_path, 5), (10, {"loss": 2.5}), "close"]
    assert recorder.calls == expected


def test_inactive_writers_start_no_tracker(tmp_path):
    recorder = Recorder()
    with MetricsWriter(tmp_path, active=False, trackers=[recorder.start]) as writer:
        writer.write(10, {"loss": 2.5})
    assert recorder.calls == []


def test_tensorboard_events_hold_the_same_values(tmp_path):
    def start(folder, step):
        return TensorBoard().start(FACTS, folder, step)

    with MetricsWriter(tmp_path, resume_step=5, trackers=[start]) as writer:
        writer.write(10, {"bitext/mlm_loss": 2.5})
    events = list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    assert len(events) == 1
    found = [
        (event.step, value.tag, value.simple_value)
        for event in read_events(events[0])
        for value in event.summary.value
    ]
    assert found == [(10, "bitext/mlm_loss", 2.5)]
    # SessionLog.START at step 6 is what makes TensorBoard hide the interrupted run's later points.
    starts = [event.step for event in read_events(events[0]) if event.session_log.status == 1]
    assert starts == [6]


def test_tensorboard_shows_texts_as_they_are(tmp_path):
    def start(folder, step):
        return TensorBoard().start(FACTS, folder, step)

    with MetricsWriter(tmp_path, trackers=[start]) as writer:
        writer.write_samples(10, Samples({}, "<b>\n  *x*"))
    (events,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    (value,) = [v for event in read_events(events) for v in event.summary.value]
    assert value.metadata.plugin_data.plugin_name == "text" and value.tag.startswith("samples")
    assert value.tensor.string_val == [b"    <b>\n      *x*"]


@pytest.mark.slow
def test_wandb_offline_keeps_metrics_and_configuration(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra [wandb]")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = WandB(mode="offline").start(FACTS, tmp_path, 0)
    tracker.write(10, {"bitext/mlm_loss": 2.5})
    tracker.write(20, {"bitext/mlm_loss": 2.25})
    tracker.write_text(20, "samples", "<b>\n  слово")
    tracker.close()
    (record,) = tmp_path.glob("wandb/offline-run-*/run-run1234.wandb")
    history, config = read_wandb(record)
    assert [(line["_step"], line["bitext/mlm_loss"]) for line in history] == [(10, 2.5), (20, 2.25)]
    assert "samples" not in history[0] and history[1]["samples/_type"] == "html-file"
    (page,) = tmp_path.glob("wandb/offline-run-*/files/media/html/*.html")
    assert "<pre>&lt;b&gt;\n  слово</pre>" in page.read_text("utf-8")
    assert config["config"] == {"Loop.seed": "3"}


def read_wandb(path):
    """Returns the logged lines and the configuration in a file of W&B.

    After 7 bytes, records follow as CRC (4 bytes), length (2), kind (1) and content; those of a
    small file are whole.
    """
    from wandb.proto import wandb_internal_pb2

    data, history, config = path.read_bytes()[7:], [], {}
    while data:
        size = int.from_bytes(data[4:6], "little")
        record = wandb_internal_pb2.Record.FromString(data[7 : 7 + size])
        data = data[7 + size :]
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append(
                {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            )
        if record.WhichOneof("record_type") == "run":
            config = {i.key: json.loads(i.value_json) for i in record.run.config.update}
    return history, config


def test_a_failing_wandb_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb", reason="needs the extra [wandb]")

    class Run:
        calls = 0

        def log(self, values, step):
            Run.calls += 1
            raise wandb.Error("its process has ended")

        finish = log

    monkeypatch.setattr(wandb, "init", lambda **fields: Run())
    start = WandB().start
    with MetricsWriter(tmp_path, trackers=[lambda *at: start(FACTS, *at)]) as writer:
        writer.write(1, {"loss": 1.0})
        writer.write(2, {"loss": 1.0})
    assert Run.calls == 1 and "logging ends at step 1" in caplog.text
    assert len((tmp_path / METRICS_FILE).read_text().splitlines()) == 2


def test_wandb_that_refuses_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra [wandb]")

    def refuse(**fields):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ValueError, match=r"No API key.*wandb login.*offline"):
        WandB().start(FACTS, tmp_path, 0)


def test_missing_wandb_is_an_error_before_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'xlme_jax\[wandb\]'"):
        WandB()
