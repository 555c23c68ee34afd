"""Stop rules on synthetic logs and in the loop."""

import dataclasses
import json
import logging
import math

import jax
import numpy as np
import pytest
from helpers import commands
from toy import Batches, Poisonable, PoisonedBatches, StopAt, saved, toy_run, train

from xlme_jax.training import mesh as meshes
from xlme_jax.training import stop_rule
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.metrics import MetricsWriter, read_lines
from xlme_jax.training.run import NEVER
from xlme_jax.training.stop_rule import Line, RuleNotMet, StopRule, StopRules
from xlme_jax.training.stopping import Stopped

NAMES = ("a", "b")


def history(values, tokens=100):
    """Returns a log with a line every `tokens` tokens and values of "a", or of "a" and "b"."""
    rows = [value if isinstance(value, tuple) else (value, 0.0) for value in values]
    return [
        Line(10 * n, tokens * n, dict(zip(NAMES, row, strict=True)))
        for n, row in enumerate(rows, start=1)
    ]


def judged(rule, values, tokens=100):
    return rule.judge(history(values, tokens), NAMES)


def test_a_rule_waits_for_its_tokens():
    rule = StopRule("a", at_tokens=400, least=1, growing=False)
    assert judged(rule, []) is None
    assert judged(rule, [0, 0, 0]) is None
    assert judged(rule, [0, 0, 0, 1]) == ""
    assert "Step 40, 400 tokens: a is 0.5;" in judged(rule, [0, 0, 0, 0.5])


def test_only_lines_up_to_the_first_with_the_tokens_count():
    rule = StopRule("a", at_tokens=350, least=1, growing=False)
    assert judged(rule, [0, 0, 0, 1, -9, -9]) == ""
    assert "Step 40, 400 tokens: a is 0;" in judged(rule, [1, 1, 1, 0, 9, 9])


@pytest.mark.parametrize("tokens", [1, 7, 100])
def test_values_are_means_over_a_tenth_of_the_tokens(tokens):
    """Compares with NumPy on 200 lines: 20 lines up to the end and 20 up to the middle."""
    values = np.random.default_rng(0).normal(size=200)
    now, before = values[180:].mean(), values[80:100].mean()
    assert abs(now - before) > 0.01
    least = StopRule("a", at_tokens=200 * tokens, least=now - 1e-9, growing=False)
    more = StopRule("a", at_tokens=200 * tokens, least=now + 1e-9, growing=False)
    assert judged(least, values, tokens) == ""
    assert f"a is {now:.4g}; a stop rule requires at least" in judged(more, values, tokens)
    growing = StopRule("a", at_tokens=200 * tokens, least=-9)
    grown = judged(growing, values, tokens), judged(growing, -values, tokens)
    assert (grown[0] == "", grown[1] == "") == (now > before, now < before)
    assert f"above the {before if now < before else -before:.4g} at half" in "".join(grown)


def test_one_deviating_line_does_not_end_a_run():
    values = [0.1] * 90 + [0.5] * 109
    rule = StopRule("a", at_tokens=19_000, least=0.4)
    assert judged(rule, [*values[:189], 0.0, *values]) == ""


def test_what_is_subtracted():
    rule = StopRule("a", at_tokens=300, least=0.1, minus="b")
    assert judged(rule, [(0.2, 0.2), (0.3, 0.3), (0.5, 0.375)]) == ""
    assert "a - b is 0.0625; " in judged(rule, [(0.2, 0.2), (0.3, 0.3), (0.5, 0.4375)])


def test_a_value_must_have_grown():
    rule = StopRule("a", at_tokens=400, least=0.1)
    assert judged(rule, [0, 0.2, 0.2, 0.3]) == ""
    assert "is 0.2; a stop rule requires at least 0.1 and above the 0.2 at half" in judged(
        rule, [0, 0.2, 0.2, 0.2]
    )
    assert judged(StopRule("a", 400, 0.1, growing=False), [0, 0.2, 0.2, 0.2]) == ""


def test_what_was_not_measured():
    nan = math.nan
    rule = StopRule("a", at_tokens=400, least=0.1)
    assert judged(rule, [nan, 0.1, 0.3, nan]) == ""  # The last one that was.
    assert judged(rule, [nan, nan, nan, 0.3]) == ""  # Nothing to grow from.
    assert "a is nan;" in judged(rule, [nan, nan, nan, nan])
    assert judged(rule, [0.3]) is None
    assert judged(rule, [0.3], tokens=400) == ""


