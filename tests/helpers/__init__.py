"""What tests share: tiny data, runs and files, and commands that they start."""
