from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import Misconfigured
from harness.runtime.state_folder import file_system_of, prepare

MOUNTS = """\
22 27 0:21 / / rw,relatime - ext4 /dev/vda rw
30 22 0:44 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:45 / /home/me/my\\040disk rw - xfs /dev/vdb rw
32 22 0:46 / /data rw - ext4 /dev/vdc rw
33 22 0:47 / /data rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/state", ("/", "ext4")),
        ("/home/me/state", ("/home", "nfs4")),
        ("/homeless", ("/", "ext4")),
        ("/home/me/my disk/state", ("/home/me/my disk", "xfs")),
        ("/data/state", ("/data", "fuse.sshfs")),
    ],
)
def test_the_innermost_and_latest_mount_holds_a_path(path: str, expected: tuple[str, str]) -> None:
    assert file_system_of(Path(path), MOUNTS) == expected


def test_a_folder_that_cannot_be_made_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="cannot hold locks"):
        prepare(tmp_path / "file" / "state")


def test_a_local_folder_is_made_and_accepted(tmp_path: Path) -> None:
    assert prepare(tmp_path / "a" / "b").is_dir()
