"""A clock that stands still but while somebody sleeps: how busy a machine is changes nothing."""

import threading


class Clock:
    """Stands for the module `time` where a test puts it: nobody waits, and each wait counts in full.

    Attributes:
        now: Seconds.
    """

    def __init__(self):
        self.now = 1000.0
        self._lock = threading.Lock()

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        with self._lock:
            self.now += seconds
