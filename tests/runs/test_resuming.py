"""A run is compared with the one of its folder before anything is compiled."""

import pytest
from helpers import tiny

from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.configuration import command_line, loading
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.runs import resuming
from xlme_jax.training import manifest

STEP = 90
# As tests/tiny.gin, but with a schedule that is easily computed.
BEFORE = {"TRAIN_STEPS": 100, "Optimizer__warmup_steps": None, "Optimizer__warmup_fraction": 0.1}


@pytest.fixture
def resumes(tmp_path, tiny_data, monkeypatch):
    """Returns a function that checks a run in the folder of one that stopped at step 90."""
    dataset = PreparedDataset.load(tiny_data)

    def load(objective, **bindings):
        flags = tiny.flags(tmp_path, tiny_data, objective, **bindings)
        pairs = [flag.split("=", 1) for flag in command_line.gin_flags(flags)]
        files = [value for name, value in pairs if name == "--gin_file"]
        config = loading.load(files, [v for name, v in pairs if name != "--gin_file"], "Train")
        return config, loading.operative_config()

    def resumes(before=None, objective="xlm", with_changes=False, step=STEP, **now):
        _, text = load(objective, **BEFORE | (before or {}))
        origin = {"origin": resumes.origin, "origin_digest": resumes.recorded}
        record = RunRecord(
            {}, resumes.digest, resumes.text or text, manifest=resumes.manifest, **origin
        )
        monkeypatch.setattr(resuming, "newest_record", lambda folder: (step, record))
        config, _ = load(objective, **BEFORE | now)
        names = ("monolingual", "bitext")
        streams = [stream for stream in config.streams if stream.name in names]
        steps = config.loop.train_steps
        return resuming.check(config, dataset, streams, steps, with_changes)

    resumes.manifest = {}
    resumes.text, resumes.origin, resumes.recorded, resumes.digest = "", "", "", dataset.digest
    return resumes


def test_the_same_run_resumes_without_a_word(resumes, caplog):
    assert resumes() == {}
    assert resumes(Loop__log_every=7, DATA_DIR="data") == {}
    assert not caplog.records


def test_other_versions_of_packages_are_said(resumes, caplog):
    resumes.manifest = {"packages": {**manifest.versions(), "jax": "0.10.0"}}
    changed = f"0.10.0 -> {manifest.versions()['jax']}"
    assert resumes() == {"version of jax": changed}
    assert f"saved with other versions (jax {changed}): bits may differ" in caplog.text


def test_all_differences_are_listed_with_the_flag(resumes):
    with pytest.raises(ValueError, match=r"checkpoint of step 90, of a run with another") as error:
        resumes(SEED=3, Masking__rate=0.3, Loop__log_every=7)
    lines = str(error.value).splitlines()
    assert lines[1:3] == ["  Masking.rate: 0.15 there, 0.3 now", "  Loop.seed: 0 there, 3 now"]
    assert len(lines) == 4
    assert "--resume_with_changes" in lines[3]
    assert "MODEL_DIR" in lines[3]


def test_allowed_changes_are_logged_and_returned_for_the_manifest(resumes, caplog):
    found = resumes(SEED=3, with_changes=True)
    assert found == {"Loop.seed": "0 -> 3"}
    assert "Loop.seed: 0 there, 3 now" in caplog.text


def test_a_default_that_the_folder_does_not_spell_out_is_no_difference(resumes):
    """A configuration that was written before a field existed."""
    assert resumes({}, Encoder__gate_input="query", Optimizer__eps=1e-6) == {}
    with pytest.raises(ValueError, match=r"Optimizer.eps: 1e-06 there, 0.1 now"):
        resumes({}, Optimizer__eps=0.1)


def test_a_configuration_of_another_version_is_refused_or_replaced(resumes, caplog):
    resumes.text = "Train.model_dir = 'a'\nTrain.was_renamed = 1\n"
    with pytest.raises(ValueError, match=r"cannot read: .*'was_renamed'(.|\n)*--resume_with"):
        resumes()
    assert resumes(with_changes=True) == {}
    assert "was_renamed" in caplog.text


