"""What a batch costs that a far worker has made, over loopback."""
