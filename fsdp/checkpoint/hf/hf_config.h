// Conversion of a Hugging Face config.json to a model section of a spec: resolves `model.hf_config` before a
// spec leaves the client.
//
// Supported values of model_type:
//   llama    with plain or llama3-scaled rotary embedding, tied or not, any head_dim
//   mistral  if no sliding window is shorter than the sequence
//   qwen2    with biases of query, key and value; layers without a sliding window
//   qwen3    with QK-norm; layers without a sliding window
//   gpt2     gelu_new, tied or not
// Anything that would train another model than the file describes is a violation with file, position and JSON
// key. Every field of the file is read, rejected, listed as having no effect, or named in a warning
// (hf_fields.h). Dropout, which is not supported, is a warning.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

#include "base/spec_text/located_violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `file` is the name used in violations. Absent fields have the defaults of the family's configuration class
// (llama: rope_theta 10000, rms_norm_eps 1e-6; qwen3: head_dim 128; ...), written out explicitly. If no
// violation is an error, `*model` has a complete `llama` or `gpt2`; `*places` receives the position of each
// field in the file, and of the model as a whole (the start of the file); `*initializer_range` receives the
// standard deviation of initial weights. The last two may be null.
LocatedViolations ReadHfConfig(absl::string_view text, const std::string& file, v1::Model* model,
                               FieldPlaces* places = nullptr, double* initializer_range = nullptr);

constexpr double kInitializerRange = 0.02;  // Default of all families.

// The name in `architectures` of a supported model_type: "LlamaForCausalLM"; empty for another.
std::string ArchitectureOf(absl::string_view model_type);

}  // namespace fsdpd
