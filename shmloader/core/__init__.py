"""The compiled core: what setup.py builds from cython_ext/, with the stubs that say what each module offers."""
