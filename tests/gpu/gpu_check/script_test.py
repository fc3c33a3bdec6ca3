#!/usr/bin/env python3
"""scripts/gpu_check.sh where programs, a network or libraries are missing."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import stand_ins  # finds the script's modules
import speed


class Script(unittest.TestCase):
    """gpu_check.sh in sources."""

    def tree_of(self, folder, installer):
        tree = Path(folder)
        (tree / "scripts/gpu_check").mkdir(parents=True)
        (tree / "scripts/gpu_check/__main__.py").write_text("import os, sys; print(os.environ.get('OTTAVA_GPU_CHECK_NOTE'), sys.argv[1:], os.environ.get('OTTAVA_TORCH_PYTHON'))")
        script = tree / "scripts/gpu_check.sh"
        script.write_bytes((Path(speed.__file__).parent.parent / "gpu_check.sh").read_bytes())
        self.program(tree / "scripts/install_dependencies.sh", installer)
        return tree, script

    @staticmethod
    def program(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    def test_tests_are_built_where_the_quickstart_left_them_out(self):
        with tempfile.TemporaryDirectory() as folder:
            tree, script = self.tree_of(folder, "exit 0\n")
            (tree / "build").mkdir()
            (tree / "build/build.ninja").write_text("")
            self.program(tree / "bin/cmake", f"echo \"$@\" >>'{tree}/calls'\n")
            env = {name: value for name, value in os.environ.items() if name != "OTTAVA_TORCH_PYTHON"}
            done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env={**env, "PATH": f"{tree}/bin:{os.environ['PATH']}"})
            self.assertEqual(done.stdout, f"None ['--programs', 'build', '--caller', '{os.getcwd()}'] None\n", done.stderr)
            self.assertEqual((tree / "calls").read_text().splitlines(),
                             ["--preset release -DOTTAVA_TESTS=ON", "--build build --target ottava ottava_device_tests"])

    def test_what_is_wrong_with_options_is_said_before_anything_is_built(self):
        with tempfile.TemporaryDirectory() as folder:
            tree, script = self.tree_of(folder, f"touch '{folder}/installs'; exit 100\n")
            shutil.copytree(Path(speed.__file__).parent, tree / "scripts/gpu_check", dirs_exist_ok=True)
            for options, said in ((["--only", "party"], "unknown stages party"), (["--seconds", "x"], "invalid float value: 'x'")):
                done = subprocess.run(["bash", str(script), *options], capture_output=True, text=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn(said, done.stderr)
            self.assertFalse((tree / "installs").exists())

    def test_without_a_network_it_says_that_the_bundle_is_needed(self):
        with tempfile.TemporaryDirectory() as folder:
            tree, script = self.tree_of(folder, "echo no network >&2\nexit 100\n")
            here = os.getcwd()
            run = lambda: subprocess.run(["bash", str(script), "--output", "x"], capture_output=True, text=True,
                                         env={**os.environ, "OTTAVA_TORCH_PYTHON": "venv/bin/python"})
            done = run()
            self.assertEqual(done.returncode, 2)
            self.assertIn("take a bundle: scripts/bundle.sh --fetch-cudnn", done.stderr)
            self.assertIn("share/ottava/scripts/gpu_check.sh --output DIR", done.stderr)
            for name in ("build/ottava", "build/tests/ottava_device_tests"):  # of an earlier build
                program = tree / name
                program.parent.mkdir(parents=True, exist_ok=True)
                program.touch(0o755)
            done = run()
            self.assertEqual(done.returncode, 0)
            self.assertEqual(done.stdout, "the build failed; these programs are of an earlier one "
                             f"['--programs', 'build', '--caller', '{here}', '--output', 'x'] {here}/venv/bin/python\n")


if __name__ == "__main__":
    unittest.main()
