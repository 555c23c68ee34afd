import io

import jax
import numpy as np
import pytest

from xlme_jax.training.peak import mesh_peak_flops, peak_flops
from xlme_jax.training.progress import (
    ProgressLine,
    Throughput,
    format_line,
    format_seconds,
)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Notebook(io.StringIO):
    """Standard error in a Jupyter kernel."""

    __module__ = "ipykernel.iostream"


def run_steps(throughput, clock, steps, seconds, tokens):
    for step in steps:
        clock.now += seconds
        throughput.update(step, tokens)


def test_rates_leave_out_what_comes_before_the_first_step():
    clock = Clock()
    throughput = Throughput(flops_per_step=3e12, peak_flops_per_second=4e12, clock=clock)
    clock.now += 500  # compiling
    throughput.update(1, 1000)
    assert throughput.tokens_per_second is None
    assert throughput.mfu is None
    assert throughput.seconds_left(10) is None
    run_steps(throughput, clock, range(2, 6), seconds=2, tokens=1000)
    assert throughput.tokens_per_second == 500
    assert throughput.steps_per_second == 0.5
    assert throughput.mfu == pytest.approx(0.375)
    assert throughput.seconds_left(10) == 10


def test_window_forgets_old_rates():
    clock = Clock()
    throughput = Throughput(window_seconds=10, clock=clock)
    run_steps(throughput, clock, range(1, 11), seconds=10, tokens=100)
    assert throughput.tokens_per_second == 10
    run_steps(throughput, clock, range(11, 31), seconds=1, tokens=100)
    assert throughput.tokens_per_second == 100


def test_a_step_longer_than_the_window_still_has_a_rate():
    clock = Clock()
    throughput = Throughput(window_seconds=1, clock=clock)
    run_steps(throughput, clock, (1, 2), seconds=50, tokens=100)
    assert throughput.tokens_per_second == 2


def test_pauses_count_for_time_left_but_not_for_rates():
    clock = Clock()
    throughput = Throughput(clock=clock)
    run_steps(throughput, clock, range(1, 6), seconds=1, tokens=100)
    with throughput.pause():
        clock.now += 4
    assert throughput.tokens_per_second == 100
    run_steps(throughput, clock, range(6, 10), seconds=1, tokens=100)
    assert throughput.tokens_per_second == 100
    # 4 seconds of pause in the 8 steps since the first: half a second a step.
    assert throughput.seconds_left(19) == pytest.approx(10 * 1.5)


def test_mfu_is_unknown_without_a_known_peak():
    clock = Clock()
    throughput = Throughput(flops_per_step=1e9, peak_flops_per_second=None, clock=clock)
    run_steps(throughput, clock, (1, 2), seconds=1, tokens=1)
    assert throughput.mfu is None


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("cpu", None),
    ],
)
def test_peak_flops(kind, peak):
    assert peak_flops(kind) == peak


