"""The command line: parse, call one lifecycle function, render its result."""
