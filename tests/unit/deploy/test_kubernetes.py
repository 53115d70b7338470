"""The Kubernetes manifests against the schemas of Kubernetes and KEDA, and against what the services are."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from pydantic_settings import BaseSettings

import asset_api.settings
import notifier.settings
import outbox_relay.settings
import processor.settings
import s3_bridge.settings
from darkroom.contracts.topics import Topics
from darkroom.life import app as life
from darkroom.runtime.settings import PREFIX
from unit.deploy.operations import ReconcilerSettings, refused_options

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
KEDA = json.loads(Path(__file__).with_name("keda.schema.json").read_text(encoding="utf-8"))
KUBERNETES = "1.34"
DOCUMENTS: list[dict[str, Any]] = [
    document
    for file in sorted(FOLDER.rglob("*.yaml"))
    if file.name != "kustomization.yaml"
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]
DEPLOYMENTS = [document for document in DOCUMENTS if document["kind"] == "Deployment"]
SETTINGS: dict[str, type[BaseSettings]] = {
    "asset-api": asset_api.settings.Settings,
    "s3-bridge": s3_bridge.settings.PollerSettings,
    "processor": processor.settings.Settings,
    "outbox-relay": outbox_relay.settings.Settings,
    "sweeper": life.Settings,
    "reconciler": ReconcilerSettings,
    "notifier": notifier.settings.Settings,
}
LEASED = {"sweeper", "reconciler"}
"""Of which one works at a time: nobody scales them."""
OF_AWS = {"AWS_REGION"}


def called(document: dict[str, Any]) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


def of_kind(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in DOCUMENTS if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def plain_settings(name: str) -> set[str]:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return {line.split("=", 1)[0] for line in lines}


def validate(document: dict[str, Any]) -> None:
    if document["apiVersion"].startswith("keda.sh/"):
        jsonschema.Draft202012Validator(KEDA).validate(document)
    else:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("document", DOCUMENTS, ids=called)
def test_every_manifest_is_what_its_schema_asks(document: dict[str, Any]) -> None:
    validate(document)


@pytest.mark.parametrize("kind", ["Deployment", "ScaledObject"])
def test_the_schemas_refuse_a_misspelt_field(kind: str) -> None:
    good = of_kind(kind, "processor")
    wrong = {**good, "spec": {**good["spec"], "replicaz": 1}}
    with pytest.raises(jsonschema.ValidationError):
        validate(wrong)


def test_there_is_one_deployment_a_service_named_by_the_kustomization() -> None:
    assert {d["metadata"]["name"] for d in DEPLOYMENTS} == SETTINGS.keys()
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    assert {container(d)["image"] for d in DEPLOYMENTS} == {image["name"] for image in kustomization["images"]}
    assert {file.name for file in FOLDER.glob("*.yaml")} == {*kustomization["resources"], "kustomization.yaml"}


def test_the_notifier_is_a_component_that_is_left_out_by_default() -> None:
    assert "components" not in yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    folder = FOLDER / "notifier"
    component = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert component["kind"] == "Component"
    assert component["resources"] == [file.name for file in folder.glob("*.yaml") if file.name != "kustomization.yaml"]
    assert (component["configMapGenerator"][0]["name"], component["configMapGenerator"][0]["envs"]) == (
        "darkroom-notifier",
        ["settings.env"],
    )
    assert {d["spec"]["template"]["spec"]["containers"][0]["name"] for d in DEPLOYMENTS} >= {"notifier"}


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=called)
def test_a_service_is_told_settings_that_it_has_and_all_that_it_must_have(deployment: dict[str, Any]) -> None:
    settings = SETTINGS[deployment["metadata"]["name"]]
    known = {PREFIX + name.upper() for name in settings.model_fields}
    needed = {PREFIX + name.upper() for name, field in settings.model_fields.items() if field.is_required()}
    given = {variable["name"] for variable in container(deployment)["env"]}
    assert given - OF_AWS <= known
    assert needed <= given


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=called)
def test_plain_settings_are_in_the_file_and_secrets_are_not(deployment: dict[str, Any]) -> None:
    plain = plain_settings("settings.env")
    optional = plain_settings("notifier/settings.env")
    for variable in container(deployment)["env"]:
        source = variable.get("valueFrom", {})
        if (reference := source.get("configMapKeyRef", {})).get("name") == "darkroom":
            assert reference["key"] in plain
        elif reference:
            assert reference["key"] in optional or reference["optional"]
        elif "secretKeyRef" in source:
            assert variable["name"] not in plain | optional
    secret = {"DARKROOM_MONGO_URL", "DARKROOM_JWT_SECRET", "DARKROOM_KAFKA_CONFIG", "DARKROOM_WEBHOOK_SECRET"}
    told = {variable["name"]: variable for variable in container(deployment)["env"]}
    assert all("secretKeyRef" in told[name]["valueFrom"] for name in secret & told.keys())


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=called)
def test_a_service_has_no_rights_and_limits_on_what_it_takes(deployment: dict[str, Any]) -> None:
    pod, only = deployment["spec"]["template"]["spec"], container(deployment)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert only["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in only["resources"]["limits"]
    of_kind("ServiceAccount", pod["serviceAccountName"])


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=called)
def test_a_service_is_moved_with_care(deployment: dict[str, Any]) -> None:
    name = deployment["metadata"]["name"]
    budget = of_kind("PodDisruptionBudget", name)["spec"]
    assert budget["selector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]
    grace = SETTINGS[name].model_fields.get("grace_seconds")
    assert grace is None or deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > grace.default
    if name in LEASED:
        assert deployment["spec"]["replicas"] == 1
    else:
        # Whoever scales it decides how many: a number here would undo that at each deployment.
        assert "replicas" not in deployment["spec"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=called)
def test_prometheus_is_led_to_a_port_that_the_container_has_and_no_service_shows(deployment: dict[str, Any]) -> None:
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    ports = {port["containerPort"]: port["name"] for port in container(deployment)["ports"]}
    scraped = int(annotations["prometheus.io/port"])
    assert annotations["prometheus.io/path"] == "/metrics"
    assert scraped in ports
    shown = [port["targetPort"] for d in DOCUMENTS if d["kind"] == "Service" for port in d["spec"]["ports"]]
    assert deployment["metadata"]["name"] != "asset-api" or ports[scraped] not in shown


@pytest.mark.parametrize("name", sorted(LEASED))
def test_what_tidies_up_goes_on_by_the_command_line(name: str) -> None:
    arguments = container(of_kind("Deployment", name))["args"]
    assert refused_options(arguments) == set()
    assert "--every" in arguments
    assert not [d for d in DOCUMENTS if d["kind"] == "ScaledObject" and d["metadata"]["name"] == name]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_service_is_asked_how_it_is_and_given_time_to_wait_for_its_servers(name: str) -> None:
    only = container(of_kind("Deployment", name))
    assert only["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert only["readinessProbe"]["httpGet"]["path"] == "/readyz"
    started = only["startupProbe"]
    assert started["periodSeconds"] * started["failureThreshold"] > 120
    dockerfile = (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")
    target = dockerfile.split(f"AS {only['image'].removeprefix('darkroom/')}\n", 1)[1].split("FROM", 1)[0]
    assert f"EXPOSE {' '.join(str(port['containerPort']) for port in only['ports'])}\n" in target


def test_the_processors_follow_the_lag_of_their_group_up_to_one_a_partition() -> None:
    spec = of_kind("ScaledObject", "processor")["spec"]
    (trigger,) = spec["triggers"]
    fields = processor.settings.Settings.model_fields
    assert trigger["metadata"]["consumerGroup"] == fields["processor_group"].default
    assert trigger["metadata"]["topic"] == Topics().uploaded
    assert spec["maxReplicaCount"] == Topics().specs()[0].partitions


def test_the_notifiers_follow_the_lag_of_theirs() -> None:
    spec = of_kind("ScaledObject", "notifier")["spec"]
    (trigger,) = spec["triggers"]
    fields = notifier.settings.Settings.model_fields
    assert trigger["metadata"]["consumerGroup"] == fields["notifier_group"].default
    assert trigger["metadata"]["topic"] == Topics().events


def test_every_scaler_has_a_deployment_and_reads_variables_that_it_is_given() -> None:
    for scaler in (document for document in DOCUMENTS if document["kind"] == "ScaledObject"):
        deployment = of_kind("Deployment", scaler["spec"]["scaleTargetRef"]["name"])
        given = {variable["name"] for variable in container(deployment)["env"]}
        for trigger in scaler["spec"]["triggers"]:
            assert {value for key, value in trigger["metadata"].items() if key.endswith("FromEnv")} <= given
            if reference := trigger.get("authenticationRef"):
                of_kind("TriggerAuthentication", reference["name"])


def test_the_bridge_is_scaled_in_the_region_of_the_queue() -> None:
    (trigger,) = of_kind("ScaledObject", "s3-bridge")["spec"]["triggers"]
    assert f"AWS_REGION={trigger['metadata']['awsRegion']}" in (FOLDER / "settings.env").read_text(encoding="utf-8")


def test_decoders_fit_into_the_memory_of_their_container() -> None:
    only = container(of_kind("Deployment", "processor"))
    told = {variable["name"]: variable.get("value") for variable in only["env"]}
    decoders = int(told["DARKROOM_PROCESSOR_DECODERS"]) * int(told["DARKROOM_DECODE_MEMORY_BYTES"])
    assert decoders + 512 * 2**20 <= int(only["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
