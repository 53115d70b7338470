"""What a service is told of the servers."""

from pathlib import Path

from darkroom.local.aws import AwsEndpoint
from darkroom.local.processes import Supervisor
from darkroom.local.servers import Servers

USERS_OWN = {
    "PATH": "/bin",
    "AWS_PROFILE": "production",
    "AWS_ENDPOINT_URL_S3": "https://s3",
    "AWS_ACCESS_KEY_ID": "AKIA",
}


def _servers(tmp_path: Path, aws: AwsEndpoint | None) -> Servers:
    return Servers(
        mongo_url="mongodb://m/?replicaSet=rs0",
        kafka_bootstrap="k:9092",
        aws_endpoint_url="http://a",
        aws_region="eu-west-1",
        data_dir=tmp_path,
        mongo=None,
        kafka=None,
        aws=aws,
    )


def test_with_the_local_endpoint_nothing_of_the_users_account_is_passed_on(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        aws = AwsEndpoint(url="http://a", region="eu-west-1", process=supervisor.prepare("aws", ["true"]))
        told = _servers(tmp_path, aws).process_environment(USERS_OWN)
    assert told["PATH"] == "/bin"
    assert "AWS_PROFILE" not in told
    assert "AWS_ENDPOINT_URL_S3" not in told
    assert (told["AWS_ACCESS_KEY_ID"], told["AWS_SECRET_ACCESS_KEY"]) == ("test", "test")
    assert told["AWS_ENDPOINT_URL"] == "http://a"
    assert told["DARKROOM_MONGO_URL"] == "mongodb://m/?replicaSet=rs0"
    assert told["DARKROOM_KAFKA_BOOTSTRAP"] == "k:9092"
    assert told["AWS_REGION"] == told["AWS_DEFAULT_REGION"] == "eu-west-1"


def test_with_the_users_own_endpoint_the_users_account_is_used(tmp_path: Path) -> None:
    told = _servers(tmp_path, None).process_environment(USERS_OWN)
    assert told["AWS_PROFILE"] == "production"
    assert told["AWS_ACCESS_KEY_ID"] == "AKIA"
