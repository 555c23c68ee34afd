import errno
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from xlme_jax.training.metrics import (
    METRICS_FILE,
    SAMPLES_FILE,
    MetricsWriter,
    Samples,
    ratios,
    read_metrics,
    read_samples,
)


def lines(model_dir):
    return [json.loads(line) for line in (model_dir / METRICS_FILE).read_text().splitlines()]


def test_writes_one_object_a_line_that_reads_back(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(0, {"probe/retrieval_accuracy": 0.01})
        writer.write(10, {"loss": np.float32(2.5), "bitext/mlm_loss": 7})
        writer.write(20, {"loss": 2.25})
    assert lines(tmp_path) == [
        {"step": 0, "probe/retrieval_accuracy": 0.01},
        {"step": 10, "loss": 2.5, "bitext/mlm_loss": 7.0},
        {"step": 20, "loss": 2.25},
    ]
    assert read_metrics(tmp_path)["loss"] == [(10, 2.5), (20, 2.25)]
    assert read_metrics(tmp_path / METRICS_FILE)["bitext/mlm_loss"] == [(10, 7.0)]


def test_what_is_not_finite_is_valid_json(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"loss": math.nan, "grad_norm": math.inf})
    assert lines(tmp_path) == [{"step": 1, "loss": None, "grad_norm": None}]
    assert math.isnan(read_metrics(tmp_path)["loss"][0][1])


def test_line_is_on_disk_after_write_without_close(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(3, {"loss": 1.0})
    assert lines(tmp_path) == [{"step": 3, "loss": 1.0}]
    writer.close()
    writer.close()


def test_resume_drops_later_steps_and_the_torn_line(tmp_path):
    whole = [{"step": step, "loss": float(step)} for step in (0, 10, 20, 30)]
    text = "".join(json.dumps(line) + "\n" for line in whole) + '{"step": 40, "lo'
    (tmp_path / METRICS_FILE).write_text(text)
    with MetricsWriter(tmp_path, resume_step=20) as writer:
        assert lines(tmp_path) == whole[:3]
        writer.write(30, {"loss": -1.0})
    assert lines(tmp_path) == [*whole[:3], {"step": 30, "loss": -1.0}]
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


def test_fresh_start_keeps_nothing_so_that_step_0_is_logged_once(tmp_path):
    for value in (1.0, 2.0):
        with MetricsWriter(tmp_path) as writer:
            writer.write(0, {"loss": value})
    assert lines(tmp_path) == [{"step": 0, "loss": 2.0}]


def test_a_step_cannot_be_logged_twice_or_backwards(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(10, {"loss": 1.0})
        for step in (10, 9):
            with pytest.raises(ValueError, match=f"step {step} comes after step 10.*merge"):
                writer.write(step, {"loss": 1.0})
        with pytest.raises(ValueError, match='cannot be called "step"'):
            writer.write(11, {"step": 1.0})
    with (
        MetricsWriter(tmp_path, resume_step=10) as writer,
        pytest.raises(ValueError, match="merge"),
    ):
        writer.write(10, {"loss": 1.0})


def test_inactive_writer_touches_nothing(tmp_path):
    with MetricsWriter(tmp_path / "run", active=False) as writer:
        writer.write(1, {"loss": 1.0})
    assert not (tmp_path / "run").exists()


def test_reading_ignores_a_torn_end_but_names_a_bad_line(tmp_path):
    path = tmp_path / METRICS_FILE
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_metrics(path) == {"loss": [(1, 2.0)]}
    path.write_text('{"step": 1, "loss": 2.0}\nnonsense\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2: "):
        read_metrics(path)
    path.write_text('{"loss": 2.0}\n')
    with pytest.raises(ValueError, match='line 1: not an object with a whole number as "step"'):
        read_metrics(path)
    with pytest.raises(ValueError, match="no such metrics file"):
        read_metrics(tmp_path / "nowhere")


def test_a_short_write_leaves_no_half_line(tmp_path, monkeypatch):
    writer = MetricsWriter(tmp_path)
    writer.write(1, {"loss": 1.0})
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real_write(file, data[:5]))
    with pytest.raises(OSError, match="5 of 25 bytes"):
        writer.write(2, {"loss": 1.0})
    monkeypatch.undo()
    writer.write(3, {"loss": 1.0})
    writer.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 3]


def test_an_error_of_the_last_flush_names_the_file(tmp_path, monkeypatch):
    writer = MetricsWriter(tmp_path)
    writer.write(1, {"loss": 1.0})

    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*metrics.jsonl'"):
        writer.close()


def test_samples_are_logged_once_and_dropped_after_the_resumed_step(tmp_path):
    def steps():
        return [one["step"] for one in read_samples(tmp_path)]

    assert read_samples(tmp_path) == []
    with MetricsWriter(tmp_path) as writer:
        assert writer.last_samples == -1 and not (tmp_path / SAMPLES_FILE).exists()
        for step in (0, 10, 20, 20):
            writer.write_samples(step, Samples({"sentences": ["é"]}, "é"))
        writer.sync()
    assert steps() == [0, 10, 20]
    assert read_samples(tmp_path)[0] == {"step": 0, "sentences": ["é"]}
    with (tmp_path / SAMPLES_FILE).open("a") as file:
        file.write('{"step": 30, "sen')
    with MetricsWriter(tmp_path, resume_step=15) as writer:
        assert steps() == [0, 10] and writer.last_samples == 10
        writer.write_samples(20, Samples({}, ""))
    assert steps() == [0, 10, 20]
    with MetricsWriter(tmp_path):
        assert steps() == []


def test_ratios_divide_on_the_host_and_are_nan_where_nothing_was_measured():
    metrics = {
        "bitext/mlm_loss": (np.float32(6.0), np.int32(4)),
        "bitext/rtd_precision": (0, 0),
        "bitext/rtd_recall": (0, 5),
    }
    found = ratios(metrics)
    assert np.isnan(found.pop("bitext/rtd_precision"))
    assert found == {"bitext/mlm_loss": 1.5, "bitext/rtd_recall": 0.0}


def test_reading_metrics_imports_no_accelerator_library_and_no_tensorflow():
    code = (
        "import sys, xlme_jax.training.metrics as m; "
        "print([n for n in ('jax', 'tensorflow', 'tensorboardX', 'google.protobuf')"
        " if n in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"
