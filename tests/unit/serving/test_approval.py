"""Online and batch answer with the same version: histories, carried out by the plan of a release.

`Home` is a home without servers: the registry is a fake, the release table a real one, and each
replica a set of loaded versions to which the actions of the real plan are done.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.release.actions import (
    Action,
    Record,
    Stage,
    StartSplit,
    Switch,
    Unload,
    Validate,
    Verify,
)
from millrace.serving.release.approval import (
    SCORE,
    Approved,
    Approver,
    Choice,
    Unapproved,
    Undecided,
    decide_approval,
)
from millrace.serving.release.cluster_state import ClusterState, Replica
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.plan import GRACE_SECONDS, plan
from millrace.serving.release.release_state import (
    DesiredVersion,
    Release,
    ReleaseState,
    derive_state,
)
from millrace.serving.rollout.rollout import Split
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import LoadedModel

REFUSAL = "its accuracy of 0.3900 is 60.0% below 0.9700 of version 1; allowed is 5.0%"


@dataclass
class Answers:
    """What a version is expected to answer: one that is broken answers something else.

    Attributes:
        broken: versions that do.
        tried: versions that were asked in a process of their own.
    """

    broken: set[int] = field(default_factory=set)
    tried: list[int] = field(default_factory=list)

    def of(self, version: int) -> Any:
        answers = self

        class Check:
            def validate_in_subprocess(self, artifact: object) -> float:
                answers.tried.append(version)
                if version in answers.broken:
                    raise WorkError("its answers differ from those of its certificate")
                return 0.0

        return Check()


@dataclass
class Home:
    """A registry, a release table, and what each replica has loaded."""

    path: Path
    champion: int | None = None
    refuses: dict[int, str] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    answers: Answers = field(default_factory=Answers)
    rollout: RolloutSpec = field(default_factory=RolloutSpec)
    replicas: list[set[int] | None] = field(default_factory=lambda: [set()])
    staged: set[int] = field(default_factory=set)
    split: Split | None = None
    registry_error: bool = False
    later: float = 0.0
    written: dict[int, dict[str, str | None]] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        return Ledger(str(self.path / "releases"))

    @property
    def state(self) -> ReleaseState:
        return derive_state(self.ledger.releases("m"))

    def now(self) -> float:
        import time

        return time.time() + self.later

    # The registry's side.

    def desired_versions(self, model: str | None = None) -> Mapping[str, DesiredVersion]:
        if self.registry_error:
            raise TransientError("MLflow does not answer")
        return {} if self.champion is None else {"m": desired(self.champion)}

    def describe_promotion(self, model: str) -> str:
        return f"give {model} version 7 the alias champion"

    def fetch(self, model: str, version: int) -> Any:
        if version in self.unreadable:
            raise WorkError(f"the files of version {version} are not those that were signed")

    def verify(self, model: str, version: int, previous: int | None) -> None:
        reason = self.refuses.get(version, "")
        if reason and (previous is not None or reason != REFUSAL):  # which compares with live
            raise WorkError(reason)

    def version_check(self, model: str, version: int) -> Any:
        return self.answers.of(version)

    def write_tags(self, model: str, version: int, tags: Mapping[str, str | None]) -> None:
        self.written.setdefault(version, {}).update(tags)

    def report(self, release: Release) -> None:
        pass

    # Online.

    def release(self, again: bool = False) -> None:
        """Do what the plan says until it says nothing more; a refusal is written down."""
        from datetime import UTC, datetime

        retry_refused_before = datetime.now(UTC) if again else None
        for _ in range(12):
            actions = [
                a
                for a in plan(self.cluster(retry_refused_before))
                if isinstance(a, Stage | Verify | Validate | Record | Switch | Unload | StartSplit)
            ]
            if not actions:
                return
            for action in actions:
                try:
                    self.do(action)
                except WorkError as error:
                    assert self.champion is not None
                    self.append("refused", self.champion, error.what)
                    break
        raise AssertionError(f"the release does not end: {actions}")

    def cluster(self, retry_refused_before: Any = None) -> ClusterState:
        def index(loaded: set[int] | None) -> tuple[LoadedModel, ...] | None:
            if loaded is None:
                return None
            arms = (self.split.champion, self.split.candidate) if self.split else ()
            entries = [LoadedModel("m", version, "READY") for version in loaded]
            return (*entries, *(LoadedModel("m.arms", version, "READY") for version in arms))

        staged = {version: f"d{version}" for version in self.staged}
        return ClusterState(
            desired_versions={} if self.registry_error else self.desired_versions(),
            states={"m": self.state},
            replicas=tuple(
                Replica(Endpoint(grpc_port=port), index(loaded))
                for port, loaded in enumerate(self.replicas)
            ),
            staged={"m": staged} if staged else {},
            rollouts={"m": self.rollout} if self.rollout.kind != "direct" else {},
            splits={"m": self.split} if self.split else {},
            now=self.now(),
            retry_refused_before=retry_refused_before,
            registry_error=TransientError("away") if self.registry_error else None,
        )

    def do(self, action: Action) -> None:
        match action:
            case Stage():
                self.fetch("m", action.version)
                self.staged.add(action.version)
            case Verify():
                self.verify("m", action.version, action.previous)
            case Validate():
                self.answers.of(action.version).validate_in_subprocess(None)
            case Record():
                self.append(action.kind, action.desired.version, action.reason)
            case Switch():
                self.replicas[action.endpoint.grpc_port] = {action.version, *action.keep}
                self.split = None
            case Unload():
                self.replicas[action.endpoint.grpc_port] = set()
            case StartSplit():
                self.split = action.split
                self.replicas[action.endpoint.grpc_port] = {action.split.champion}

    def append(self, kind: Any, version: int, reason: str = "") -> None:
        self.ledger.append(Release("m", kind, version, f"d{version}", reason=reason))

    def online(self) -> int | None:
        """Return the version that clients get, which all replicas agree on."""
        (answering,) = {max(loaded, default=None) for loaded in self.replicas if loaded is not None}
        return answering

    # Batch.

    def approver(self) -> Approver:
        repository = Repository(self.path / "models", self.path)
        return Approver(self, self.ledger, repository, self.now)  # type: ignore[arg-type]

    def score(self) -> int | None:
        """Return the version that a batch job takes; None where it refuses."""
        try:
            return self.approver().choose("m").desired.version
        except InputError:
            return None

    def named(self, version: int) -> Choice:
        return self.approver().choose_named("m", desired(version))

    def promote(self, version: int | None) -> None:
        self.champion = version


def desired(version: int) -> DesiredVersion:
    return DesiredVersion(version, f"d{version}")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    Installation(tmp_path, "", "").prepared()
    return Home(tmp_path)


def live(home: Home, version: int = 1) -> None:
    home.promote(version)
    home.release()
    assert home.online() == version


def moved(home: Home) -> int | None:
    live(home)
    home.promote(2)
    home.release()
    return 2


def moved_a_moment_ago(home: Home) -> int | None:
    live(home)
    home.promote(2)
    return 1


def refused(home: Home) -> int | None:
    live(home)
    home.refuses[2] = REFUSAL
    home.promote(2)
    home.release()
    return 1


def refused_with_nothing_live(home: Home) -> int | None:
    home.refuses[1] = "its certificate says that it did not pass its gates"
    home.promote(1)
    home.release()
    return None


def refused_before_it_was_staged(home: Home) -> int | None:
    home.unreadable.add(1)
    home.promote(1)
    home.release()
    assert home.state.has_refused(desired(1))
    home.unreadable.clear()
    home.release()
    assert home.online() is None
    return None


def alias_removed_after_that(home: Home) -> int | None:
    refused_before_it_was_staged(home)
    home.promote(None)
    home.release()
    assert home.ledger.releases("m")[-1].kind == "left"
    return None


def alias_set_again_after_that(home: Home) -> int | None:
    alias_removed_after_that(home)
    home.promote(1)
    home.release()
    return 1


def rolled_back(home: Home) -> int | None:
    moved(home)
    home.promote(1)
    home.release()
    return 1


def never_released(home: Home) -> int | None:
    home.promote(1)
    assert home.score() == 1  # decides, and a release after it agrees
    assert [each.kind for each in home.ledger.releases("m")] == ["accepted"]
    home.release()
    return 1


def never_released_and_bad(home: Home) -> int | None:
    home.answers.broken.add(1)
    home.promote(1)
    assert home.score() is None
    home.release()
    return None


def triton_down(home: Home) -> int | None:
    live(home)
    home.replicas = [None]
    home.promote(2)
    home.release()
    assert home.score() == 1
    home.replicas = [set()]
    home.release()  # it is there again, and only now the new version can be proved
    return 2


def canary(home: Home) -> int | None:
    live(home)
    home.rollout = RolloutSpec(kind="canary", steps=(1.0, 50.0), hold_s=600)
    home.promote(2)
    home.release()
    assert home.split is not None
    assert home.split.candidate == 2
    return 1


def alias_removed(home: Home) -> int | None:
    live(home)
    home.promote(None)
    home.release()
    return 1


def alias_gone_for_good(home: Home) -> int | None:
    alias_removed(home)
    home.later = GRACE_SECONDS + 1
    home.release()
    return None


def version_deleted(home: Home) -> int | None:
    """The registry takes the alias of a version that is deleted; what is live stays a while."""
    live(home)
    home.promote(None)
    return 1


def two_replicas(home: Home) -> int | None:
    home.replicas = [set(), set()]
    live(home)
    home.replicas[1] = None
    home.promote(2)
    home.release()  # the quorum is one
    return 2


def withdrawn_and_tried_again(home: Home) -> int | None:
    refused(home)
    home.refuses.clear()
    home.release()
    assert home.online() == 1 == home.score()
    home.release(again=True)
    return 2


def registry_away_from_online(home: Home) -> int | None:
    live(home)
    home.registry_error = True
    home.release()
    home.registry_error = False
    return 1


def back_after_it_was_unloaded(home: Home) -> int | None:
    alias_gone_for_good(home)
    home.later = 0.0
    home.promote(1)
    home.answers.tried.clear()
    assert home.score() == 1
    assert home.answers.tried == []  # it was live once
    home.release()
    return 1


HISTORIES: list[Callable[[Home], int | None]] = [
    *(moved, moved_a_moment_ago, refused, refused_with_nothing_live, rolled_back, never_released),
    *(never_released_and_bad, triton_down, canary, alias_removed, alias_gone_for_good),
    *(version_deleted, two_replicas, withdrawn_and_tried_again, registry_away_from_online),
    *(back_after_it_was_unloaded, refused_before_it_was_staged, alias_removed_after_that),
    alias_set_again_after_that,
]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda each: each.__name__)
def test_online_and_batch_answer_with_the_same_version(
    home: Home, history: Callable[[Home], int | None]
) -> None:
    version_check = history(home)
    assert home.online() == version_check
    assert home.score() == version_check
    assert home.score() == version_check


def test_the_reason_says_why_the_alias_is_not_followed(home: Home) -> None:
    refused(home)
    choice = home.approver().choose("m")
    assert choice.is_approved
    assert choice.reason == (
        f"version 1 is live; version 2 has the alias champion and was refused: {REFUSAL}"
    )


def test_without_a_champion_the_error_names_the_version_to_promote(home: Home) -> None:
    with pytest.raises(InputError, match="m has no champion to score with") as caught:
        home.approver().choose("m")
    assert caught.value.hint == "give m version 7 the alias champion"


def test_a_refused_champion_with_nothing_live_is_an_error_with_the_way_out(home: Home) -> None:
    refused_with_nothing_live(home)
    with pytest.raises(InputError, match="version 1 of m has the alias champion") as caught:
        home.approver().choose("m")
    assert "did not pass its gates" in str(caught.value.seen)
    for way in ("move the alias", "`millrace release`", "--version 1"):
        assert way in str(caught.value.hint)


def test_a_batch_job_tries_a_version_once_and_looks_at_what_is_required_each_time(
    home: Home,
) -> None:
    home.promote(1)
    assert (home.score(), home.score()) == (1, 1)
    assert home.answers.tried == [1]
    home.refuses[1] = "nobody approved it"
    assert home.score() is None
    home.release()
    assert home.online() is None


def test_what_a_batch_job_refused_it_judges_again_and_a_release_hears_of_it(home: Home) -> None:
    home.refuses[1] = "nobody approved it"
    home.promote(1)
    assert (home.score(), home.score()) == (None, None)
    assert [each.kind for each in home.ledger.releases("m")] == ["refused"]
    assert home.written[1]["millrace.status"] == "refused"
    assert home.state.has_refused(desired(1))
    home.refuses.clear()
    assert home.score() == 1
    assert [e.kind for e in home.ledger.releases("m")] == ["refused", "withdrawn", "accepted"]
    assert home.written[1]["millrace.status"] is None
    home.release()
    assert home.online() == 1


def test_an_acceptance_spares_no_version_its_trial_on_the_server(home: Home) -> None:
    home.promote(1)
    home.score()
    home.answers.broken.add(1)  # on the server it answers otherwise
    home.release()
    assert home.online() is None
    assert home.state.has_refused(desired(1))


def test_a_refusal_holds_for_that_version_alone(home: Home) -> None:
    refused_with_nothing_live(home)
    home.promote(2)
    assert home.score() == 2


@pytest.mark.parametrize(("version", "is_approved"), [(1, True), (2, False)])
def test_another_version_is_scored_with_only_by_its_number(
    home: Home, version: int, is_approved: bool
) -> None:
    refused(home)
    choice = home.named(version)
    assert (choice.desired.version, choice.is_approved) == (version, is_approved)
    assert choice.reason.startswith(f"requested by its number, {version}; version 1 is live")


def test_a_version_that_is_asked_for_by_number_is_not_judged(home: Home) -> None:
    home.promote(1)
    assert not home.named(1).is_approved
    assert home.ledger.releases("m") == ()
    home.score()
    assert home.named(1).is_approved


def test_a_fault_that_passes_refuses_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.promote(1)

    def away(*_: object) -> None:
        raise TransientError("the artifact store does not answer")

    monkeypatch.setattr(home, "fetch", away, raising=False)
    with pytest.raises(TransientError):
        home.approver().choose("m")
    assert home.ledger.releases("m") == ()


def test_a_version_of_another_tool_is_no_version_to_judge(home: Home) -> None:
    def foreign(*_: object) -> None:
        raise InputError("m version 1 has no digest")

    home.fetch = foreign  # type: ignore[method-assign]
    home.desired_versions = lambda model=None: {"m": DesiredVersion(1, "")}  # type: ignore[method-assign]
    with pytest.raises(InputError, match="has no digest"):
        home.approver().choose("m")
    assert home.ledger.releases("m") == ()


def test_the_decision_is_one_of_plain_values() -> None:
    nothing = ReleaseState()
    assert decide_approval("m", nothing, desired(1), 0) == Undecided(desired(1), needs_trial=True)
    assert isinstance(decide_approval("m", nothing, None, 0), Unapproved)
    known = ReleaseState(live=Release("m", "live", 1, "d1"))
    assert decide_approval("m", known, desired(1), 0) == Approved(desired(1), "version 1 is live")
    by_score = ReleaseState(refused=Release("m", "refused", 1, "d1", asked_by=SCORE))
    assert decide_approval("m", by_score, desired(1), 0) == Undecided(desired(1), needs_trial=True)
