"""Checks this machine: do all implementations of attention compute and train the same?

    python -m xlme_jax.selfcheck

It needs no data. It prints a page with devices, versions, and the time and deviations of each
implementation, to be pasted into a report; the exit code is 0 if all are correct. It takes less
than a minute on a CPU, where the kernels run interpreted on a few tokens.
"""

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path

_OUTPUT = flags.DEFINE_string("output", None, "Also write the page to this file.")


def main() -> int:
    """Checks, prints the page, and returns the exit code."""
    from xlme_jax.runs import self_check

    page = self_check.check()
    print(page.text, end="")
    if _OUTPUT.value:
        replace_file(as_path(_OUTPUT.value), page.text.encode())
    return 0 if page.passed else 1


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
