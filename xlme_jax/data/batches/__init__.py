"""Streams of a prepared data set as batches: mixing, packing, layouts, the Grain pipeline."""
