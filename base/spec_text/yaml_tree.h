// Parser of YAML, or JSON as its subset, into a tree of nodes with their positions.
//
// yaml-cpp parses the text; this file enforces limits, since specs come from users and other programs: size
// (kMaxJobSpecBytes), depth, number of nodes, no anchors or aliases (so no text expands beyond its size), no
// tags, one document, UTF-8 without control characters. Keys are scalars. The reader of the tree checks that
// keys are unique, because it knows which names are the same field; DuplicateKeys() checks it if all keys
// are different fields.
//
// It handles events of yaml-cpp instead of its Node, whose graph takes 20 times the size of the text and
// lacks positions of keys. Exceptions of yaml-cpp do not leave this file.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "base/spec_text/located_violation.h"

namespace fsdpd {

constexpr int kMaxYamlDepth = 32;
constexpr int kMaxYamlNodes = 20'000;

struct TextNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  std::string text;     // kScalar only.
  bool quoted = false;  // kScalar only: written in quotes or as a block.
  std::vector<TextNode> children;
  Place place;
  // For children of a map:
  std::string key;
  Place key_place;

  const TextNode* Find(absl::string_view child_key) const;  // Null if absent. REQUIRES: a map.
};

const char* NameOf(TextNode::Kind kind);  // "a list", for messages.

// An empty text has a null root. Returns at most one violation, after which `*root` is unspecified.
LocatedViolations ParseYaml(absl::string_view text, const std::string& file, TextNode* root);

// An error (duplicate_field) at each repeated key of a map, with the path from the root as field. Accepting
// one of the two would silently drop the other.
LocatedViolations DuplicateKeys(const TextNode& root);

}  // namespace fsdpd
