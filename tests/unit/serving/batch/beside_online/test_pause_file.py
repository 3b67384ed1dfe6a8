import os
import time
from pathlib import Path
from threading import Timer

from millrace.serving.batch.beside_online.pause_file import STALE_SECONDS, PauseFile, go_on


def test_an_actor_goes_on_at_once_where_nobody_paused_it(tmp_path: Path) -> None:
    pause = PauseFile(tmp_path / "batch.paused")
    pause.wait()
    go_on()
    assert pause.waited == 0.0


def test_an_actor_stands_still_until_the_driver_lets_it_go_on(tmp_path: Path) -> None:
    driver, actor = (PauseFile(tmp_path / "batch.paused") for _ in range(2))
    driver.pause()
    timer = Timer(0.3, driver.resume)
    timer.start()
    actor.wait()
    timer.join()
    assert actor.waited >= 0.25
    assert not driver.path.exists()


def test_a_driver_that_died_stops_nobody(tmp_path: Path) -> None:
    pause = PauseFile(tmp_path / "batch.paused")
    pause.pause()
    assert pause.path.stat().st_mode & 0o077 == 0
    long_ago = time.time() - STALE_SECONDS - 1
    os.utime(pause.path, (long_ago, long_ago))
    pause.wait()
    assert pause.waited == 0.0


def test_what_was_not_paused_can_be_resumed(tmp_path: Path) -> None:
    PauseFile(tmp_path / "batch.paused").resume()
