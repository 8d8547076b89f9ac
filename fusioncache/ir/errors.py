"""The one exception that stages raise for what they do not understand."""


class Bypass(Exception):
    """A region that fusioncache leaves as Thunder made it.

    Attributes:
        reason: a short phrase, the same for every region left for this reason, so that bypasses can be counted by it.
    """

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason
