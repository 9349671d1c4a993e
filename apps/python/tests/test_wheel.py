"""What the wheel installs beside the package and the program: licences, manual pages and completions."""

import importlib.metadata
import shutil
import subprocess

import pytest

try:
    WHEEL = importlib.metadata.distribution("ejk")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("the wheel is not installed", allow_module_level=True)
FILES = {str(file).split("../")[-1]: file.locate() for file in WHEEL.files}


def test_every_library_in_the_program_has_its_notice():
    notices = {name.split("/")[-1]: path for name, path in FILES.items() if ".dist-info/licenses/" in name}
    assert "LICENSE" in notices
    for library in ("libhdf5-dev", "libfmt-dev", "libcli11-dev", "libpng-dev", "zlib1g-dev", "libstdc++-", "libgcc-", "libc6-dev"):
        (path,) = (path for name, path in notices.items() if name.startswith(library) and name.endswith(".copyright"))
        assert "opyright" in path.read_text()


def test_metadata_describe_the_package():
    about = WHEEL.metadata
    assert about["License-Expression"] == "Apache-2.0" and about["Author"] and about["Summary"] and about["Requires-Python"]
    assert about["Description-Content-Type"] == "text/markdown"


def test_shells_and_man_find_their_files():
    for name in ("share/bash-completion/completions/ejk", "share/zsh/site-functions/_ejk", "share/fish/vendor_completions.d/ejk.fish"):
        assert "ejk" in FILES[name].read_text()
    page = FILES["share/man/man1/ejk-attention.1"]
    if not shutil.which("man"):
        pytest.skip("there is no man")
    shown = subprocess.run(["man", "-l", page], capture_output=True, text=True, check=True)
    assert "ejk" in shown.stdout
