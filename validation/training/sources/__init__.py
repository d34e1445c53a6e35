"""One module per source: its rows as records, with its own conventions."""
