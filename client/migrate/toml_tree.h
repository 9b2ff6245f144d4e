// Parser of TOML into the tree of base/spec_text/yaml_tree.h. toml++ parses the text.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

#include "base/spec_text/yaml_tree.h"

namespace fsdpd {

// Returns the line of the first section ("[training]") if `text` looks like TOML, or 0: sections and
// assignments, and nothing but assignments and comments before the first section.
int FindTomlSection(absl::string_view text);

// Returns at most one violation (syntax), at its line, after which `*root` is unspecified.
LocatedViolations ParseToml(absl::string_view text, const std::string& file, TextNode* root);

}  // namespace fsdpd
