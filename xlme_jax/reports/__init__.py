"""Pages, tables and pictures: a run's own, and results beside the papers' published figures."""