def test_the_checkpoint_that_was_taken_is_the_same_source_as_its_run(resumes):
    resumes.origin = "/runs/a/checkpoints/40"
    before = {"INIT_FROM": "/runs/a"}
    assert resumes(before, INIT_FROM="/runs/a") == {}
    assert resumes(before, INIT_FROM="/runs/a/checkpoints/40") == {}
    with pytest.raises(ValueError, match=r"Loop\.init_from"):
        resumes(before, INIT_FROM="/runs/a/checkpoints/50")


def test_copies_of_the_weights_are_the_same_source(resumes, monkeypatch):
    """Of a node's disk, or of a Hugging Face folder that is converted again there."""
    digests = {"/scratch/1/a": "A", "/scratch/2/a": "A", "/scratch/2/b": "B"}
    monkeypatch.setattr(resuming, "_digest", lambda source: digests.get(source, ""))
    before = {"INIT_FROM": "/scratch/1/a"}
    for resumes.recorded in ("", "A"):  # Checkpoints of before have none.
        assert resumes(before, INIT_FROM="/scratch/2/a") == {}
        for other in ("/scratch/2/b", "/scratch/2/gone"):
            with pytest.raises(ValueError, match=r"Loop\.init_from"):
                resumes(before, INIT_FROM=other)
    del digests["/scratch/1/a"]
    assert resumes(before, INIT_FROM="/scratch/2/a") == {}
    resumes.recorded = ""
    with pytest.raises(ValueError, match=r"Loop\.init_from"):
        resumes(before, INIT_FROM="/scratch/2/a")


@pytest.mark.parametrize("steps", [60, 89])
def test_fewer_steps_than_the_folder_has_are_refused(resumes, steps):
    with pytest.raises(ValueError, match=f"TRAIN_STEPS: 100 there, {steps} now"):
        resumes(TRAIN_STEPS=steps)


def test_more_steps_say_how_the_learning_rate_changes(resumes, caplog):
    """Peak 2e-3, warm-up of a tenth of the steps, then a line to 0."""
    assert resumes(TRAIN_STEPS=200) == {"TRAIN_STEPS": "100 -> 200"}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    said = record.getMessage()
    last, former = 2e-3 * (100 - 89) / 90, 2e-3 * (100 - 90) / 90
    now = 2e-3 * (200 - 90) / 180
    assert f"it was {last:.3g} at step 90, and is {now:.3g} at step 91" in said
    assert f"({former:.3g} by the former schedule)" in said
    assert "the warm-up is 20 steps long (10 before)" in said and "Another MODEL_DIR" in said


def test_a_finished_run_that_goes_on_is_told_that_its_rate_was_zero(resumes, caplog):
    resumes(TRAIN_STEPS=200, step=100)
    assert f"it was {2e-3 / 90:.3g} at step 100" in caplog.text
    assert "(0 by the former schedule)" in caplog.text


def test_fewer_steps_that_are_still_ahead_say_so_too(resumes, caplog):
    assert resumes(TRAIN_STEPS=95) == {"TRAIN_STEPS": "100 -> 95"}
    assert "(TRAIN_STEPS = 95, and 100 in the run" in caplog.text


def test_an_allowed_change_of_the_rate_says_it(resumes, caplog):
    resumes(Optimizer__learning_rate=1e-3, with_changes=True)
    former = 2e-3 * (100 - 90) / 90
    assert f"is {former / 2:.3g} at step 91 ({former:.3g} by the former schedule)" in caplog.text


def test_sampling_weights_that_follow_the_number_of_steps_say_so(resumes, caplog):
    bindings = {
        "bitext/PairStream__robust": _Gin("@RobustSampling()"),
        "RobustSampling__updates": 4,
    }
    resumes(bindings, TRAIN_STEPS=200, **bindings)
    assert "The 4 updates of the sampling weights of stream 'bitext' are spread over" in caplog.text


def test_what_only_rounds_otherwise_is_said(resumes, caplog):
    with caplog.at_level("INFO"):
        assert resumes(Loop__micro_batches=2) == {"Loop.micro_batches": "1 -> 2"}
    assert "Loop.micro_batches: 1 there, 2 now. Results are equal but for rounding" in caplog.text


def test_checkpoints_of_other_data_are_left_to_their_own_error(resumes):
    resumes.digest = "of other data"
    assert resumes(SEED=3) == {}


class _Gin(str):
    """A literal gin value."""

    __repr__ = str.__str__
