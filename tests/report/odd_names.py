"""A name that is a script unless the page escapes it."""

EVIL = "<script>alert(1)</script>"  # as a path: a folder in a folder
