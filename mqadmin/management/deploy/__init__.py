"""What `manage.py check_deploy` reports: what is open to whom, and what is wrong with that."""
