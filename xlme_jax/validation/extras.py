"""Packages that only extras install: one error, with the command that installs them."""

import importlib.util

# {package, by the name that is imported: extra of setup.cfg that has it}.
EXTRAS = {
    "apache_beam": "beam",
    "fasttext": "clean",
    "flask": "demo",
    "gcsfs": "gcs",
    "huggingface_hub": "hfdata",
    "mteb": "mteb",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "py3langid": "langid",
    "pyarrow": "hfdata",
    "rensa": "clean",
    "sacrebleu": "mt",
    "safetensors": "hf",
    "seqio": "data",
    "tensorflow": "data",
    "tensorflow_datasets": "data",
    "tensorflow_text": "data",
    "torch": "onnx",
    "transformers": "onnx",
    "wandb": "wandb",
}


def check_installed(feature: str, package: str, otherwise: str = "") -> None:
    """Raises ValueError if a package is not installed; the arguments are those of `missing`."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(missing(feature, package, otherwise))


def missing(feature: str, package: str, otherwise: str = "") -> str:
    """Returns the message for a package that is not installed.

    Args:
      feature: what needs the package, such as a flag with its value.
      package: a key of `EXTRAS`.
      otherwise: what else the user can do; "" for nothing.
    """
    end = f", or {otherwise}" if otherwise else ""
    install = f"pip install 'xlme_jax[{EXTRAS[package]}]'"
    return f"{feature} needs {package}, which is not installed: {install}{end}"
