"""A full disk ends every command in one line that names the file, and leaves nothing half."""

import pytest
from helpers import hf_folders, tiny

# Command: bytes of the disk, its arguments.
COMMANDS = {
    "prepare, vocabulary": (20_480, ["--tasks=cldr", "--languages=en,el"]),
    "prepare, records": (307_200, ["--tasks=cldr", "--languages=en,el"]),
    "train_vocabulary": (20_480, ["--tasks=cldr", "--size=1200"]),
    "export": (40_960, ["--checkpoint={run}"]),
    "average": (40_960, ["--checkpoint={run}", "--last=1"]),
    "import_hf": (81_920, ["--source={exported}"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", COMMANDS)
def test_one_line_names_the_file(tmp_path, small_disk, case):
    size, arguments = COMMANDS[case]
    run = hf_folders.write_checkpoint(tmp_path / "run", "xlm")
    folders = {"run": run, "exported": tmp_path / "exported"}
    if case == "import_hf":
        hf_folders.write_xlmr(folders["exported"])
    disk = small_disk(size)
    output = f"--output={disk / 'output'}" + ".model" * (case == "train_vocabulary")
    given = [argument.format(**folders) for argument in arguments]
    (process,) = tiny.run_each(case.split(",")[0], [*given, output])
    assert process.returncode == 1, process.stdout
    assert "Traceback" not in process.stderr
    last = process.stderr.strip().splitlines()[-1]
    assert "Error: " in last and str(disk) in last, last
    if case in ("export", "import_hf"):
        assert list(disk.iterdir()) == []
