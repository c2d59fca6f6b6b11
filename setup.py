"""What the wheel needs and pyproject.toml cannot say."""

import shutil
import sysconfig

from setuptools import setup
from setuptools.command.build import build


class CleanBuild(build):
    """Begin with an empty folder: a module that was deleted since the last build would get into the wheel."""

    def run(self) -> None:
        """Build."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


# The compiled parts keep to the stable ABI, so one wheel serves Python 3.11 and all later ones. Before 3.15 that ABI
# is not there without the GIL; the compiled parts are then left out.
abi = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"py_limited_api": "cp311"}
setup(cmdclass={"build": CleanBuild}, options={"bdist_wheel": abi})
