"""Modern encoders are exported as transformers' ModernBERT."""

import json

import jax
import numpy as np
import pytest
from helpers import hf_folders, tiny

torch = pytest.importorskip("torch", reason="compares with torch code")
transformers = pytest.importorskip("transformers", reason="loads the folder")


def test_an_exported_encoder_is_a_modernbert(tmp_path, caplog):
    plain = {"ModernEncoder__relative_bias": "none"}
    run = hf_folders.write_checkpoint(tmp_path / "run", "modern_xlm", **plain)
    with caplog.at_level("INFO"):
        folder = hf_folders.export(run, tmp_path / "exported")
    assert "The head is left out" in caplog.text
    assert not list(folder.glob("*.py"))
    assert "trust_remote_code" not in (folder / "README.md").read_text()
    model, loading = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == "ModernBertModel"
    assert not any(loading.values())
    ours, params = hf_folders.read_checkpoint(run)
    batch = hf_folders.rows()
    states = jax.jit(ours.encoder.encode)(params, batch)
    segments = np.asarray(batch["segment_ids"])
    for row, segment in {(r, s) for r, line in enumerate(segments) for s in line if s}:
        columns = segments[row] == segment
        with torch.no_grad():
            tokens = torch.tensor(np.asarray(batch["tokens"])[row, columns])[None]
            theirs = model(tokens).last_hidden_state[0]
        np.testing.assert_allclose(np.asarray(states[-1])[row, columns], theirs, atol=2e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (
        tokenizer.pad_token_id == json.loads((folder / "config.json").read_text())["pad_token_id"]
    )


@pytest.mark.parametrize(
    ("field", "value"),
    tiny.slow_except(
        {("norm", "rms")},
        [("relative_bias", "gated"), ("norm", "rms"), ("absolute_positions", True)],
    ),
)
def test_what_modernbert_has_not_is_refused(tmp_path, field, value):
    fields = {"ModernEncoder__relative_bias": "none", f"ModernEncoder__{field}": value}
    run = hf_folders.write_checkpoint(tmp_path / "run", "modern_xlm", **fields)
    with pytest.raises(ValueError, match=f"ModernEncoder.{field} = {value!r} has no place"):
        hf_folders.export(run, tmp_path / "exported")
