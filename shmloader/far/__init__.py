"""Workers on other machines: their stand-ins on the trainer's, the wire between the two, and the far end."""
