"""Types of the values that a cluster (mqadmin/cluster/) returns. broker_store/units.py explains their
annotations."""
