"""What is learned: each pre-training system is one objective."""
