"""A trained model as a page on this machine, and as JSON: what its app answers and refuses."""
