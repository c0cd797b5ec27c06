"""Several processes of one machine that read one loader's batches: NOTE [ Readers ] in cython_ext/ring/readers.pxd."""
