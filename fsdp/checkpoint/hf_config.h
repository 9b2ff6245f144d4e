// A Hugging Face config.json to a model's sizes: what `model.hf_config` becomes before a spec leaves the
// client.
//
// Taken, by model_type:
//   llama    with plain or llama3-scaled rotary positions, tied or not, any head_dim
//   mistral  without a sliding window that would cut a sequence short
//   qwen2    with its biases of query, key and value; layers without a sliding window
//   qwen3    with its norms of query and key; layers without a sliding window
//   gpt2     gelu_new, tied or not
// Everything that would train another model than the file describes is a fault with the file, the place and
// the JSON key. Every field of the file is read, refused, on the list of those without effect, or named in a
// warning (hf_fields.h). Dropout, which this engine does not have, is a warning.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

#include "base/spec_fault.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `file` is the name that faults carry. Defaults of absent fields are those of the family's configuration
// class (llama: rope_theta 10000, rms_norm_eps 1e-6; qwen3: head_dim 128; ...), and are written out. When no
// fault is an error, `*model` has a complete `llama` or `gpt2`; `*places` gets where the file says each of
// its fields, and all of the model as the file's begin; and `*initializer_range` gets the standard deviation
// that weights begin with. The last two may be null.
SpecFaults ReadHfConfig(absl::string_view text, const std::string& file, v1::Model* model,
                        FieldPlaces* places = nullptr, double* initializer_range = nullptr);

constexpr double kInitializerRange = 0.02;  // Of every family, where the file has none.

}  // namespace fsdpd
