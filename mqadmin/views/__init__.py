"""The views of the dashboard, a folder each (view.py says what is in it), and what their pages share. A page
is guard, fetch, act, render; the guard is `page.page`."""
