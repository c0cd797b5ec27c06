# Streams and events of an accelerator, asked without the GIL.
