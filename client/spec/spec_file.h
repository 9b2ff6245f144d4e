// Loading of a spec file into a JobSpec that a coordinator accepts: reads the text, applies --set, converts
// model.hf_config to model.llama or model.gpt2, embeds model.plugin.description and the manifest of
// model.package, and makes paths absolute (spec_paths.h).
//
// A token file that is missing, empty or unreadable is a warning, because the nodes may have a different file
// at that path. If its directory does not exist on this machine either, the file is not checked.
#pragma once

#include <absl/status/statusor.h>

#include <istream>
#include <string>
#include <vector>

#include "client/spec/spec_text.h"

namespace fsdpd {

// `path` "-" reads `input`. Errors of the spec, and of files that it names, are in the result's `violations`.
// The Status is an error only if the spec file itself cannot be read.
absl::StatusOr<SpecText> LoadSpec(const std::string& path, const std::vector<std::string>& sets,
                                  std::istream& input);

// Reads the text of the file, at most kMaxJobSpecBytes + 1 bytes.
absl::StatusOr<std::string> ReadText(const std::string& path, std::istream& input);

}  // namespace fsdpd
