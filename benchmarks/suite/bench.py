"""What a run of the benchmarks has at hand: the data, the store, the interpreters, and notes on who is left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data import BUCKET, Images
from front import Front
from runner import PATIENCE_S, Case
from venvs import Venv


@dataclass
class Bench:
    """Everything that a workload needs to name its contenders.

    Attributes:
        home: where data, caches and environments are.
        images: the JPEG files.
        front: the store, or None where a workload needs none.
        venv: the peers' interpreter; None runs sds and the limits alone.
        is_quick: small data.
        notes: who is left out, and why.
    """

    home: Path
    images: Images
    front: Front | None
    venv: Venv | None
    is_quick: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def patience_s(self) -> float:
        """That what outlives a run has to end by itself; nobody looks at figures of a smoke run."""
        return 0.2 if self.is_quick else PATIENCE_S

    @property
    def endpoint(self) -> str:
        """Of the store."""
        assert self.front is not None
        return self.front.endpoint

    @property
    def environment(self) -> dict[str, str]:
        """How any S3 client finds the store."""
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
        more = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.endpoint, "S3_ENDPOINT_URL": self.endpoint}
        # a home of their own, so that nobody finds what an earlier run remembered
        return {
            **keys,
            **more,
            "HF_HOME": str(self.home / "hf"),
            "HF_HUB_OFFLINE": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def storage_options(self) -> dict[str, Any]:
        """How sds finds the store."""
        return {"endpoint": self.endpoint, "access_key_id": "any", "secret_access_key": "any", "region": "us-east-1"}

    def dst(self, name: str) -> Path:
        """The cache folder of a contender, for these images: some take what they find there for the data."""
        return self.home / "caches" / str(self.images.num) / name.replace(" ", "-").replace(",", "")

    def ours(self, name: str, script: str, /, *, wipe: bool = True, prepare: bool = False, **args: Any) -> Case:
        """sds."""
        dst = self.dst(name)
        return Case(
            name,
            script,
            {"dst": str(dst), "num": self.images.num, "batch": 64, "epochs": 1, "workers": 0, **args},
            "ours",
            wipe=(dst,) if wipe else (),
            prepare=prepare,
            fresh=(dst,) if prepare else (),
        )

    def limit(self, name: str, kind: str, /, **args: Any) -> Case:
        """A bare loop."""
        dst = self.dst(name)
        told = {"kind": kind, "dst": str(dst), "batch": 64, "bucket": BUCKET, **args}
        return Case(name, "bare.py", told, "limit", wipe=(dst,))

    def decodes(self) -> list[Case]:
        """Bare decodes: in threads, in threads by sds's own transforms, and in processes."""
        kinds = ("decodes", "decodes, sds's way", "decodes, processes")
        return [self.limit(f"bare {kind}", kind, list=str(self.images.lists / "files.txt")) for kind in kinds]

    def peer(
        self,
        name: str,
        package: str,
        script: str,
        /,
        *,
        needs: str = "",
        wipe: bool = True,
        prepare: bool = False,
        remote: bool = True,
        **args: Any,
    ) -> list[Case]:
        """Somebody else: one case, or none with a note. `needs`: the format that the images are converted to first."""
        if self.venv is None:
            return []
        why = self.venv.notes.get(package)
        if why is None and needs:
            why = self.images.convert(self.venv.python, needs)
        if why is not None:
            self.notes.append(f"{name} is left out: {why}")
            return []
        dst = self.dst(name)
        told = {
            "dst": str(dst),
            "num": self.images.num,
            "batch": 64,
            "epochs": 1,
            "workers": 2,
            "bucket": BUCKET,
            **args,
        }
        told.setdefault("endpoint", self.endpoint if remote else "")
        return [
            Case(
                name,
                script,
                told,
                "shards" if needs else "peer",
                self.venv.python,
                wipe=(dst,) if wipe else (),
                prepare=prepare,
                fresh=(dst,) if prepare else (),
                environment=self.environment if remote else {},
            )
        ]
