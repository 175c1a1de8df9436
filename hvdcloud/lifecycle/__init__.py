"""One verb a file: what each command does, from the configuration to a result. Nothing here prints."""
