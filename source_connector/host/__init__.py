"""The Java host inside Pulsar: frames, records, acknowledgements."""
