"""What a paper needs and a run does not: sheets of published tables, sweeps, pages and pictures."""
