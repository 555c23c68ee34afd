"""Report pages, tables and plots: of one run, and of results next to published figures."""