def test_a_metric_that_is_not_logged():
    for fields in ({"metric": "c"}, {"metric": "a", "minus": "c"}):
        rule = StopRule(**fields, at_tokens=10**9, least=0)
        field = "metric" if fields["metric"] == "c" else "minus"
        expected = rf"StopRule\.{field} = 'c' is not logged\. Logged metrics: a, b\."
        with pytest.raises(ValueError, match=expected):
            judged(rule, [0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metric": ""}, r"StopRule\.metric is empty"),
        ({"minus": ""}, r"StopRule\.minus is empty"),
        ({"minus": "a"}, r"StopRule\.minus = 'a' equals StopRule\.metric"),
        ({"at_tokens": 0}, r"StopRule\.at_tokens = 0 must be at least 1"),
        ({"least": math.nan}, r"StopRule\.least = nan must be finite"),
    ],
)
def test_fields_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        StopRule(**{"metric": "a", "at_tokens": 5, "least": 0.0, **fields})


def test_a_log_that_is_read_is_judged_as_one_that_was_written(tmp_path):
    """Includes lines with different metrics and numbers of steps."""
    log = {
        0: {"probe": 0.5},
        3: {"a": 1 / 3, "tokens_per_step": 10.1},
        5: {"a": math.inf, "tokens_per_step": 9.9, "probe": 0.25},
        9: {"a": 0.7, "tokens_per_step": 10.3},
    }
    told, read = (StopRules([StopRule("a", 10**6, 0)]) for _ in range(2))
    told.begin({})
    with MetricsWriter(tmp_path) as writer:
        for step, values in log.items():
            writer.write(step, values)
            told.add(step, values)
    read.begin(read_lines(tmp_path))
    expected = [(0, 0.0), (3, 30.3), (5, 50.1), (9, 91.3)]
    for rules in (told, read):
        np.testing.assert_allclose([line[:2] for line in rules._history], expected, rtol=1e-12)
        assert rules._known == {"probe", "a", "tokens_per_step"}
    assert [line.tokens for line in told._history] == [line.tokens for line in read._history]


# ---- Through the loop --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh():
    return meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])


def run(model_dir, mesh, rules=(), stop=NEVER, objective=None, batches=None, **settings):
    """Returns the error of a run over 12 steps of about 20 tokens, or its state."""
    config = LoopConfig(
        **{"train_steps": 12, "log_every": 2, "checkpoint_every": 5, "keep_checkpoints": 9}
        | settings
    )
    run = toy_run(model_dir, mesh, config, objective, batches)
    return train(dataclasses.replace(run, stop_rules=rules), stop, _steps)


_steps = {}


def lines(model_dir):
    text = (model_dir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def timeless(model_dir):
    return [
        {name: value for name, value in line.items() if not commands.is_timing(name)}
        for line in lines(model_dir)
    ]


def tokens_up_to(step):
    rows = (Batches().batch(n)["monolingual"]["segment_ids"] for n in range(step))
    return sum(int((row > 0).sum()) for row in rows)


def never_met(step):
    """Returns a rule that is due at a step and never met."""
    return StopRule("monolingual/error", tokens_up_to(step), least=1e9, growing=False)


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_run_ends_saves_and_goes_on_without_the_rule(tmp_path, mesh):
    expected = run(tmp_path / "whole", mesh)
    # Step 5 has no line of its own: judged at the line of step 6, where no checkpoint is due.
    rules = (never_met(5),)
    message = (
        rf"^Step 6, {tokens_up_to(6)} tokens: monolingual/error is [\d.]+; a stop rule "
        r"requires at least 1e\+09\. .*Train\.stop_rules = \(\) to continue from the saved state\.$"
    )
    for _ in range(2):  # The second time no step is made.
        with pytest.raises(RuleNotMet, match=message) as raised:
            run(tmp_path / "ended", mesh, rules)
        assert "\n" not in str(raised.value)
        assert saved(tmp_path / "ended") == {5, 6}
        assert [line["step"] for line in lines(tmp_path / "ended")] == [2, 4, 6]
    same(run(tmp_path / "ended", mesh), expected)
    assert timeless(tmp_path / "ended") == timeless(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 5, 6, 7])
def test_a_resumed_run_is_judged_as_one_that_was_not_stopped(tmp_path, mesh, step):
    messages = []
    for folder, stop in (("whole", NEVER), ("parts", StopAt(step))):
        if stop is not NEVER:
            with pytest.raises(Stopped):
                run(tmp_path / folder, mesh, (never_met(8),), stop)
        with pytest.raises(RuleNotMet) as raised:
            run(tmp_path / folder, mesh, (never_met(8),))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith(f"Step 8, {tokens_up_to(8)} tokens:")
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


