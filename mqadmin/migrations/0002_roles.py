"""The two Django groups whose names are roles (mqadmin/web/roles.py), so that a user can be put into one."""

from django.db import migrations

NAMES = ("admin", "operator")


def make(apps, schema_editor):
    for name in NAMES:
        apps.get_model("auth", "Group").objects.get_or_create(name=name)


class Migration(migrations.Migration):
    dependencies = [("mqadmin", "0001_initial"), ("auth", "0012_alter_user_first_name_max_length")]
    operations = [migrations.RunPython(make, migrations.RunPython.noop)]
