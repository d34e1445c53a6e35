"""Tables, files, traces and plots of a run."""
