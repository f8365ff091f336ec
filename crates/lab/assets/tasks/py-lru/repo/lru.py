"""A cache of fixed size that throws out what was used least recently."""


class LruCache:
    """At most `size` entries."""

    def __init__(self, size):
        self.size = size
        self.entries = {}

    def get(self, key, default=None):
        """The value of a key; reading it makes it recent."""
        return self.entries.get(key, default)

    def put(self, key, value):
        """Stores a value and makes it recent."""
        self.entries[key] = value
        if len(self.entries) >= self.size:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
