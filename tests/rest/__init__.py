"""Tests of the room rest/."""
