"""What is built from a checkout has all that a user needs, and setting one up says what comes."""

import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser

from repository import ROOT

_BUILD = "from setuptools import build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"
_NOT_BUILT_FROM = shutil.ignore_patterns(".venv", ".git*", ".*_cache", ".hypothesis", "*.egg-info", "build", "results")


def test_the_wheel_has_code_pages_types_and_license_and_the_source_what_its_tests_need(tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=_NOT_BUILT_FROM)
    subprocess.run([sys.executable, "-c", _BUILD], cwd=checkout, check=True, capture_output=True)
    (wheel,) = checkout.glob("dist/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(metadata_name).decode())
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "fusioncache").rglob("*") if path.is_file()}
    assert {name for name in package if "__pycache__" not in name} == {n for n in names if n.startswith("fusioncache/")}
    assert "fusioncache/py.typed" in names
    assert metadata_name.replace("METADATA", "licenses/LICENSE") in names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    (source,) = checkout.glob("dist/*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml"}
    assert wanted <= names
    for folder in ("tests", "examples", "docs", ".ci"):
        found = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
        assert found <= names


def test_setup_says_how_far_it_is_and_keeps_every_error():
    install = runpy.run_path(str(ROOT / ".ci" / "install.py"))
    said = """Collecting torch==2.10.0
  Downloading torch-2.10.0-cp312-cp312-manylinux_2_28_x86_64.whl (900.0 MB)
  Downloading https://host/packages/click-8.5.1-py3-none-any.whl (126 kB)
  Downloading https://host/packages/nvidia_cublas_cu12-12.8.4.1-py3-none-any.whl (600.0 MB)
Installing collected packages: torch, click
Successfully installed click-8.5.1 torch-2.10.0"""
    shown = [
        "   0.9 GB with torch",
        "   1.5 GB with nvidia_cublas_cu12",
        "  installing 2 packages",
        "  installed 2 packages",
    ]
    assert list(install["progress"](said.splitlines())) == shown
    one, *others = "WARNING: Location 'a' is ignored", "ERROR: one", "WARNING: Location 'b' is ignored", "ERROR: one"
    kept = [one, others[0], others[2], "(1 more warnings like these)"]
    assert list(install["first_of_each"](f"{line}\n" for line in (one, *others))) == kept