def test_a_kill_before_the_verdict_changes_nothing(tmp_path, mesh, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(StopRules, "error", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, mesh, (never_met(2),))
    with pytest.raises(RuleNotMet, match=r"^Step 2, "):
        run(tmp_path, mesh, (never_met(2),))


@pytest.mark.slow
def test_a_rule_that_is_met_leaves_the_bits_and_is_judged_once(tmp_path, mesh, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "xlme_jax")
    expected = run(tmp_path / "without", mesh)
    judge, calls = StopRule.judge, []

    def counted(self, history, known):
        calls.append(history[-1].step)
        return judge(self, history, known)

    monkeypatch.setattr(StopRule, "judge", counted)
    rule = StopRule("monolingual/error", tokens_up_to(8), least=1.0, growing=False)
    same(run(tmp_path / "with", mesh, (rule,)), expected)
    assert calls == [2, 4, 6, 8]
    assert timeless(tmp_path / "with") == timeless(tmp_path / "without")
    assert saved(tmp_path / "with") == saved(tmp_path / "without")
    met = f"Step 8, {tokens_up_to(8)} tokens: monolingual/error is "
    assert sum(record.getMessage().startswith(met) for record in caplog.records) == 1


def test_of_several_rules_each_has_its_time(tmp_path, mesh):
    met = StopRule("monolingual/error", tokens_up_to(4), least=1.0, growing=False)
    with pytest.raises(RuleNotMet, match=r"^Step 10, "):
        run(tmp_path, mesh, (never_met(10), met))


def test_a_falling_value_does_not_grow(tmp_path, mesh):
    """The toy's error decreases as it learns."""
    rule = StopRule("monolingual/error", tokens_up_to(12), least=0.0)
    with pytest.raises(RuleNotMet, match=r"at least 0 and above the [\d.]+ at half of the tokens"):
        run(tmp_path, mesh, (rule,))
    assert saved(tmp_path) == {5, 10, 12}


def test_unknown_metric_raises_at_the_first_line(tmp_path, mesh):
    rule = StopRule("monolingual/eror", 10**9, least=1.0)
    expected = r"StopRule\.metric = 'monolingual/eror' is not logged\. .*monolingual/error, .*rows"
    with pytest.raises(ValueError, match=expected):
        run(tmp_path, mesh, (rule,))
    assert saved(tmp_path) == {2}


def test_rules_that_are_never_due_are_reported(tmp_path, mesh, caplog):
    with caplog.at_level("INFO"):
        run(tmp_path, mesh, (StopRule("monolingual/error", 10**9, 1.0, "rows"),))
    said = (
        "A stop rule (Train.stop_rules) was not checked. It ends a run unless monolingual/error - "
        "rows is at least 1 at 1,000,000,000 tokens and above its value at half of them; this run "
        f"ends at {tokens_up_to(12):,} tokens."
    )
    assert said in caplog.text


@pytest.mark.slow
def test_after_a_roll_back_the_log_counts_as_it_then_is(tmp_path, mesh):
    batches = PoisonedBatches({6, 7})
    settings = {"max_skipped": 2, "on_divergence": "roll_back", "objective": Poisonable()}
    rule = StopRule("monolingual/error", 200, least=1e9, growing=False)
    with pytest.raises(RuleNotMet) as raised:
        run(tmp_path, mesh, (rule,), batches=batches, **settings)
    read = StopRules((rule,))
    read.begin(read_lines(tmp_path))
    assert str(raised.value) == str(read.error())


def test_other_processes_stop_too(monkeypatch):
    """A process without a log receives the verdict and ends as well."""
    monkeypatch.setattr(stop_rule.jax, "process_index", lambda: 1)
    verdicts = iter([0, 1])
    told = lambda code: next(verdicts)  # noqa: E731
    monkeypatch.setattr(stop_rule.multihost_utils, "broadcast_one_to_all", told)
    rules = StopRules((never_met(4),))
    rules.begin({})
    assert rules.error() is None  # Not due,
    assert rules.error() is None  # met,
    assert rules.error() is None  # and no broadcast any more: `verdicts` are used up.
    verdicts = iter([2])
    rules.begin({})
    assert "the log of process 0 has the reason" in str(rules.error())
