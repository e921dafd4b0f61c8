"""What several tests of the dashboard need."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client, TransactionTestCase

from mqadmin.cluster.current import install_cluster
from tests.support.fake_cluster import FakeCluster

PASSWORD = "a-good-long-one"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup, django_db_blocker) -> Iterator[None]:
    """The tables as after all migrations. A test that commits leaves them so again.

    Django's own way, which deletes all rows and makes permissions and content types again, took 50 ms of
    processor time for each such test, a seventh of this room's.
    """
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as kept:
        with django_db_blocker.unblock():
            connection.ensure_connection()
            connection.connection.backup(kept)

        def restore(_: TransactionTestCase) -> None:
            connection.ensure_connection()
            kept.backup(connection.connection)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TransactionTestCase, "_fixture_teardown", restore)
            yield


@pytest.fixture
def fake_cluster():
    """A cluster with known facts, installed as the one of the process."""
    cluster = FakeCluster()
    install_cluster(cluster)
    yield cluster
    install_cluster(None)


@pytest.fixture
def user_of_role(db):
    """A function that makes a user of a role."""

    def make(role: str, name: str | None = None):
        user = get_user_model().objects.create_user(
            name or f"the-{role}", password=PASSWORD, is_superuser=role == "admin", is_staff=role == "admin"
        )
        if role == "operator":
            user.groups.add(Group.objects.get_or_create(name="operator")[0])
        return user

    return make


@pytest.fixture
def client_of_role(user_of_role):
    """A function that gives a logged-in client of a role; None is not logged in."""

    def make(role: str | None) -> Client:
        client = Client()
        if role is not None:
            client.force_login(user_of_role(role))
        return client

    return make
