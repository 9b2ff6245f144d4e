// Text (YAML, or JSON as its subset) to a tree of nodes that know where they were written.
//
// yaml-cpp reads the text; this file owns the limits in front of it, because a spec comes from people and
// from other programs: size (kMaxJobSpecBytes), depth, number of nodes, no anchors or aliases (so no text
// expands to more than its size), no tags, one document, UTF-8 without control characters. Keys are scalars;
// that they are unique is for the reader of the tree to say, who knows which names are one field. Where each
// key is its own, KeysWrittenTwice() says it.
//
// Events are read, not yaml-cpp's own Node: its graph costs 20 times the text and loses the places of keys.
// yaml-cpp's exceptions end here.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "base/spec_fault.h"

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
  // Of a map's child:
  std::string key;
  Place key_place;

  const TextNode* Find(absl::string_view child_key) const;  // Null when there is none. Of a map.
};

const char* NameOf(TextNode::Kind kind);  // "a list", for messages.

// An empty text is a null root. At most one fault, after which `*root` is not to be used.
SpecFaults ParseYaml(absl::string_view text, const std::string& file, TextNode* root);

// An error (duplicate_field) at each key that its map has before already, with the path from the root as
// field. To take one of the two would be to drop the other in silence.
SpecFaults KeysWrittenTwice(const TextNode& root);

}  // namespace fsdpd
