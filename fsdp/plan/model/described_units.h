// Facts of models that describe their own units: plug-ins and packages. Pure.
#pragma once

#include <cstdint>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// `tokens`: of one micro-batch on one rank.
ModelFacts DescribePlugin(const PluginConfig& model, int64_t tokens, int64_t compute_bytes);

// All numbers of a package are for its own shape, whatever the shape of the job. `grads` is the type of the
// buffers for gradients.
ModelFacts DescribePackage(const PackageConfig& model, DType grads);

}  // namespace fsdpd
