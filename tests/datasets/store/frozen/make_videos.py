"""Writes the frozen store of format 1 that keeps videos. Run once; what it wrote must stay readable for ever.

PYTHONPATH=. python tests/datasets/store/frozen/make_videos.py FOLDER
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import orlog
from tests.datasets.store.test_videos import write

DONE = (True, False, True, False)


def main(target):
    """Write the store: two files with B-frames, of two episodes each; two episodes ended, and have frames of file 0."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["ORLOG_HOME"] = home
        write(Path(home) / "arm", done=DONE, codec={"crf": "26"})
        shutil.copytree(orlog.import_dataset(Path(home) / "arm", "tests/videos-v1"), target / "format-1-videos")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
