"""What the door to the broker (mqadmin/clusters.py) gives: values, whose annotations broker_store/units.py
explains."""
