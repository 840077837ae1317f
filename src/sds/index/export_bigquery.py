"""BigQuery -> tables: a query is run once, as a job whose result stays for a day and has a fixed order.

An export that was interrupted goes on with the rows of the same job from where it was. Rows come in pages over HTTPS.
With BIGQUERY_EMULATOR_HOST set, an emulator is asked instead, without credentials.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from sds.errors import AccessDenied, OptionError, QueryError, SourceError
from sds.index.export_config import ExportConfig
from sds.index.export_engines import missing_package
from sds.index.readers import plain_table

__all__ = ["BigQuery"]

_PAGE = 10_000


class BigQuery:
    """A query of BigQuery.

    Attributes:
        job: its id; with it, a later run gets the same rows in the same order.
    """

    def __init__(self, config: ExportConfig, job: str | None) -> None:
        try:
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import bigquery
        except ImportError:
            raise missing_package("google-cloud-bigquery", "bigquery") from None
        self._config = config
        emulator = os.environ.get("BIGQUERY_EMULATOR_HOST")
        nobody: Any = AnonymousCredentials
        more: dict[str, Any] = {"credentials": nobody()} if emulator else {}
        with _translated():
            self._client: Any = bigquery.Client(project=config.project, location=config.region, **more)
        self.job: str | None = None
        self._query_job: Any = None
        if job is not None:
            self._query_job = self._find(job)
        if self._query_job is None:
            self.job = f"sds-export-{uuid.uuid4().hex}"
            with _translated():
                self._query_job = self._client.query(config.sql_query, job_id=self.job, job_retry=None)
        else:
            self.job = job

    def _find(self, job: str) -> Any:
        """The job of an earlier run; None if it is gone, or its result."""
        from google.api_core.exceptions import NotFound

        with _translated():
            try:
                found = self._client.get_job(job)
                return None if found.error_result else found
            except NotFound:
                return None

    def tables(self, start: int) -> Iterator[pa.Table]:
        """The rows from number `start` on."""
        with _translated():
            rows = self._query_job.result(page_size=_PAGE, start_index=start)
            for batch in rows.to_arrow_iterable():
                yield plain_table(pa.Table.from_batches([batch]))

    def close(self) -> None:
        """Lets go of connections."""
        self._client.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Makes errors of Google's packages ours."""
    from google.api_core.exceptions import BadRequest, Forbidden, GoogleAPIError, NotFound, Unauthorized
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAuthError, Unauthorized, Forbidden) as error:
        hint = "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS; the role is bigquery.jobUser"
        raise AccessDenied(f"BigQuery refuses: {_line(error)}", hint=hint) from None
    except (BadRequest, NotFound) as error:
        raise QueryError(f"sql_query failed: {_line(error)}", hint="try it in BigQuery's own console first") from None
    except (GoogleAPIError, OSError) as error:
        if "Project was not passed" in str(error):
            raise OptionError("project is not known", hint="project: my-project, or GOOGLE_CLOUD_PROJECT") from None
        hint = "is the network up? run the export again: it goes on where it was"
        raise SourceError(f"BigQuery does not answer: {_line(error)}", hint=hint) from None


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())
