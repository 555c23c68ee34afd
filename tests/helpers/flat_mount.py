"""A FUSE mount like gcsfuse's of a flat bucket: files can be renamed, folders cannot.

`python flat_mount.py FOLDER MOUNT` mounts FOLDER at MOUNT until the process ends.
"""

import errno
import os
import sys

import mfusepy


class Flat(mfusepy.Operations):
    use_ns = True

    def __init__(self, folder):
        self.folder = folder

    def _real(self, path):
        return self.folder + path

    def access(self, path, amode):
        if not os.access(self._real(path), amode):
            raise mfusepy.FuseOSError(errno.EACCES)
        return 0

    def getattr(self, path, fh=None):
        found = os.lstat(self._real(path))
        names = ("mode", "nlink", "uid", "gid", "size")
        times = {f"st_{t}time": getattr(found, f"st_{t}time_ns") for t in "acm"}
        return {f"st_{name}": getattr(found, f"st_{name}") for name in names} | times

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self._real(path))]

    def mkdir(self, path, mode):
        return os.mkdir(self._real(path), mode)

    def rmdir(self, path):
        return os.rmdir(self._real(path))

    def unlink(self, path):
        return os.unlink(self._real(path))

    def rename(self, old, new):
        if os.path.isdir(self._real(old)):
            raise mfusepy.FuseOSError(errno.EMFILE)  # What gcsfuse answers.
        return os.rename(self._real(old), self._real(new))

    def chmod(self, path, mode):
        return os.chmod(self._real(path), mode)

    def chown(self, path, uid, gid):
        return os.chown(self._real(path), uid, gid)

    def utimens(self, path, times=None):
        return os.utime(self._real(path), ns=times)

    def statfs(self, path):
        found = os.statvfs(self._real(path))
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "flag")
        return {f"f_{name}": getattr(found, f"f_{name}") for name in (*names, "frsize", "namemax")}

    def open(self, path, flags):
        return os.open(self._real(path), flags)

    def create(self, path, mode, fi=None):
        return os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        return os.truncate(self._real(path), length)

    def fsync(self, path, datasync, fh):
        return os.fsync(fh)

    def release(self, path, fh):
        return os.close(fh)


if __name__ == "__main__":
    folder, mount = sys.argv[1:]
    mfusepy.FUSE(Flat(folder), mount, foreground=True)
