"""Several processes of one machine that read the batches of one loader: NOTE [ Readers ] in cython_ext/ring/readers.pxd."""
