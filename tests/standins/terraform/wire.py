"""The provider's side of Terraform's plugin protocol, version 6: what arrives is decoded, judged and answered.

https://developer.hashicorp.com/terraform/plugin/terraform-plugin-protocol
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc
from tf.types import Unknown
from tf.utils import read_dynamic_value, to_dynamic_value

from tests.standins.terraform.clock import Clock
from tests.standins.terraform.cloud import Cloud, RefusedError
from tests.standins.terraform.plan import Plan, problems

_NESTING = {
    "list": pb.Schema.NestedBlock.NestingMode.LIST,
    "set": pb.Schema.NestedBlock.NestingMode.SET,
    "single": pb.Schema.NestedBlock.NestingMode.SINGLE,
}


def _block(block: Mapping[str, Any]) -> pb.Schema.Block:
    nested = {**block["blocks"]}
    if "timeouts" in block:
        fields = {each: {"type": "string", "optional": True} for each in block["timeouts"]}
        nested["timeouts"] = {"nesting": "single", "attributes": fields, "blocks": {}}
    return pb.Schema.Block(
        attributes=[
            pb.Schema.Attribute(
                name=name,
                type=json.dumps(rules["type"]).encode(),
                **{word: True for word in ("required", "optional", "computed") if rules.get(word)},
            )
            for name, rules in sorted(block["attributes"].items())
        ],
        block_types=[
            pb.Schema.NestedBlock(
                type_name=name,
                block=_block(each),
                nesting=_NESTING[each["nesting"]],
                min_items=each.get("min", 0),
                max_items=each.get("max", 0),
            )
            for name, each in sorted(nested.items())
        ],
    )


def _error(summary: str, detail: str = "", attribute: str | None = None) -> pb.Diagnostic:
    where = {"attribute": _path(attribute)} if attribute else {}
    return pb.Diagnostic(severity=pb.Diagnostic.ERROR, summary=summary, detail=detail, **where)


def _path(attribute: str) -> pb.AttributePath:
    return pb.AttributePath(steps=[pb.AttributePath.Step(attribute_name=attribute)])


class Servicer(rpc.ProviderServicer):
    """Answers Terraform.

    Args:
        schema: what schema.json holds.
        cloud: where resources are.
    """

    def __init__(self, schema: Mapping[str, Any], cloud: Cloud | Clock) -> None:
        self._schema = schema
        self._cloud = cloud

    def GetMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.GetMetadata.Response(
            server_capabilities=_capabilities(),
            resources=[pb.GetMetadata.ResourceMetadata(type_name=name) for name in self._schema["resources"]],
            data_sources=[pb.GetMetadata.DataSourceMetadata(type_name=name) for name in self._schema["data"]],
        )

    def GetProviderSchema(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.GetProviderSchema.Response(
            server_capabilities=_capabilities(),
            provider=pb.Schema(block=_block(self._schema["provider"])),
            resource_schemas={name: pb.Schema(block=_block(each)) for name, each in self._schema["resources"].items()},
            data_source_schemas={name: pb.Schema(block=_block(each)) for name, each in self._schema["data"].items()},
        )

    def ValidateProviderConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        found = problems("provider", self._schema["provider"], read_dynamic_value(request.config))
        return pb.ValidateProviderConfig.Response(diagnostics=[_error(*each) for each in found])

    def ValidateResourceConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        schema = self._schema["resources"][request.type_name]
        found = problems(request.type_name, schema, read_dynamic_value(request.config))
        return pb.ValidateResourceConfig.Response(diagnostics=[_error(*each) for each in found])

    def ValidateDataResourceConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.ValidateDataResourceConfig.Response()

    def ConfigureProvider(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._cloud.configure(read_dynamic_value(request.config))
        return pb.ConfigureProvider.Response()

    def UpgradeResourceState(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.UpgradeResourceState.Response(upgraded_state=to_dynamic_value(json.loads(request.raw_state.json)))

    def ImportResourceState(self, request: Any, context: grpc.ServicerContext) -> Any:
        schema = self._schema["resources"][request.type_name]
        empty: dict[str, object] = {**dict.fromkeys(schema["attributes"]), **{name: [] for name in schema["blocks"]}}
        if "timeouts" in schema:
            empty["timeouts"] = None
        imported = pb.ImportResourceState.ImportedResource(
            type_name=request.type_name, state=to_dynamic_value({**empty, "id": request.id})
        )
        return pb.ImportResourceState.Response(imported_resources=[imported])

    def ReadResource(self, request: Any, context: grpc.ServicerContext) -> Any:
        state = read_dynamic_value(request.current_state)
        found = self._cloud.read(request.type_name, state)
        return pb.ReadResource.Response(new_state=to_dynamic_value(found and _whole(state, found)))

    def PlanResourceChange(self, request: Any, context: grpc.ServicerContext) -> Any:
        prior = read_dynamic_value(request.prior_state)
        if (config := read_dynamic_value(request.config)) is None:
            return pb.PlanResourceChange.Response(legacy_type_system=True)
        cloud = self._cloud if request.type_name == "google_service_account" else None
        if isinstance(cloud, Cloud) and (reason := cloud.disabled()):
            return pb.PlanResourceChange.Response(diagnostics=[_error(f"Error when reading Project: {reason}")])
        plan = Plan.of(self._schema["resources"][request.type_name], prior=prior, config=config, unknown=Unknown)
        return pb.PlanResourceChange.Response(
            planned_state=to_dynamic_value(plan.state),
            requires_replace=[_path(name) for name in plan.replace],
            legacy_type_system=True,
        )

    def ApplyResourceChange(self, request: Any, context: grpc.ServicerContext) -> Any:
        prior, planned = read_dynamic_value(request.prior_state), read_dynamic_value(request.planned_state)
        answer = pb.ApplyResourceChange.Response
        try:
            if planned is None:
                self._cloud.delete(request.type_name, prior)
                return answer(legacy_type_system=True)
            known = {name: None if value is Unknown else value for name, value in planned.items()}
            new = (
                self._cloud.create(request.type_name, known)
                if prior is None
                else self._cloud.update(request.type_name, prior, known)
            )
        except RefusedError as refused:
            # What existed before still exists.
            return answer(
                new_state=to_dynamic_value(prior), diagnostics=[_error(str(refused))], legacy_type_system=True
            )
        return answer(new_state=to_dynamic_value(new), legacy_type_system=True)

    def ReadDataSource(self, request: Any, context: grpc.ServicerContext) -> Any:
        config = read_dynamic_value(request.config)
        assert isinstance(self._cloud, Cloud)
        return pb.ReadDataSource.Response(state=to_dynamic_value(self._cloud.data(request.type_name, config)))

    def StopProvider(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.StopProvider.Response()


def _capabilities() -> Any:
    return pb.ServerCapabilities(plan_destroy=False, get_provider_schema_optional=False)


def _whole(state: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What the cloud has, and of the rest (timeouts) what Terraform had."""
    return {name: found.get(name, value) for name, value in state.items()}
