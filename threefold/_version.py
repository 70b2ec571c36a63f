"""The version, written once: the build, the package and the command line read it here."""

__version__ = "0.1.0"
