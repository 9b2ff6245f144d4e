// Initial values of parameters. Each value is a function of the seed, the unit and parameter names, and the
// element's index: any rank can compute any range with any number of threads, and no rank ever needs a whole
// parameter to start training.
//
// Element i is number i of fsdp/kernels/normal_numbers.h, with a hash of seed and names as the key.
//
// Pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/kernels/normal_numbers.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// normal(mean, deviation); a deviation of 0 is the constant `mean`.
struct ParamInit {
  double deviation = 0.02;
  double mean = 0;
};

// Default by shape and name: matrices are normal(0, the facts' deviation); biases are zero (names that end in
// "bias" or in a component that starts with b, such as "ffn.b1"); other vectors (norm weights) are one.
ParamInit DefaultInit(const ParamFacts& param);
std::vector<ParamInit> DefaultInits(const UnitFacts& unit);

// The numbers of parameter `param` in unit `unit`.
kernels::NormalNumbers NumbersOf(const std::string& unit, const std::string& param, const ParamInit& init,
                                 uint64_t seed);

// Uniform in [low, high): element i is number i of the Philox words of `key`. Flat fp32 on the CPU.
at::Tensor DrawUniform(uint64_t key, double low, double high, int64_t begin, int64_t elements);

// Values [begin, begin + elements) as flat fp32 on the CPU.
at::Tensor DrawInitialValue(const kernels::NormalNumbers& numbers, int64_t begin, int64_t elements);

}  // namespace fsdpd
