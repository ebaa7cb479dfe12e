"""The one error that a person can mend: a file, a field or a command line that cannot be used."""


class InputError(ValueError):
    """An input that cannot be used.

    Attributes:
        where: the file, and the field, batch or step inside it.
        problem: what is wrong there. Never holds text of a private record.
        remedy: what the reader can do about it.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem} {remedy}")
        self.where = where
        self.problem = problem
        self.remedy = remedy
