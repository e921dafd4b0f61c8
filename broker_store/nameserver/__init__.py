"""The name server: which brokers have which topic. On disk it keeps only the key-value table."""
