"""The Spark jobs for spark-submit, which needs a file.

    spark-submit [its options] cdc/spark_job.py mirror [options]

The options and the exit codes are those of `cdc spark`.
"""

from __future__ import annotations

import sys

from cdc.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["spark"]
    main()
