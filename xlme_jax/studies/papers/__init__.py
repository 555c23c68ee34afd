"""The papers' tables and figures: sheets with published rows and ours, and their pages."""
