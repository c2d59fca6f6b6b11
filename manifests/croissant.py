"""The manifest of a version as Croissant, the JSON-LD by which catalogues of datasets describe them.

Core fields of Croissant 1.0 (http://mlcommons.org/croissant/1.0) and the fields of its responsible-AI
vocabulary (RAI 1.0) that a manifest knows. What only people know, such as biases and intended uses, is left
out; `UNKNOWN` names these fields. Each object of the version is a file with its SHA-256, at its path beside the
manifest. Its columns are in compressed chunks that Croissant has no words for, so there is no record set.
"""

from __future__ import annotations

from typing import Any

from orlog.manifests.manifest import Manifest

UNKNOWN = ("rai:dataBiases", "rai:dataSocialImpact", "rai:dataUseCases", "rai:personalSensitiveInformation")

_TERMS = (
    "citeAs column equivalentProperty extract field fileProperty fileObject fileSet format includes isLiveDataset "
    "jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source "
    "subField transform"
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
_ENCODINGS = {"json": "application/json", "h5": "application/x-hdf5"}


def croissant(manifest: Manifest, *, url: str = "") -> dict[str, Any]:
    """Return the description of a version, to be written as `croissant.json` beside its manifest.

    `url` is where the dataset can be found, such as the page of a hub.
    """
    description: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": manifest.name.replace("/", "-"),
        "alternateName": manifest.name,
        "description": manifest.description or f"The dataset {manifest.name}.",
        "conformsTo": ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"],
        "version": manifest.version,
        "identifier": manifest.digest,
        "keywords": ["offline reinforcement learning", "trajectories"],
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": item.path,
                "name": item.path,
                "contentUrl": item.path,
                "contentSize": f"{item.size_bytes} B",
                "encodingFormat": _ENCODINGS.get(item.path.rpartition(".")[2], "application/octet-stream"),
                "sha256": item.sha256,
            }
            for item in manifest.objects
        ],
        "rai:dataCollection": _collection(manifest),
        "rai:dataPreprocessingProtocol": [parent.operation for parent in manifest.lineage],
        "rai:dataLimitations": _limitations(manifest),
    }
    if manifest.license:
        description["license"] = manifest.license
    if url:
        description["url"] = url
    return {key: value for key, value in description.items() if value not in ("", [])}


def _collection(manifest: Manifest) -> str:
    """Return how the data came to be, as far as the manifest tells."""
    parts = [
        (
            f"{manifest.total_episodes:,} episodes of {manifest.total_steps:,} steps in all, as sequences of "
            "observations, actions and rewards."
        )
    ]
    environment, recipe = manifest.environment, manifest.recipe
    if environment is not None:
        versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
        parts.append(f"Simulated in {environment.id}{f' ({versions})' if versions else ''}.")
    if manifest.behavior_policy:
        parts.append(f"Actions were chosen by: {manifest.behavior_policy}")
    if recipe is not None:
        parts.append(f"Built by orlog's recipe {recipe.name}, version {recipe.version}.")
    return " ".join(parts)


def _limitations(manifest: Manifest) -> list[str]:
    """Return what the manifest counts of numbers that are not as they should be."""
    parts = [
        f"{count:,} numbers of {name} are infinite or not a number." for name, count in manifest.non_finite.items()
    ]
    parts += [
        f"{outside.numbers:,} numbers of {name} lie outside the bounds of their space."
        for name, outside in manifest.outside_bounds.items()
    ]
    if any(column.name == "episodes/final_observation_missing" for column in manifest.columns):
        parts.append("Some final observations were not recorded: episodes/final_observation_missing.")
    return parts
