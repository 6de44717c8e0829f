"""Prints the n-th block of shell commands of the README, counted from 1."""

import pathlib
import re
import sys

readme = pathlib.Path(__file__).parents[1] / "README.md"
print(re.findall(r"^```bash\n(.*?)^```", readme.read_text(), re.M | re.S)[int(sys.argv[1]) - 1])
