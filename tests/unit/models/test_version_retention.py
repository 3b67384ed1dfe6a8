from millrace.models.registry.version_files import ModelVersion, dataset_tag, parse_dataset
from millrace.models.registry.version_retention import find_references


def version(number: int, model: str = "digits", source: str = "", **tags: str) -> ModelVersion:
    named = {f"millrace.{name}": value for name, value in tags.items()}
    return ModelVersion(model, number, "", "", (), named, source)


def test_a_base_a_draft_model_and_what_was_copied_are_needed() -> None:
    versions = [
        version(7, model="tuned", base="models:/digits/3"),
        version(8, model="fast", draft="digits/4"),
        version(9, model="other", base="models:/another/5", draft="another/6"),
        version(1, model="prod", source="models:/digits/5"),
        version(2, model="prod", source="models:/m-0123"),
    ]
    assert find_references(versions, "digits") == {
        3: "base of tuned version 7",
        4: "draft model of fast version 8",
        5: "copied as prod version 1",
    }


def test_a_version_says_which_snapshot_it_was_trained_on() -> None:
    assert version(1, dataset=dataset_tag("my version", 4)).dataset == ("my version", 4)
    assert version(1).dataset is None
    assert parse_dataset("things version four") is None
