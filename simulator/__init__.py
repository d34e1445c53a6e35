"""collsim: a discrete-event simulator of GPU-cluster communication."""

__version__ = "0.1.0"
