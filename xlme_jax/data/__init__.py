"""Text, vocabulary, prepared data sets and the Grain pipeline that feeds training."""
