"""What becomes of samples of which some take much longer than others."""
