// The whole way from a file on this machine to a JobSpec that a coordinator can use: reads the text, applies
// --set, turns model.hf_config into model.llama or model.gpt2, takes in model.plugin.description, and makes
// its paths whole (spec_paths.h).
//
// Token files are looked at where this machine has their directory: one that is missing, empty or unreadable
// is a warning with its field, since the nodes may have another file there. Where the directory is not here
// either, only the nodes can know, and nothing is said.
#pragma once

#include <absl/status/statusor.h>

#include <istream>
#include <string>
#include <vector>

#include "client/spec_text.h"

namespace fsdpd {

// `path` "-" reads `input`. A fault of the spec, or of a file it names, is in the result's faults; a
// Status is for a spec file that cannot be read, and says which.
absl::StatusOr<SpecText> LoadSpec(const std::string& path, const std::vector<std::string>& sets,
                                  std::istream& input);

// The text alone, at most one byte over kMaxJobSpecBytes.
absl::StatusOr<std::string> ReadText(const std::string& path, std::istream& input);

}  // namespace fsdpd
