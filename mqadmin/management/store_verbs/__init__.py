"""What `manage.py store` can do: a module a concern, with `add(verb)` for its parsers and VERBS, {name:
function(ask, options)}."""
