"""How DI-engine's experiment ends: loading that takes long, beside an inference that takes as long."""
