"""The views of the dashboard, a folder each (view.py lists its files), and what their pages share. A page
checks its caller and address (`page.page`), fetches facts, acts and renders."""
