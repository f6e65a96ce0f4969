"""Real Harbor trials and single environments: limits, files, networks, images."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbortrainer.docker.box.container import is_running
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import image as images
from harbortrainer.docker.images.builds import ImageError
from harbortrainer.docker.keeping.cleaning import drain
from tests.support.docker_parts import (
    BASE,
    a_run,
    containers,
    prepare_images,
    remove_run,
    reward,
    run_trial,
    up,
    write_task,
)

pytestmark = pytest.mark.usefixtures("docker_ready")
RUN = a_run("test-environment")


async def test_doing_nothing_earns_nothing(tmp_path: Path) -> None:
    assert reward(await run_trial(write_task(tmp_path / "nothing"), RUN, agent="nop")) == 0.0
    await drain()


async def test_limits_hostname_and_labels_are_on_the_container(tmp_path: Path) -> None:
    task = write_task(tmp_path / "limits", toml="[environment]\ncpus = 0.5\nmemory_mb = 128\n")
    async with up(task, RUN, pids_limit=77) as environment:
        (container,) = containers(RUN)
        attributes = engine().inspect_container(container)
        host = attributes["HostConfig"]
        assert (host["Memory"], host["CpuQuota"], host["CpuPeriod"], host["PidsLimit"]) == (
            128 << 20,
            50_000,
            100_000,
            77,
        )
        assert attributes["Config"]["Hostname"] == "harbor"
        assert attributes["Config"]["Labels"]["harbortrainer.trial"] == "limits__env"
        hog = await environment.exec("tail /dev/zero", timeout_sec=600)  # one endless line, all of it kept
        assert hog.return_code == 137
        assert (await environment.exec("echo alive")).stdout == "alive\n"


async def test_files_go_in_and_come_back(tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "run ä.sh").write_text("#!/bin/sh\n")
    (source / "run ä.sh").chmod(0o755)
    (source / "sub" / "big").write_bytes(bytes(range(256)) * 4096)
    (source / "link").symlink_to("sub/big")
    async with up(write_task(tmp_path / "files"), RUN) as environment:
        await environment.upload_dir(source_dir=source, target_dir="/in/large")
        listed = (
            await environment.exec("stat -c '%U %a' '/in/large/run ä.sh'; ls /in/large/sub; ls -A /in/large/sub/empty")
        ).stdout
        assert listed == "root 755\nbig\nempty\n"
        await environment.download_dir(source_dir="/in/large", target_dir=back)
        assert (back / "sub" / "big").read_bytes() == (source / "sub" / "big").read_bytes()
        assert os.readlink(back / "link") == "sub/big" and (back / "run ä.sh").stat().st_mode & 0o111
        await environment.upload_file(source_path=source / "run ä.sh", target_path="/in/new/place.sh")
        await environment.upload_file(source_path=source / "sub" / "big", target_path="/in/new")
        await environment.download_file(source_path="/in/new/big", target_path=tmp_path / "big")
        assert (tmp_path / "big").read_bytes() == (source / "sub" / "big").read_bytes()
        assert await environment.is_file("/in/new/place.sh")
        with pytest.raises(FileNotFoundError):
            await environment.download_file(source_path="/none", target_path=tmp_path / "none")
        with pytest.raises(FileNotFoundError):
            await environment.download_dir(source_dir="/none", target_dir=tmp_path / "none")


async def test_links_out_of_the_folder_do_not_spoil_a_download(tmp_path: Path) -> None:
    async with up(write_task(tmp_path / "links"), RUN) as environment:
        await environment.ensure_dirs(["/logs/verifier"])
        made = (
            "cd /logs/verifier && echo 1 > reward.txt && ln -s /etc/passwd leak && ln -P leak leak2 && mkfifo pipe && "
            "ln -s ../../../x up"
        )
        assert (await environment.exec(made)).return_code == 0
        for source, target in (("/logs/verifier", tmp_path / "a"), ("/logs/verifier/.", tmp_path / "b")):
            await environment.download_dir(source_dir=source, target_dir=target)
            assert [path.name for path in target.iterdir()] == ["reward.txt"]


async def test_replaced_programs_do_not_hold_up_the_transfer_of_files(tmp_path: Path) -> None:
    async with up(write_task(tmp_path / "replaced"), RUN) as environment:
        replaced = (
            "echo made > /app/made; for p in tar base64; do printf '#!/bin/sh\nsleep 1000' > $(command -v $p); done"
        )
        assert (await environment.exec(replaced)).return_code == 0
        (tmp_path / "given").mkdir()
        (tmp_path / "given" / "file").write_text("given")
        await environment.upload_dir(tmp_path / "given", "/app")
        await environment.upload_file(tmp_path / "given" / "file", "/app/other")
        await environment.download_dir("/app", tmp_path / "taken")
        assert {one.name: one.read_text() for one in (tmp_path / "taken").iterdir()} == {
            "made": "made\n", "file": "given", "other": "given",
        }  # fmt: skip


async def test_a_shell_that_is_lost_while_a_verifier_runs_is_a_fault(tmp_path: Path) -> None:
    """Many verifiers write 0 first, and 1 at their end. While the agent acts, it may have killed the shell itself."""
    async with up(write_task(tmp_path / "lost"), RUN) as environment:
        lose = "echo 0 > /logs/verifier/reward.txt; kill -9 $PPID; sleep 1; echo 1 > /logs/verifier/reward.txt"
        await environment.open_agent_phase()
        assert (await environment.exec(lose)).return_code == 137
        await environment.close_agent_phase(final=True)
        with pytest.raises(RuntimeError, match="the connection to it went down while a command ran"):
            await environment.exec(lose)


async def test_a_network_is_taken_and_given_back_while_running(tmp_path: Path) -> None:
    async with up(write_task(tmp_path / "network"), RUN) as environment:
        for mode, links in ((NetworkMode.NO_NETWORK, "1\n"), (NetworkMode.PUBLIC, "2\n")) * 2:
            await environment.set_network_policy(NetworkPolicy(network_mode=mode))
            assert (await environment.exec("ls /sys/class/net | wc -l")).stdout == links


async def test_a_timeout_is_harbors_error(tmp_path: Path) -> None:
    async with up(write_task(tmp_path / "timeout"), RUN) as environment:
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            await environment.exec("sleep 100", timeout_sec=1)


async def test_a_container_that_goes_down_during_a_command_is_a_fault_and_no_exit_code(tmp_path: Path) -> None:
    async with up(write_task(tmp_path / "down"), RUN) as environment:
        (container,) = containers(RUN)
        running = asyncio.create_task(environment.exec("touch /begun; sleep 1000"))
        while (await environment.exec("test -e /begun")).return_code != 0:
            pass
        engine().kill(container)
        with pytest.raises(RuntimeError, match="went down while a command ran in it"):
            await running


async def test_a_container_whose_end_the_daemon_does_not_know_yet_is_down(tmp_path: Path) -> None:
    """Otherwise its policy would have ended the terminal, and the trial would be graded."""
    async with up(write_task(tmp_path / "late"), RUN) as environment:
        await environment.exec("true")
        first = engine().inspect_container(environment.container)["State"]["Pid"]
        shim = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(shim, signal.SIGSTOP)
        try:
            os.kill(first, signal.SIGKILL)
            assert not await asyncio.to_thread(is_running, environment.container)
            assert engine().inspect_container(environment.container)["State"]["Running"]
        finally:
            os.kill(shim, signal.SIGCONT)


async def test_a_paused_container_does_not_run(tmp_path: Path) -> None:
    """Otherwise a verification that hangs in it would be the policy's fault."""
    async with up(write_task(tmp_path / "paused"), RUN) as environment:
        engine().pause(environment.container)
        try:
            assert not await environment.is_up()
        finally:
            engine().unpause(environment.container)


