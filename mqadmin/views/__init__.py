"""The pages, a module a noun. Each view is guard, fetch, act, render; the guard is `page.page`."""
