"""A name that would do harm on a page that does not escape it."""

EVIL = "<script>alert(1)</script>"  # as a folder: one in another
