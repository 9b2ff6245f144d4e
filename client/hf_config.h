// A Hugging Face config.json to v1::Llama: what `model.hf_config` becomes before a spec leaves the client.
//
// Taken: model_type "llama" with plain rotary positions. Everything that would train another model than the
// file describes is a fault that says what is not supported yet; fields that do not change the weights'
// shapes or the arithmetic (token ids, dtype, dropout of 0, ...) are ignored.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

#include "client/spec_fault.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `file` is the name that faults carry. Defaults of absent fields are those of the family's configuration
// class (rope_theta 10000, rms_norm_eps 1e-6), and are written out. No faults: `*llama` is complete.
SpecFaults ReadHfConfig(absl::string_view text, const std::string& file, v1::Llama* llama);

}  // namespace fsdpd
