"""The one exception that means "you asked for something that cannot be": scripts print it and exit with 2."""


class UserError(Exception):
    """Bad input. The message is one clear sentence that names the file, ids or shapes and says how to mend it."""
