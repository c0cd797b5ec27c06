# This process and its signals.
