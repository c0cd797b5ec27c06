"""How long a first batch is waited for."""
