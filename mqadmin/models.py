"""The dashboard's own tables. Topics, groups and messages are in the store and in no table here."""

from django.conf import settings
from django.db import models

from mqadmin.jobs.left_out import LeftOutLetters
from mqadmin.jobs.schedules import PipelineSchedule
from mqadmin.store_models import Group, Topic
from mqadmin.web.tokens import ApiToken

__all__ = ["ApiToken", "FirstLogin", "Group", "LeftOutLetters", "PipelineSchedule", "Topic"]


class FirstLogin(models.Model):
    """A user whose password was printed by a start: it is valid for one login, after which another must be
    set."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="first_login"
    )
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.user} has not set a password"
