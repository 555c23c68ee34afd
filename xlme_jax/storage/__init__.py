"""Files that outlive crashes: atomic writes, JSON that carries a checksum, one kind of lock."""
