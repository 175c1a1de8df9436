"""dstack's provisioner for Google Cloud makes a node at an endpoint, looks at it and deletes it.

`PYTHON dstack_node.py URL PROJECT ZONE`, with a Python that has dstack[gcp], and Google's credentials in the
environment. Prints what dstack has seen, as JSON.
"""

import json
import sys
import time

from google.api_core.exceptions import NotFound
from google.cloud import compute_v1

url, project, zone = sys.argv[1:]
region = zone.rpartition("-")[0]
# dstack has no setting for it; its operations are waited for by clients that Google's library makes by itself.
for name in dir(compute_v1):
    if name.endswith("Client"):
        getattr(compute_v1, name)._DEFAULT_ENDPOINT_TEMPLATE = url

from dstack._internal.core.backends.gcp import compute
from dstack._internal.core.backends.gcp.models import GCPConfig
from dstack._internal.core.models import instances
from dstack._internal.core.models.backends.base import BackendType

# Its own image is not public in the stand-in.
image = compute.GCPImage(id="projects/debian-cloud/global/images/family/debian-12", is_ufw_installed=False)
compute._get_image = lambda **_: image
backend = compute.GCPCompute(GCPConfig(project_id=project, creds={"type": "default"}))
gpu = instances.Gpu(name="T4", memory_mib=16384)
resources = instances.Resources(cpus=8, memory_mib=30720, gpus=[gpu], spot=False)
offer = instances.InstanceOfferWithAvailability(
    backend=BackendType.GCP,
    instance=instances.InstanceType(name="n1-standard-8", resources=resources),
    region=region,
    price=0.7,
    availability=instances.InstanceAvailability.AVAILABLE,
    availability_zones=[zone],
)
wanted = instances.InstanceConfiguration(
    project_name="main", instance_name="digits-0", user="ada", ssh_keys=[instances.SSHKey(public="ssh-ed25519 AAAA")]
)
made = backend.create_instance(offer, wanted, None)
backend.update_provisioning_data(made, "", "")
backend.terminate_instance(made.instance_id, region, made.backend_data)
deadline = time.monotonic() + 30
try:
    while time.monotonic() < deadline:
        backend.instances_client.get(project=project, zone=zone, instance=made.instance_id)
        time.sleep(0.1)
    gone = False
except NotFound:
    gone = True
seen = {"instance": made.instance_id, "addresses": [made.internal_ip, made.hostname], "gone": gone}
sys.stdout.write("\n" + json.dumps(seen))
