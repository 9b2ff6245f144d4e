// A small package, as a client reads it from a file, for tests that change the fields that they are about.
#pragma once

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// For CPU, in fp32: 2 x 32 tokens, vocabulary 96, hidden size 16. Units: model.embed_tokens; model.layers.0
// and model.layers.1, which share a graph with the variants none and full; head, with model.norm.weight and
// lm_head.weight.
v1::Package SmallPackage();

}  // namespace fsdpd
