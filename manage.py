#!/usr/bin/env python
"""Every command of the project; `manage.py help` lists them, `manage.py runbroker` starts the broker."""

from mqadmin.command_line import main

if __name__ == "__main__":
    main()
