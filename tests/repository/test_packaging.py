"""Distributions built from a checkout contain all that a user needs."""

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
