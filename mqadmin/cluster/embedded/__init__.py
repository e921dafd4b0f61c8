"""The cluster of a broker that runs in this process."""
