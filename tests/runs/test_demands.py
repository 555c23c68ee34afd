"""Commands that a machine is too small for."""

import re

import pytest
from helpers import tiny

from xlme_jax.runs.demands import HostDevices, this_machine, too_large
from xlme_jax.studies.papers.pretraining import RUNS

LAPTOP = HostDevices("2 CPU cores", 24 << 30, 4e11)
TUNED = "python -m xlme_jax.sweep --gin_file=gin_configs/finetune/xnli.gin --output=a"
QUICK = "python -m xlme_jax.train --gin_file=gin_configs/runs/laptop_xlm.gin"


def test_the_papers_sizes_need_more_than_a_laptop():
    commands = [*RUNS["xlme_base"], *RUNS["xlme_xl"], TUNED]
    small = f"{QUICK} --gin.Train.vocab_size=8000 && python -m xlme_jax.average --last=2"
    found = too_large([*commands, small], LAPTOP)
    assert list(found) == commands[:2]
    # 2.44e20 FLOPs (docs/lab/evaluation_runs.md).
    days = int(re.search(r"at least ([\d,]+) days", found[commands[0]])[1].replace(",", ""))
    assert days == pytest.approx(2.44e20 / 4e11 / 86_400, rel=0.01)
    assert found[commands[0]].endswith("days on 2 CPU cores")
    # 48 layers of discriminator and 8 of generator, with 500k embeddings of 1,536: 16 bytes each.
    gigabytes = int(re.search(r"take (\d+) GiB; 2 CPU cores have 24", found[commands[1]])[1])
    layer = 12 * 1536**2 + 13 * 1536
    assert gigabytes == pytest.approx(16 * (56 * layer + 500_000 * 1536) / 2**30, rel=0.03)
    assert not too_large(commands, HostDevices("a cluster", 10**15, 1e18))
    assert not too_large(commands, HostDevices("something unknown", 0, None))


def test_this_machine_has_memory_and_a_rate():
    found = this_machine()
    assert re.fullmatch(r"\d+ CPU cores", found.name) and found.memory > 1 << 30
    assert found.flops


@pytest.mark.slow
def test_the_report_lists_them_with_reasons(tmp_path):
    (done,) = tiny.run_each("report", ["--paper=infoxlm", f"--output={tmp_path}"])
    assert done.returncode == 0, done.stderr
    _, listed = done.stdout.split("Not on this machine, which is too small for these commands:\n")
    assert RUNS["infoxlm_large"][0] in listed and " CPU cores\n" in listed
    assert "too small for these commands" in (tmp_path / "report.html").read_text()
