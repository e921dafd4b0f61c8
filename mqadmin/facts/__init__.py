"""What the door to the broker (mqadmin/cluster/) gives: values, whose annotations broker_store/units.py
explains."""
