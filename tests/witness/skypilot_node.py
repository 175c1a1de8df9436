"""SkyPilot's provisioner for Google Cloud makes two nodes at an endpoint, looks at them and deletes them.

`PYTHON skypilot_node.py URL PROJECT ZONE`, with a Python that has skypilot[gcp], and Google's credentials in the
environment. Prints what SkyPilot has seen, as JSON.
"""

import functools
import json
import sys

import googleapiclient.discovery
from sky.provision import common, gcp

url, project, zone = sys.argv[1:]
region = zone.rpartition("-")[0]
# SkyPilot has no setting for it.
googleapiclient.discovery.build = functools.partial(
    googleapiclient.discovery.build, client_options={"api_endpoint": f"{url}/compute/v1/"}
)
# As in its template of a cluster with GPUs, sky/templates/gcp-ray.yml.j2.
node = {
    "labels": {"skypilot-user": "ada"},
    "machineType": "n1-standard-8",
    "disks": [
        {
            "boot": True,
            "autoDelete": True,
            "type": "PERSISTENT",
            "initializeParams": {
                "diskSizeGb": 100,
                "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
                "diskType": f"zones/{zone}/diskTypes/pd-balanced",
            },
        }
    ],
    "guestAccelerators": [
        {"acceleratorType": f"projects/{project}/zones/{zone}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
    ],
    "metadata": {"items": [{"key": "ssh-keys", "value": "ada:ssh-ed25519 AAAA"}]},
    "scheduling": {
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "provisioningModel": "SPOT",
        "preemptible": True,
    },
    "networkInterfaces": [
        {
            "subnetwork": f"https://www.googleapis.com/compute/v1/projects/{project}/regions/{region}/subnetworks/default",
            "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
        }
    ],
    "serviceAccounts": [
        {
            "email": f"sky@{project}.iam.gserviceaccount.com",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        }
    ],
}
place = {"region": region, "availability_zone": zone, "project_id": project}
config = common.ProvisionConfig(
    provider_config=place,
    authentication_config={},
    docker_config={},
    node_config=node,
    count=2,
    tags={},
    resume_stopped_nodes=True,
    ports_to_open_on_launch=None,
)
record = gcp.run_instances(region, "digits", "digits-ada", config)
info = gcp.get_cluster_info(region, "digits-ada", place)
statuses = gcp.query_instances("digits", "digits-ada", place)
gcp.terminate_instances("digits-ada", place)
seen = {
    "created": record.created_instance_ids,
    "head": record.head_instance_id,
    "addresses": {name: [one.internal_ip, one.external_ip] for name, (one,) in info.instances.items()},
    "statuses": {name: status.value for name, (status, _) in statuses.items()},
    "left": list(gcp.query_instances("digits", "digits-ada", place)),
}
sys.stdout.write(json.dumps(seen))