def test_cpus_have_no_peak():
    assert mesh_peak_flops(jax.sharding.Mesh(np.array(jax.devices("cpu")), "data")) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (187, "3m07s"),
        (7500, "2h05m"),
        (356400, "4d03h"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_line_holds_everything_a_person_asks_for():
    clock = Clock()
    throughput = Throughput(flops_per_step=2e12, peak_flops_per_second=8e12, clock=clock)
    run_steps(throughput, clock, range(1, 5), seconds=1, tokens=7000)
    values = {
        "loss": 12.345678,
        "monolingual/mlm_loss": 5.4321,
        "monolingual/rtd_loss": 0.12345,
        "monolingual/weight": 0.2,
        "bitext/mlm_loss": 4.321,
        "bitext/rtd_loss": 0.23456,
        "probe/retrieval_accuracy": 0.0261,
        "probe/retrieval_untrained": 0.0118,
        "probe/retrieval_chance": 0.002,
        "probe/retrieval_layer/centred": 1.0,
    }
    assert format_line(4, 100, values, throughput) == (
        "step 4/100 (4%) | loss 12.35 | monolingual (× 0.2) mlm 5.43 rtd 0.123 | bitext mlm 4.32"
        " rtd 0.235"
        " | held-out retrieval (centred, layer 1) 0.026 (untrained 0.012, chance 0.002)"
        " | 7,000 tokens/s | MFU 25.0% | 1m36s left"
    )


def test_log_file_gets_a_plain_line_at_log_steps_alone():
    stream = io.StringIO()
    progress = ProgressLine(10, Throughput(), stream=stream)
    for step in range(1, 5):
        progress.show(step, {"loss": float(step)}, log=step % 2 == 0)
    progress.message("saved")
    progress.close()
    assert stream.getvalue() == ("step 2/10 (20%) | loss 2\nstep 4/10 (40%) | loss 4\nsaved\n")


def test_log_file_of_a_long_run_is_short():
    clock, stream = Clock(), io.StringIO()
    progress = ProgressLine(100_000, Throughput(), stream=stream, clock=clock)
    for step in range(10, 100_001, 10):
        clock.now += 20 if 50_000 < step <= 50_100 else 0.001  # An evaluation.
        progress.show(step, {}, log=True)
    steps = [
        int(line.split("/")[0].removeprefix("step ")) for line in stream.getvalue().split("\n")[:-1]
    ]
    assert steps[:3] == [10, 1_010, 2_010] and steps[-2:] == [99_100, 100_000]
    assert [step for step in steps if 50_000 < step <= 50_100] == [50_010, 50_040, 50_070, 50_100]


def evaluated_run(stream):
    """Shows 300 steps, logged every 5, of which 50 and 75 are evaluated."""
    progress = ProgressLine(300, Throughput(), stream=stream, min_seconds=0, clock=Clock())
    for step in range(1, 301):
        progress.show(step, {"loss": 2.0})
        evaluated = {"probe/retrieval_accuracy": step / 100} if step in (50, 75) else {}
        if step % 5 == 0:
            progress.show(step, {"loss": 2.0}, evaluated, log=True)
    progress.close()
    return stream.getvalue()


def test_an_evaluation_is_in_the_line_of_its_step_alone():
    lines = evaluated_run(io.StringIO()).splitlines()
    assert [line for line in lines if "held-out" in line] == [
        "step 50/300 (17%) | loss 2 | held-out retrieval 0.500",
        "step 75/300 (25%) | loss 2 | held-out retrieval 0.750",
    ]
    assert len(lines) == 60


def test_an_evaluation_of_a_long_run_is_in_the_log():
    stream = io.StringIO()
    progress = ProgressLine(100_000, Throughput(), stream=stream, clock=Clock())
    for step in range(10, 100_001, 10):
        evaluated = {"probe/retrieval_accuracy": 0.5} if step == 5_500 else {}
        progress.show(step, {}, evaluated, log=True)
    steps = [line.split("/")[0] for line in stream.getvalue().splitlines()]
    assert steps[5:8] == ["step 5010", "step 5500", "step 6500"]


def test_an_evaluation_stays_on_a_terminal():
    written = evaluated_run(Terminal())
    assert written.count("held-out") == 2
    assert "\rstep 50/300 (17%) | loss 2 | held-out retrieval 0.500\n\rstep 51/300" in (
        written.replace(" " * len("step 50/300 (17%) | loss 2") + "\r", "")
    )


def test_figures_of_a_line_without_losses_are_not_those_of_the_last():
    stream = io.StringIO()
    progress = ProgressLine(4, Throughput(), stream=stream)
    progress.show(2, {"loss": 1.0}, log=True)
    progress.show(4, {"skipped": 1.0}, log=True)  # All its updates were skipped.
    assert stream.getvalue() == "step 2/4 (50%) | loss 1\nstep 4/4 (100%)\n"


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch):
    display, shown = pytest.importorskip("IPython.display", reason="needs the extra test"), []

    class Output:
        def update(self, content, raw):
            shown.append(("replaced", content, raw))

    def show(content, raw, display_id):
        assert display_id is True
        shown.append(("new", content, raw))
        return Output()

    monkeypatch.setattr(display, "display", show)
    clock, stream = Clock(), Notebook()
    progress = ProgressLine(10, Throughput(), stream=stream, clock=clock)
    progress.show(1, {})
    progress.show(2, {})  # too soon
    progress.message("saved")
    progress.show(10, {})
    progress.close()
    assert shown == [
        ("new", {"text/plain": "step 1/10 (10%)"}, True),
        ("replaced", {"text/plain": "step 10/10 (100%)"}, True),
    ]
    assert stream.getvalue() == "saved\n"


def test_a_live_line_is_rewritten_in_place_but_not_too_often():
    clock, stream = Clock(), Terminal()
    progress = ProgressLine(10, Throughput(), stream=stream, min_seconds=1, clock=clock)
    progress.show(1, {"loss": 1.25})
    progress.show(2, {})  # too soon
    clock.now += 1
    progress.show(3, {"loss": 1.0})
    progress.show(4, {"loss": 1.0}, log=True)  # a log step is always shown
    progress.show(10, {})  # and so is the last one
    assert stream.getvalue() == (
        "\rstep 1/10 (10%) | loss 1.25"
        "\rstep 3/10 (30%) | loss 1   "
        "\rstep 4/10 (40%) | loss 1"
        "\rstep 10/10 (100%) | loss 1"
    )
    progress.close()
    progress.close()
    assert stream.getvalue().endswith("loss 1\n")


def test_message_clears_the_live_line_first():
    stream = Terminal()
    progress = ProgressLine(10, Throughput(), stream=stream)
    progress.show(1, {})
    progress.message("saved")
    line = "step 1/10 (10%)"
    assert stream.getvalue() == f"\r{line}\r{' ' * len(line)}\rsaved\n"


def test_other_processes_print_nothing():
    stream = Terminal()
    progress = ProgressLine(10, Throughput(), active=False, stream=stream)
    progress.show(1, {"loss": 1.0}, log=True)
    progress.message("saved")
    progress.close()
    assert stream.getvalue() == ""
