"""How quickly a real net trains on JPEG files."""
