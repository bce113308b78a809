"""The one exception for mistakes of the user: a wrong name, file, flag or value."""


class UserError(Exception):
    """One sentence that says what is wrong, in which file and line or flag, and what to do.

    The command line prints the sentence to stderr and exits with code 2, without a traceback.
    """
