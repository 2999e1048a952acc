"""Small files of a folder as text: through Spark's file systems in the driver, through fsspec in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final, Protocol

from py4j.java_collections import JavaArray
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_bridge.java_classes import java_class

__all__ = ["Folder", "FsspecFolder", "HadoopFolder"]

_NOT_IN_NAMES: Final = "\0"
"""No name of a file contains it."""


class Folder(Protocol):
    """A folder that need not exist. Its methods raise OSError."""

    def names(self) -> list[str]:
        """Names of the files and folders in it; empty if it does not exist."""
        ...

    def text(self, name: str) -> str:
        """A file's content."""
        ...


class FsspecFolder:
    """A folder, read with the libraries of this Python: s3fs for s3a://, gcsfs for gs://, ..."""

    def __init__(self, folder: str) -> None:
        """Raises OSError if there is no library for the folder's URL."""
        # imported here, because only the Python processes that read a folder need it
        from fsspec.core import url_to_fs

        try:
            self._files, self._path = url_to_fs(folder)
        except (ImportError, ValueError) as error:
            raise OSError(str(error)) from None

    def names(self) -> list[str]:
        """See `Folder`."""
        if not self._files.exists(self._path):
            return []
        return [each.rsplit("/", 1)[1] for each in self._files.ls(self._path, detail=False)]

    def text(self, name: str) -> str:
        """See `Folder`."""
        with self._files.open(f"{self._path}/{name}", "r") as file:
            return str(file.read())


class HadoopFolder:
    """A folder on any file system that Spark can write, with Spark's settings for it (Hadoop's FileSystem)."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """Raises OSError if Spark has no such file system."""
        context, session = spark.sparkContext, spark._jsparkSession  # noqa: SLF001  (PySpark has no file system of its own)
        jvm, gateway = context._jvm, context._gateway  # noqa: SLF001
        assert jvm is not None
        assert gateway is not None
        self._path = java_class(jvm, "org.apache.hadoop.fs.Path")
        self._paths = java_class(jvm, "org.apache.hadoop.fs.FileUtil")
        self._joined = java_class(jvm, "org.apache.commons.lang3.StringUtils")
        self._lines = java_class(jvm, "org.apache.commons.io.IOUtils")
        self._new_array = gateway.new_array
        self._object = java_class(jvm, "java.lang.Object")
        self._system = java_class(jvm, "java.lang.System")
        self._given = folder
        with _os_errors():
            self._folder = self._path(folder)
            self._files = self._folder.getFileSystem(session.sessionState().newHadoopConf())

    def names(self) -> list[str]:
        """See `Folder`."""
        with _os_errors():
            if not self._files.exists(self._folder):
                return []
            paths = self._texts_of(self._paths.stat2Paths(self._files.listStatus(self._folder)))
            return [each.rpartition("/")[2] for each in paths]

    def text(self, name: str) -> str:
        """See `Folder`."""
        with _os_errors(), closing(self._files.open(self._path(self._folder, name))) as stream:
            return str(self._lines.toString(stream, "UTF-8"))

    def put(self, name: str, text: str) -> None:
        """Write a new file. It appears complete, by a rename. Raises OSError."""
        with _os_errors():
            unfinished = self._path(self._folder, "_unfinished")
            with closing(self._files.create(unfinished, True)) as stream:
                stream.write(bytearray(text.encode()))
            if not self._files.rename(unfinished, self._path(self._folder, name)):
                raise OSError(f"{name} cannot be put there")

    def _texts_of(self, found: JavaArray) -> list[str]:
        """The elements of a Java array as texts, by one call: one for each of them takes longer than the listing."""
        if not (size := len(found)):
            return []
        # Py4J finds no method for an array of another class than the method's own.
        copied = self._new_array(self._object, size)
        self._system.arraycopy(found, 0, copied, 0, size)
        return str(self._joined.join(copied, _NOT_IN_NAMES)).split(_NOT_IN_NAMES)

    def address(self) -> str:
        """The folder's URL, for programs that do not know Spark's default file system; a plain path if it is local."""
        with _os_errors():
            local = self.is_local()
            return str(self._path(self.absolute()) if local else self._files.makeQualified(self._folder))

    def absolute(self) -> str:
        """The folder as it was given, if it is absolute. A relative folder is resolved as Spark resolves it.

        On the local file system, this is from the working directory of Spark's driver.
        """
        with _os_errors():
            if self._folder.isAbsolute():
                return self._given
            whole = self._files.makeQualified(self._folder)
            return str(whole.toUri().getPath() if self.is_local() else whole)

    def is_local(self) -> bool:
        """True when the folder is on the local file system of this machine."""
        with _os_errors():
            return str(self._files.getUri().getScheme()) == "file"

    def size_bytes(self) -> int:
        """Size of all files in the folder. Raises OSError."""
        with _os_errors():
            return int(self._files.getContentSummary(self._folder).getLength())

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its content, if it exists. Raises OSError."""
        with _os_errors():
            self._files.delete(self._path(self._folder, name), True)

    def delete_all(self) -> None:
        """Delete the folder with its content, if it exists. Raises OSError."""
        with _os_errors():
            self._files.delete(self._folder, True)


@contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise OSError(" ".join(str(error.java_exception).split())) from None
