# Streams and events of an accelerator, without the GIL.
