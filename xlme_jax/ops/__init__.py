"""Parameter-free numerics, such as masking and the chunked vocabulary head; imports only JAX."""
