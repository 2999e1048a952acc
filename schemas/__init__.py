"""The contract between the parts: values, names and Avro schemas. Pure: standard library and fastavro, no I/O."""