async def test_a_working_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    task = write_task(tmp_path / "workdir", toml='[environment]\nworkdir = "/no/such"\n')
    result = await run_trial(task, RUN)
    assert result.exception_info is not None and "workdir=/no/such" in result.exception_info.exception_message
    await drain()


async def test_trials_share_one_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[str] = []
    build = images.build
    monkeypatch.setattr(images, "build", lambda *args: (builds.append(args[1]), build(*args)))
    tasks = [write_task(tmp_path / name, dockerfile=f"{BASE}RUN echo {tmp_path} > /made\n") for name in ("one", "two")]
    reference = images.task_reference(tasks[0] / "environment")
    try:
        assert await asyncio.gather(*(prepare_images(tasks) for _ in range(4))) == [1, 1, 1, 1]
        await prepare_images(tasks)
        assert builds == [reference]
        engine().remove_image(reference)  # behind our back
        assert reward(await run_trial(tasks[0], RUN)) == 1.0
        assert builds == [reference, reference]
    finally:
        await drain()
        remove_run(RUN)
        engine().remove_image(reference)


async def test_a_build_that_fails_names_its_task_and_shows_its_log(tmp_path: Path) -> None:
    good = write_task(tmp_path / "good")
    bad = write_task(tmp_path / "bad", dockerfile=BASE + "RUN echo some words && exit 9\n")
    with pytest.raises(ImageError, match=r"cannot build .*code: 9\n(.*\n)*.*some words"):
        await prepare_images([good, bad])
    result = await run_trial(bad, RUN)
    assert result.exception_info is not None and result.exception_info.exception_type == "ImageError"
    assert containers(RUN) == []


async def test_a_dockerfile_for_buildkit_is_built_by_the_cli(tmp_path: Path) -> None:
    dockerfile = f"{BASE}WORKDIR /app\nRUN --mount=type=tmpfs,target=/scratch echo {tmp_path} > /made\n"
    task = write_task(tmp_path / "buildkit", dockerfile=dockerfile)
    assert await prepare_images([task]) == 1
    assert reward(await run_trial(task, RUN)) == 1.0
    await drain()
    remove_run(RUN)
    engine().remove_image(images.task_reference(task / "environment"))


async def test_an_image_that_cannot_be_pulled_names_itself(tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "pull", dockerfile=None, toml='[environment]\ndocker_image = "127.0.0.1:9/no/such:1"\n'
    )
    with pytest.raises(ImageError, match=r"cannot pull image 127.0.0.1:9/no/such:1"):
        await prepare_images([task])
