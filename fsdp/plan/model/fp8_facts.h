// Which of a model's products are computed in FP8, and what that costs beside the products: operands that are
// not gathered in FP8 are read, and written in FP8, before the product that reads them
// (fsdp/model/native/native_fp8.h).
#pragma once

#include <string>
#include <vector>

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// The matrices of a layer that read the same input, and so are one product.
const std::vector<std::vector<std::string>>& LayerProducts();

// Every matrix that could be: those of a layer's attention, of latent attention the output's alone, of its
// feed-forward, its experts and the layer beside them.
bool CanBeFp8(const UnitFacts& unit, const ParamFacts& param);

// Sets ParamFacts::fp8 as the spec has it, and adds to the units' facts. REQUIRES: the spec computes in FP8,
// and the model is Llama's.
void DescribeFp8(const Spec& spec, ModelFacts* facts);

}  // namespace fsdpd
