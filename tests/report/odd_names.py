"""A name that would do harm on a page that does not escape it."""

EVIL = "<script>alert(1)<&script>"  # a slash cannot be in the name of a folder
