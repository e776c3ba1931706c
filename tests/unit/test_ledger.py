"""The ledger against what happens to files and processes; each accident is a real one."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from optimizer.errors import EnvironmentFailure, InputError
from optimizer.ledger import (
    LEDGER_FILE,
    LOCK_FILE,
    SCHEMA,
    STUDY_FILE,
    Ledger,
    StudyHeader,
    check_fingerprint,
    read_study,
    write_study,
)
from optimizer.records.candidate import Rejection, Stage
from optimizer.records.environment import Fingerprint

FIXTURES = Path(__file__).parent / "ledgers"


def filled(directory, count=3):
    with Ledger.open(directory) as ledger:
        for number in range(count):
            ledger.append("pair", f"p{number}", {"log_ratio": number / 10, "text": "µs → \n"})
    return directory / LEDGER_FILE


def keys(ledger, kind=None):
    return [entry.key for entry in ledger.records(kind)]


def in_another_process(code, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def test_what_was_written_is_there_after_reopening(tmp_path):
    filled(tmp_path / "study")
    with Ledger.open(tmp_path / "study") as ledger:
        assert ledger.dropped is None
        assert len(ledger) == 3
        assert ledger.get("pair", "p1") == {"log_ratio": 0.1, "text": "µs → \n"}
        assert ledger.get("pair", "p9") is None
        assert ledger.get("other", "p1") is None
        ledger.append("other", "p1", {})
        assert keys(ledger, "pair") == ["p0", "p1", "p2"]
        assert keys(ledger) == ["p0", "p1", "p2", "p1"]


def test_the_latest_record_of_a_key_answers_and_all_are_kept(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        ledger.append("rejection", "c", {"code": "timeout"})
        ledger.append("rejection", "c", {"code": "crash"})
    with Ledger.open(tmp_path) as ledger:
        assert ledger.get("rejection", "c") == {"code": "crash"}
        assert len(list(ledger.records("rejection"))) == 2


def test_records_come_back_as_records(tmp_path):
    rejection = Rejection("c", Stage.VALIDATE, "accuracy", "NaN", evidence="line\nline", transient=True)
    with Ledger.open(tmp_path) as ledger:
        ledger.save("rejection", "c", rejection)
        assert ledger.load("rejection", "c", Rejection) == rejection
        assert ledger.load("rejection", "d", Rejection) is None
        ledger.append("rejection", "e", {"candidate_id": "e", "stage": "nowhere"})
        with pytest.raises(InputError, match=r"rejection e .*stage"):
            ledger.load("rejection", "e", Rejection)


def test_data_without_a_json_form_are_refused_and_write_nothing(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        with pytest.raises(ValueError, match=r"not JSON compliant"):
            ledger.append("pair", "p", {"x": float("nan")})
        with pytest.raises(TypeError):
            ledger.append("pair", "p", {"x": object()})
        ledger.append("pair", "q", {})
        assert keys(ledger) == ["q"]
    with Ledger.open(tmp_path) as ledger:
        assert keys(ledger) == ["q"]


def test_a_line_torn_at_any_byte_is_dropped_and_said_so(tmp_path):
    path = filled(tmp_path)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for length in range(start + 1, len(whole)):
        path.write_bytes(whole[:length])
        with Ledger.open(tmp_path) as ledger:
            assert keys(ledger) == ["p0", "p1"]
            assert f"line 3, {length - start} bytes" in ledger.dropped
        assert path.read_bytes() == whole[:start]


def test_a_tail_of_zeros_as_a_power_cut_leaves_it_is_dropped(tmp_path):
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(512))
    with Ledger.open(tmp_path) as ledger:
        assert len(ledger) == 3
        assert "512 bytes" in ledger.dropped
        ledger.append("pair", "p3", {})
    with Ledger.open(tmp_path) as ledger:
        assert keys(ledger) == ["p0", "p1", "p2", "p3"]


def test_damage_in_the_middle_is_refused_and_nothing_is_changed(tmp_path):
    path = filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = lines[0] + b"{]\n" + lines[2]
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="line 2 is damaged"):
        Ledger.open(tmp_path)
    assert path.read_bytes() == damaged


def test_a_refused_open_gives_the_study_free(tmp_path):
    path = filled(tmp_path)
    good = path.read_bytes()
    path.write_bytes(b"{]\n" + good)
    with pytest.raises(InputError):
        Ledger.open(tmp_path)
    path.write_bytes(good)
    Ledger.open(tmp_path).close()


def test_a_second_process_is_refused_with_the_owner_named(tmp_path):
    owner = in_another_process(
        """
        import sys
        from pathlib import Path
        from optimizer.ledger import Ledger
        ledger = Ledger.open(Path(sys.argv[1]))
        ledger.append("pair", "mine", {})
        print("ready", flush=True)
        sys.stdin.read()
        """,
        tmp_path,
    )
    try:
        assert owner.stdout.readline() == "ready\n"
        with pytest.raises(InputError, match=f"in use by process {owner.pid}"):
            Ledger.open(tmp_path)
        # Looking is allowed all the time.
        assert keys(Ledger.view(tmp_path)) == ["mine"]
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    with Ledger.open(tmp_path) as ledger:
        assert keys(ledger) == ["mine"]


def test_a_second_owner_in_the_same_process_is_refused(tmp_path):
    with Ledger.open(tmp_path), pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
        Ledger.open(tmp_path)
    Ledger.open(tmp_path).close()


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_study(tmp_path):
    owner = in_another_process(
        """
        import subprocess, sys
        from pathlib import Path
        from optimizer.ledger import Ledger
        ledger = Ledger.open(Path(sys.argv[1]))
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=0)
        print("ready", flush=True)
        sys.stdin.read()
        """,
        tmp_path,
    )
    assert owner.stdout.readline() == "ready\n"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    try:
        Ledger.open(tmp_path).close()
    finally:
        owner.communicate()


def test_killed_after_every_record_nothing_acknowledged_is_lost(tmp_path):
    for count in range(1, 6):
        directory = tmp_path / str(count)
        owner = in_another_process(
            """
            import os, signal, sys
            from pathlib import Path
            from optimizer.ledger import Ledger
            ledger = Ledger.open(Path(sys.argv[1]))
            for number in range(int(sys.argv[2])):
                ledger.append("pair", str(number), {"text": "x" * 5000})
            os.kill(os.getpid(), signal.SIGKILL)
            """,
            directory,
            count,
        )
        owner.communicate()
        assert owner.returncode == -signal.SIGKILL
        with Ledger.open(directory) as ledger:
            assert keys(ledger) == [str(number) for number in range(count)]
            assert ledger.dropped is None


def test_a_write_that_stops_half_way_leaves_whole_records_and_a_clear_error(tmp_path):
    """A file size limit lets the kernel write a part of the record and refuse the rest, as a full disk does."""
    path = filled(tmp_path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Ledger.open(tmp_path) as ledger:
        # Python ignores SIGXFSZ, so that the limit shows as EFBIG.
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        try:
            with pytest.raises(EnvironmentFailure, match=r"could not be written[\s\S]*resume"):
                ledger.append("pair", "large", {"text": "x" * 1000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        assert ledger.get("pair", "large") is None
        ledger.append("pair", "after", {})
    with Ledger.open(tmp_path) as ledger:
        assert ledger.dropped is None
        assert keys(ledger) == ["p0", "p1", "p2", "after"]


def test_a_really_full_disk(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        written = 0
        with Ledger.open(tmp_path) as ledger:
            with pytest.raises(EnvironmentFailure, match="No space left"):
                for number in range(100):
                    ledger.append("pair", str(number), {"text": "x" * 3000})
                    written += 1
            assert (tmp_path / LEDGER_FILE).read_bytes().endswith(b"\n")
        with Ledger.open(tmp_path) as ledger:
            assert 0 < written == len(ledger)
            assert ledger.dropped is None
        with pytest.raises(EnvironmentFailure, match="study cannot be written"):
            write_study(tmp_path, StudyHeader({"x": "y" * 100_000}, Fingerprint("m", "s")))
        assert not (tmp_path / STUDY_FILE).exists()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_unusable_directory_is_an_environment_failure(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(EnvironmentFailure, match="study directory cannot be used"):
        Ledger.open(blocked / "study")
    (tmp_path / "study" / LEDGER_FILE).mkdir(parents=True)
    with pytest.raises(EnvironmentFailure, match="cannot be opened"):
        Ledger.open(tmp_path / "study")


def test_a_view_changes_nothing_and_does_not_append(tmp_path):
    path = filled(tmp_path)
    torn = path.read_bytes() + b'{"schema"'
    path.write_bytes(torn)
    (tmp_path / LOCK_FILE).unlink()
    view = Ledger.view(tmp_path)
    assert len(view) == 3
    assert view.dropped is not None
    assert path.read_bytes() == torn
    assert not (tmp_path / LOCK_FILE).exists()
    with pytest.raises(ValueError, match="reading only"):
        view.append("pair", "x", {})
    with pytest.raises(InputError, match="no ledger"):
        Ledger.view(tmp_path / "elsewhere")


def test_a_closed_ledger_does_not_append(tmp_path):
    ledger = Ledger.open(tmp_path)
    ledger.close()
    ledger.close()
    with pytest.raises(ValueError, match="closed"):
        ledger.append("pair", "x", {})


def test_every_older_schema_is_read_and_appended_to(tmp_path):
    fixtures = sorted(FIXTURES.glob("schema-*.jsonl"))
    assert [int(path.stem.split("-")[1]) for path in fixtures] == list(range(1, SCHEMA + 1))
    for fixture in fixtures:
        directory = tmp_path / fixture.stem
        directory.mkdir()
        (directory / LEDGER_FILE).write_bytes(fixture.read_bytes())
        with Ledger.open(directory) as ledger:
            assert keys(ledger) == ["c1", "0:c2"]
            assert ledger.load("rejection", "c1", Rejection).stage is Stage.BUILD
            assert ledger.get("pair", "0:c2")["log_ratio"] == 0.021
            ledger.append("pair", "1:c2", {})
        with Ledger.open(directory) as ledger:
            assert len(ledger) == 3
            assert next(iter(ledger.records())).at == (0.0 if fixture.stem == "schema-1" else 1790000000.5)


def test_a_newer_schema_is_refused(tmp_path):
    path = filled(tmp_path)
    with path.open("a") as file:
        file.write(json.dumps({"schema": SCHEMA + 1, "what": "ever"}) + "\n")
    content = path.read_bytes()
    with pytest.raises(InputError, match=f"line 4 has schema {SCHEMA + 1}"):
        Ledger.open(tmp_path)
    assert path.read_bytes() == content


def test_the_lock_is_free_once_the_ledger_is_closed(tmp_path):
    Ledger.open(tmp_path).close()
    with (tmp_path / LOCK_FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# study.json

HEADER = StudyHeader(
    {"models": ["m"], "load": {"duration_s": 2.0}}, Fingerprint("m1", "s1", {"gpu": "H200", "triton": "2.51.0"})
)


def test_a_study_header_comes_back(tmp_path):
    write_study(tmp_path / "new", HEADER)
    assert read_study(tmp_path / "new") == HEADER


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no study can be read"),
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"settings": {}}', "fingerprint is missing"),
        ('{"schema": 99}', "schema 99"),
    ],
)
def test_a_broken_study_header_is_refused(tmp_path, content, complaint):
    if content is not None:
        (tmp_path / STUDY_FILE).write_text(content)
    with pytest.raises(InputError, match=complaint):
        read_study(tmp_path)


def test_the_same_fingerprint_may_go_on(tmp_path):
    check_fingerprint(tmp_path, HEADER, Fingerprint("m1", "s1", {"triton": "2.51.0", "gpu": "H200"}))


def test_another_environment_is_refused_with_every_difference(tmp_path):
    now = Fingerprint("m1", "s1", {"gpu": "A100", "triton": "2.51.0", "driver": "570"})
    with pytest.raises(EnvironmentFailure, match=r"driver: absent -> 570; gpu: H200 -> A100") as refused:
        check_fingerprint(tmp_path, HEADER, now)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize("now", [Fingerprint("m2", "s1", HEADER.fingerprint.facts), Fingerprint("m1", "s2", {})])
def test_another_model_or_workload_is_the_users_to_decide(tmp_path, now):
    with pytest.raises(InputError, match=r"model: m1 -> m2|shapes: s1 -> s2") as refused:
        check_fingerprint(tmp_path, HEADER, now)
    assert refused.value.exit_code == 2
