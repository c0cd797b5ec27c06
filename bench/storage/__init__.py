"""How quickly samples come from shards, here and behind a network."""
