"""The terms of the dashboard and their meaning, from docs/GLOSSARY.md."""

from mqadmin.views.view import View

VIEW = View(__name__)
