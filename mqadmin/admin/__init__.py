"""The admin: topics and groups of the cluster as if they were rows, users, API tokens, the audit trail.

A user may change here what their role allows (mqadmin/web/roles.py), and nothing else decides: a page, REST
and the admin never disagree. Django imports this package with the admin's first page, and each module
registers its models.
"""

from mqadmin.admin import groups, queues, records, tokens, topics, users

__all__ = ["groups", "queues", "records", "tokens", "topics", "users"]
