"""What messages say of arguments in Python, and of options on the command line."""

import pytest

import orlog
from orlog.cli.advice import in_options
from tests.command_line import orlog as run

CALL = (
    "orlog.import_dataset('my file.h5', 'NAME', episode='demo_*', "
    "columns={'observation/a': 'b,c', 'action': '(d)'}, rate=10, sort=True)"
)
COMMAND = (
    "orlog import 'my file.h5' NAME --episode 'demo_*' --map observation/a=b,c --map 'action=(d)' --rate 10 --sort"
)


@pytest.fixture(autouse=True, scope="module")
def _begun():
    assert run("import", "--list").returncode == 0  # what a command has no option for is known once one began


@pytest.mark.parametrize(
    ("command", "message", "printed"),
    [
        ("train", "continue it with resume=True.", "continue it with --resume."),
        ("train", "give steps=2, or evaluations=0.", "give --steps 2, or --evaluations 0."),
        (
            "train",
            "such as settings={'learning_rate': 1e-05, 'hidden': 'a}'} (now: b)",
            "such as --set learning_rate=1e-05 --set hidden=a} (now: b)",
        ),
        ("evaluate", "file: algorithm='FILE.py:CLASS'.", "file: --algorithm FILE.py:CLASS."),
        ("evaluate", "name it: dataset=PATH.", "name it: --dataset PATH."),
        ("import", "columns={}, or task=..", "--map, or --task .."),
        ("import", "the rows a second as rate=; it", "the rows a second as --rate; it"),
        ("import", "reward='constant=x': expected", "--reward constant=x: expected"),
        ("import", "columns={'action': 'u'}: no column", "--map action=u: no column"),
        ("import", f"for example:\n{CALL}", f"for example:\n{COMMAND}"),
        ("train", f"first:\n{CALL}\n", f"first:\n{COMMAND}\n"),
    ],
)
def test_arguments_are_printed_as_options(command, message, printed):
    assert in_options(message, [command, "x"]) == printed


@pytest.mark.parametrize(
    "message",
    [
        "use --set steps=5",
        "/data/seed=3/steps=4.npz: cannot be read",
        "x.seed=3, other=4 and restep=5",
        "name it with --algorithm (algorithm= in Python), or resume=True in Python",
        "the topics of columns= are none of this command",
        "orlog.import_dataset(a.h5)",
        "orlog.train(.., steps=3)",
        "a file called 'steps=3'",
    ],
)
def test_what_is_no_option_of_the_command_stays(message):
    assert in_options(message, ["train", "bc", "x"]) == message


def test_an_error_names_options_on_the_command_line_and_arguments_in_python(tmp_path):
    file = tmp_path / "a.npz"
    file.write_bytes(b"PK\3\4")
    with pytest.raises(ValueError, match="ends='done': expected"):
        orlog.import_dataset(file, "lab/x-v1", format="npz", ends="done")
    told = run("import", str(file), "lab/x-v1", "--format", "npz", "--ends", "done")
    assert "--ends done: expected terminated, truncated, unknown." in told.stderr
