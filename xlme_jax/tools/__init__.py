"""Tools beside a run: planning on other machines, choosing kernels, a page to try a model."""
