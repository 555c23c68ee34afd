"""Makes the runs of this process end without a report: seconds of drawing, and tested elsewhere."""

from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import run_page

run_page.write_report = lambda model_dir, _: as_path(model_dir) / run_page.REPORT_HTML
