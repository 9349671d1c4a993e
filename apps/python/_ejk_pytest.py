"""The pytest plug-in of ejk: `pytest --ejk-replay DIR` makes each failed assertion of ejk a file in DIR for `ejk replay`.

A module of its own, as pytest loads plug-ins in every run: it imports nothing but os. Without the option it does nothing.
"""

import os


def pytest_addoption(parser):
    parser.getgroup("ejk").addoption(
        "--ejk-replay", metavar="DIR", help="write each failed assertion of ejk to a file in DIR, for 'ejk replay FILE'")


def pytest_configure(config):
    folder = config.getoption("--ejk-replay", None)
    if folder:
        config.pluginmanager.register(_Replay(os.path.abspath(folder)), "ejk-replay")


class _Replay:
    """Sets EJK_REPLAY for the assertions, also those of xdist's workers, and lists the files at the end."""

    def __init__(self, folder):
        self.folder, self.earlier = folder, os.environ.get("EJK_REPLAY")
        self.known = self.files()
        os.environ["EJK_REPLAY"] = folder

    def files(self):
        """Paths, with what differs where a file is written again."""
        if not os.path.isdir(self.folder):
            return set()
        with os.scandir(self.folder) as entries:
            return {(entry.path, entry.inode(), entry.stat().st_mtime_ns) for entry in entries
                    if entry.name.endswith(".safetensors")}

    def pytest_terminal_summary(self, terminalreporter):
        written = sorted({found[0] for found in self.files() - self.known})
        if written:
            terminalreporter.section("ejk replay")
        for path in written:
            terminalreporter.line(path)

    def pytest_unconfigure(self):
        if self.earlier is None:
            os.environ.pop("EJK_REPLAY", None)
        else:
            os.environ["EJK_REPLAY"] = self.earlier
