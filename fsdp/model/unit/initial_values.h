// Initial values of parameters. A value is a function of the seed, the names of the unit and the parameter,
// and the element's number only: any rank draws any range on any number of threads, and no rank ever holds a
// whole parameter to start training.
//
// Element i is number i of fsdp/kernels/normal_numbers.h under a key that is a hash of seed and names.
//
// Thread-safe: pure functions.
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

// By shape and name: matrices normal(0, the facts' deviation), biases zero (names that end in "bias" or in a
// part that begins with b, such as "ffn.b1"), other vectors (the weights of norms) one.
ParamInit DefaultInit(const ParamFacts& param);
std::vector<ParamInit> DefaultInits(const UnitFacts& unit);

// The numbers of parameter `param` of unit `unit`.
kernels::NormalNumbers NumbersOf(const std::string& unit, const std::string& param, const ParamInit& init,
                                 uint64_t seed);

// Numbers [begin, begin + elements), flat fp32 on the CPU.
at::Tensor DrawInitialValue(const kernels::NormalNumbers& numbers, int64_t begin, int64_t elements);

}  // namespace fsdpd
