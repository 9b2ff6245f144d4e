// FP8 facts: which matmuls of a model run in FP8, and the cost of quantization. An operand that was
// not gathered in FP8 is read and written in FP8 before the matmul that reads it
// (fsdp/model/native/native_fp8.h).
#pragma once

#include <string>
#include <vector>

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// Groups of a layer's matrices that read the same input and so run as one matmul.
const std::vector<std::vector<std::string>>& LayerProducts();

// Whether FP8 supports a matrix: the projections of attention (with latent attention only the output
// projection), the feed-forward layer, the experts and the shared expert.
bool CanBeFp8(const UnitFacts& unit, const ParamFacts& param);

// Sets ParamFacts::fp8 and adds the cost of FP8 to the units' facts. REQUIRES: the spec enables FP8, and the
// model is of the Llama family.
void DescribeFp8(const Spec& spec, ModelFacts* facts);

}  // namespace fsdpd
