"""`python -m ejk WORDS` runs the program."""

import os
import sys

from . import program

os.execv(program(), ["ejk", *sys.argv[1:]])
