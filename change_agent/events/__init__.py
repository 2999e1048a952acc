"""From a decoded mutation to events: their keys, digests and bytes, and the output formats of `cdc decode`."""
