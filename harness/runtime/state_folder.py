"""Whether a folder is fit to hold locks: a lock that a file system does not really take excludes nobody."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

from harness.errors import Misconfigured

# File systems whose flock is emulated, per client only, or configured away on some hosts.
_NETWORK = frozenset(
    ["nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "orangefs"]
)
_NETWORK_FUSE = frozenset({"ceph", "sshfs", "glusterfs", "s3fs", "gcsfuse", "mount-s3", "rclone"})
_ESCAPED = re.compile(r"\\(\d{3})")


def file_system_of(path: Path, mountinfo: str) -> tuple[str, str]:
    """(mount point, type) of the file system that holds the absolute ``path``, from /proc/self/mountinfo; pure."""
    best = ("/", "unknown")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if not after:
            continue
        mount_point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split()[4])
        # A later mount on the same point covers the earlier one.
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best[0]):
            best = (mount_point, after.split()[0])
    return best


def prepare(state_dir: Path) -> Path:
    """Make the state folder and return it resolved. Raises `Misconfigured` when locks in it would not hold."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        resolved = state_dir.resolve()
        mount_point, kind = file_system_of(resolved, Path("/proc/self/mountinfo").read_text())
        if kind in _NETWORK or kind.removeprefix("fuse.") in _NETWORK_FUSE:
            raise Misconfigured(
                f"the state folder {resolved} is on a network file system ({kind} at {mount_point}), where locks "
                "exclude nobody on other machines and not always on this one; choose a local folder with "
                "SPEC_GATE_STATE"
            )
        if not os.access(resolved, os.W_OK | os.X_OK):
            raise OSError(errno.EROFS, "it cannot be written")
        fd = os.open(resolved, os.O_RDONLY)
        try:
            # Shared, so that two runs that start together do not meet here.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(fd)
    except OSError as error:
        raise Misconfigured(
            f"the state folder {state_dir} cannot hold locks ({error.strerror}); choose a writable local folder with "
            "SPEC_GATE_STATE"
        ) from error
    return resolved
