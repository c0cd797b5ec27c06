"""What a cache of decoded pictures saves, and how much memory it takes."""
