"""Makes the runs of this process end with an empty report: drawing takes seconds, tested elsewhere.

The file itself stays, as a sweep takes it as the sign of a finished run.
"""

from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import run_page


def _write_report(model_dir, diagnostics):
    page = as_path(model_dir) / run_page.REPORT_HTML
    page.touch()
    return page


run_page.write_report = _write_report
